// Projection and shading of eight Gaussians at a time, and the gradients.
#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../camera.h"
#include "../gaussian.h"
#include "../sh.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

// Up to eight consecutive rows; lanes beyond `count` repeat the last row and are never stored.
struct Rows {
  int64_t begin;
  int count;

  SPLAT_LANES F8 load(const float* p, int stride, int column) const {
    p += begin * stride + column;
    if (count == kLanes) return gather8(p, stride);
    F8 x;
    for (int i = 0; i < kLanes; ++i) x[i] = p[(i < count ? i : count - 1) * stride];
    return x;
  }

  SPLAT_LANES void store(float* p, int stride, int column, F8 x) const {
    p += begin * stride + column;
    for (int i = 0; i < count; ++i) p[i * stride] = x[i];
  }

  SPLAT_LANES void store(float* p, Vec3<F8> x) const {
    store(p, 3, 0, x.x);
    store(p, 3, 1, x.y);
    store(p, 3, 2, x.z);
  }
};

SPLAT_LANES Vec3<F8> load3(const Rows& rows, const float* p) {
  return {rows.load(p, 3, 0), rows.load(p, 3, 1), rows.load(p, 3, 2)};
}

// Everything between a Gaussian's parameters and its ellipse; the backward pass makes it again.
struct View {
  Vec3<F8> mean, scales, point;
  F8 opacity;  // before the antialiasing factor
  Quat<F8> quat;
  ImagePoint<F8> image;
  Mat3<F8> rotation;
  Mat23<F8> projection;
  Ellipse<F8> ellipse;
};

template <CameraModel model>
SPLAT_LANES View view_of(const GaussianArrays& g, const ProjectSettings& settings,
                         const Rows& rows) {
  const Camera& camera = settings.camera;
  View v;
  v.mean = load3(rows, g.means);
  v.scales = load3(rows, g.scales);
  v.opacity = rows.load(g.opacities, 1, 0);
  if (settings.raw) {
    v.scales = {scale_of(v.scales.x), scale_of(v.scales.y), scale_of(v.scales.z)};
    v.opacity = opacity_of(v.opacity);
  }
  v.quat = {rows.load(g.quats, 4, 0), rows.load(g.quats, 4, 1), rows.load(g.quats, 4, 2),
            rows.load(g.quats, 4, 3)};
  const float* t = camera.translation;
  v.point = times(camera.rotation, v.mean) +
            Vec3<F8>{constant<F8>(t[0]), constant<F8>(t[1]), constant<F8>(t[2])};
  v.image = project_point<model>(camera, v.point);
  v.rotation = rotation_of(v.quat);
  v.projection = {times(v.image.jacobian.row0, camera.rotation),
                  times(v.image.jacobian.row1, camera.rotation)};
  v.ellipse = ellipse_of(v.projection, v.rotation, v.scales);
  return v;
}

// Every condition is one that NaN fails.
SPLAT_LANES I8 seen(const View& v, F8 opacity, Vec2<F8> radii, const Camera& camera) {
  const F8 zero = constant<F8>(0.0f);
  const Vec2<F8> m = v.image.mean;
  const Ellipse<F8>& e = v.ellipse;
  return (v.point.z > constant<F8>(camera.near_plane)) &
         (v.point.z < constant<F8>(camera.far_plane)) & (opacity >= constant<F8>(kAlphaThreshold)) &
         is_finite(opacity) & (radii.x > zero) & (radii.y > zero) & (m.x + radii.x > zero) &
         (m.y + radii.y > zero) & (m.x - radii.x < constant<F8>(static_cast<float>(camera.width))) &
         (m.y - radii.y < constant<F8>(static_cast<float>(camera.height))) & (e.det > zero) &
         is_finite(e.a) & is_finite(e.b) & is_finite(e.c) & is_finite(m.x) & is_finite(m.y);
}

struct Direction {
  Vec3<F8> unit;
  F8 inverse_length;
};

SPLAT_LANES Direction direction_to(Vec3<F8> mean, const Camera& camera) {
  const float* p = camera.position;
  const Vec3<F8> d = mean - Vec3<F8>{constant<F8>(p[0]), constant<F8>(p[1]), constant<F8>(p[2])};
  const F8 inverse = constant<F8>(1.0f) / square_root(dot(d, d));
  return {inverse * d, inverse};
}

// The colours of the lanes in `bits`, before the clamp at 0; 0 in the other lanes.
SPLAT_LANES Vec3<F8> shade(const GaussianArrays& g, int degree, Vec3<F8> direction, int64_t begin,
                           uint32_t bits) {
  F8 basis[kMaxCoefficients];
  sh_basis(degree, direction, basis);
  const int num = num_coefficients(degree);
  F8 red = constant<F8>(0.0f), green = red, blue = red;
  for (; bits != 0; bits &= bits - 1) {
    const int lane = __builtin_ctz(bits);
    const float* sh0 = g.sh0 + (begin + lane) * 3;
    const float* shN = g.shN + (begin + lane) * 3 * g.num_rest;
    float r = 0.5f + basis[0][lane] * sh0[0];
    float gr = 0.5f + basis[0][lane] * sh0[1];
    float b = 0.5f + basis[0][lane] * sh0[2];
    for (int k = 1; k < num; ++k, shN += 3) {
      const float weight = basis[k][lane];
      r += weight * shN[0];
      gr += weight * shN[1];
      b += weight * shN[2];
    }
    red[lane] = r;
    green[lane] = gr;
    blue[lane] = b;
  }
  return {red, green, blue};
}

template <CameraModel model>
SPLAT_LANES void project_rows(const ProjectFwd& args, const Rows& rows) {
  const Camera& camera = args.settings.camera;
  const F8 zero = constant<F8>(0.0f);
  const View v = view_of<model>(args.gaussians, args.settings, rows);
  F8 opacity = v.opacity;
  if (args.settings.antialiased) opacity = opacity * compensation_of(v.ellipse);
  const Vec2<F8> radii = radii_of(v.ellipse, opacity);
  I8 visible = seen(v, opacity, radii, camera);
  Vec3<F8> color = {zero, zero, zero};
  const uint32_t bits = lane_bits(visible) & ((1u << rows.count) - 1);
  if (bits != 0) {
    if (args.late != nullptr) {
      for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
        const int64_t i = rows.begin + __builtin_ctz(rest);
        settle_rows(*args.late, i, i + 1);
      }
    }
    color = shade(args.gaussians, args.settings.sh_degree, direction_to(v.mean, camera).unit,
                  rows.begin, bits);
    visible &= is_finite(color.x + color.y + color.z);
  }
  const auto shown = [&](F8 x) { return select(visible, x, zero); };
  rows.store(args.means2d, 2, 0, shown(v.image.mean.x));
  rows.store(args.means2d, 2, 1, shown(v.image.mean.y));
  rows.store(args.conics, {shown(v.ellipse.a), shown(v.ellipse.b), shown(v.ellipse.c)});
  rows.store(args.depths, 1, 0, shown(v.point.z));
  rows.store(args.opacities, 1, 0, shown(opacity));
  rows.store(args.colors, {maximum(shown(color.x), zero), maximum(shown(color.y), zero),
                           maximum(shown(color.z), zero)});
  const F8 radius_x = shown(radii.x), radius_y = shown(radii.y);
  for (int i = 0; i < rows.count; ++i) {
    args.radii[2 * (rows.begin + i)] = static_cast<int32_t>(radius_x[i]);
    args.radii[2 * (rows.begin + i) + 1] = static_cast<int32_t>(radius_y[i]);
  }
}

// Writes the gradients of the coefficients and returns the one of the mean, through the direction.
SPLAT_LANES Vec3<F8> shade_vjp(const ProjectBwd& args, Vec3<F8> mean, const Rows& rows,
                               uint32_t bits) {
  const GaussianArrays& g = args.gaussians;
  const int degree = args.settings.sh_degree, num = num_coefficients(degree);
  const Direction direction = direction_to(mean, args.settings.camera);
  F8 basis[kMaxCoefficients], v_basis[kMaxCoefficients];
  sh_basis(degree, direction.unit, basis);
  for (F8& v : v_basis) v = constant<F8>(0.0f);
  for (; bits != 0; bits &= bits - 1) {
    const int lane = __builtin_ctz(bits);
    const int64_t i = rows.begin + lane;
    float v[3];
    for (int c = 0; c < 3; ++c) v[c] = args.colors[3 * i + c] > 0 ? args.v_colors[3 * i + c] : 0;
    float* v_sh0 = args.v_sh0 + 3 * (i - args.v_begin);
    for (int c = 0; c < 3; ++c) v_sh0[c] = basis[0][lane] * v[c];
    const float* shN = g.shN + i * 3 * g.num_rest;
    if (num == 1) continue;
    float* v_shN = args.v_shN + (i - args.v_begin) * 3 * g.num_rest;
    std::memset(v_shN + 3 * (num - 1), 0, sizeof(float) * 3 * (g.num_rest - (num - 1)));
    for (int k = 1; k < num; ++k, shN += 3, v_shN += 3) {
      const float weight = basis[k][lane];
      v_shN[0] = weight * v[0];
      v_shN[1] = weight * v[1];
      v_shN[2] = weight * v[2];
      v_basis[k][lane] = shN[0] * v[0] + shN[1] * v[1] + shN[2] * v[2];
    }
  }
  const Vec3<F8> v_unit = sh_basis_vjp(degree, direction.unit, v_basis);
  return normalize_vjp(direction.unit, direction.inverse_length, v_unit);
}

template <CameraModel model>
SPLAT_LANES void project_rows_vjp(const ProjectBwd& args, const Rows& rows, uint32_t bits) {
  const Camera& camera = args.settings.camera;
  const F8 zero = constant<F8>(0.0f);
  const View v = view_of<model>(args.gaussians, args.settings, rows);
  const F8 v_effective = rows.load(args.v_out_opacities, 1, 0);
  F8 v_opacity = v_effective, v_compensation = zero;
  if (args.settings.antialiased) {
    v_opacity = v_effective * compensation_of(v.ellipse);
    v_compensation = v_effective * v.opacity;
  }
  EllipseGradient<F8> e = ellipse_of_vjp(v.ellipse, v.projection, v.rotation, v.scales,
                                         load3(rows, args.v_conics), v_compensation);
  // projection = jacobian * camera rotation
  const Mat23<F8> v_jacobian = {times(camera.rotation, e.projection.row0),
                                times(camera.rotation, e.projection.row1)};
  Vec3<F8> v_point = project_point_vjp<model>(
      camera, v.point, {rows.load(args.v_means2d, 2, 0), rows.load(args.v_means2d, 2, 1)},
      v_jacobian);
  v_point.z = v_point.z + rows.load(args.v_depths, 1, 0);
  const Vec3<F8> v_mean = times(v_point, camera.rotation) + shade_vjp(args, v.mean, rows, bits);
  const Quat<F8> v_quat = rotation_of_vjp(v.quat, e.rotation);
  if (args.settings.raw) {
    v_opacity = v_opacity * v.opacity * (constant<F8>(1.0f) - v.opacity);
    e.scales = {e.scales.x * v.scales.x, e.scales.y * v.scales.y, e.scales.z * v.scales.z};
  }

  // A gradient that overflows (a quaternion of length 1e-30, say) is left out, not passed on.
  I8 visible;
  for (int i = 0; i < kLanes; ++i) visible[i] = (bits >> i & 1) != 0 ? -1 : 0;
  visible &= is_finite(v_mean.x + v_mean.y + v_mean.z + v_quat.w + v_quat.x + v_quat.y + v_quat.z +
                       e.scales.x + e.scales.y + e.scales.z + v_opacity);
  const auto shown = [&](F8 x) { return select(visible, x, zero); };
  const Rows out = {rows.begin - args.v_begin, rows.count};
  out.store(args.v_means, {shown(v_mean.x), shown(v_mean.y), shown(v_mean.z)});
  out.store(args.v_scales, {shown(e.scales.x), shown(e.scales.y), shown(e.scales.z)});
  out.store(args.v_quats, 4, 0, shown(v_quat.w));
  out.store(args.v_quats, 4, 1, shown(v_quat.x));
  out.store(args.v_quats, 4, 2, shown(v_quat.y));
  out.store(args.v_quats, 4, 3, shown(v_quat.z));
  out.store(args.v_opacities, 1, 0, shown(v_opacity));
}

SPLAT_LANES void zero_rows(float* p, int64_t stride, const Rows& rows) {
  std::memset(p + rows.begin * stride, 0, sizeof(float) * rows.count * stride);
}

template <CameraModel model>
void project_all(const ProjectFwd& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    project_rows<model>(args, {i, static_cast<int>(end - i < kLanes ? end - i : kLanes)});
  }
}

template <CameraModel model>
void project_all_vjp(const ProjectBwd& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const Rows rows = {i, static_cast<int>(end - i < kLanes ? end - i : kLanes)};
    const Rows out = {i - args.v_begin, rows.count};
    uint32_t bits = 0;
    for (int j = 0; j < rows.count; ++j) bits |= (args.radii[2 * (i + j)] > 0 ? 1u : 0u) << j;
    if (bits != (1u << rows.count) - 1) {
      zero_rows(args.v_sh0, 3, out);
      if (args.v_shN != nullptr) zero_rows(args.v_shN, 3 * args.gaussians.num_rest, out);
    }
    if (bits != 0) {
      project_rows_vjp<model>(args, rows, bits);
    } else {
      zero_rows(args.v_means, 3, out);
      zero_rows(args.v_quats, 4, out);
      zero_rows(args.v_scales, 3, out);
      zero_rows(args.v_opacities, 1, out);
    }
  }
}

}  // namespace

void project_fwd(const ProjectFwd& args, int64_t begin, int64_t end) {
  switch (args.settings.camera.model) {
    case CameraModel::kPinhole:
      return project_all<CameraModel::kPinhole>(args, begin, end);
    case CameraModel::kOrtho:
      return project_all<CameraModel::kOrtho>(args, begin, end);
    case CameraModel::kFisheye:
      return project_all<CameraModel::kFisheye>(args, begin, end);
  }
}

void project_bwd(const ProjectBwd& args, int64_t begin, int64_t end) {
  switch (args.settings.camera.model) {
    case CameraModel::kPinhole:
      return project_all_vjp<CameraModel::kPinhole>(args, begin, end);
    case CameraModel::kOrtho:
      return project_all_vjp<CameraModel::kOrtho>(args, begin, end);
    case CameraModel::kFisheye:
      return project_all_vjp<CameraModel::kFisheye>(args, begin, end);
  }
}

}  // namespace splat::cpu::SPLAT_ISA
