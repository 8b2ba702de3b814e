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

  SPLAT_LANES bool whole() const { return count == kLanes; }

  SPLAT_LANES F8 load(const float* p, int stride = 1, int column = 0) const {
    p += begin * stride + column;
    if (whole()) return gather8(p, stride);
    F8 x;
    for (int i = 0; i < kLanes; ++i) x[i] = p[(i < count ? i : count - 1) * stride];
    return x;
  }

  SPLAT_LANES Vec2<F8> load2(const float* p) const {
    F8 c[2];
    if (!whole()) return {load(p, 2, 0), load(p, 2, 1)};
    load_columns_2(p + begin * 2, c);
    return {c[0], c[1]};
  }

  SPLAT_LANES Vec3<F8> load3(const float* p) const {
    F8 c[3];
    if (!whole()) return {load(p, 3, 0), load(p, 3, 1), load(p, 3, 2)};
    load_columns_3(p + begin * 3, c);
    return {c[0], c[1], c[2]};
  }

  SPLAT_LANES Quat<F8> load4(const float* p) const {
    F8 c[4];
    if (!whole()) return {load(p, 4, 0), load(p, 4, 1), load(p, 4, 2), load(p, 4, 3)};
    load_columns_4(p + begin * 4, c);
    return {c[0], c[1], c[2], c[3]};
  }

  SPLAT_LANES void store(float* p, F8 x, int stride = 1, int column = 0) const {
    p += begin * stride + column;
    if (whole() && stride == 1) return store8(p, x);
    for (int i = 0; i < count; ++i) p[i * stride] = x[i];
  }

  SPLAT_LANES void store(float* p, Vec2<F8> v) const {
    if (whole()) return store_columns_2(p + begin * 2, v.x, v.y);
    store(p, v.x, 2, 0);
    store(p, v.y, 2, 1);
  }

  SPLAT_LANES void store(float* p, Vec3<F8> v) const {
    if (whole()) return store_columns_3(p + begin * 3, v.x, v.y, v.z);
    store(p, v.x, 3, 0);
    store(p, v.y, 3, 1);
    store(p, v.z, 3, 2);
  }

  SPLAT_LANES void store(float* p, Quat<F8> v) const {
    if (whole()) return store_columns_4(p + begin * 4, v.w, v.x, v.y, v.z);
    store(p, v.w, 4, 0);
    store(p, v.x, 4, 1);
    store(p, v.y, 4, 2);
    store(p, v.z, 4, 3);
  }
};

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
  v.mean = rows.load3(g.means);
  v.scales = rows.load3(g.scales);
  v.opacity = rows.load(g.opacities);
  if (settings.raw) {
    v.scales = {scale_of(v.scales.x), scale_of(v.scales.y), scale_of(v.scales.z)};
    v.opacity = opacity_of(v.opacity);
  }
  v.quat = rows.load4(g.quats);
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

constexpr int kMaxRest = 3 * (kMaxCoefficients - 1);

// How many floats of a row of shN `degree` uses: 0, 9, 24 or 45.
SPLAT_LANES int rest_in_use(int degree) { return 3 * (num_coefficients(degree) - 1); }

// Calls visit(at) for eights of the columns of shN in use, of which the last may overlap.
template <typename Visit>
SPLAT_LANES void for_eights(int used, const Visit& visit) {
  int at = 0;
  for (; at + 8 <= used; at += 8) visit(at);
  if (at < used) visit(used - 8);
}

// Reads the columns of shN in use, of the lanes in `bits`, which are some. The others repeat one of
// them: most rows of a large scene are out of sight, and need not come from memory.
SPLAT_LANES void load_rest(const GaussianArrays& g, int64_t begin, uint32_t bits, int used,
                           F8* rest) {
  const float* rows[kLanes];
  const int first = __builtin_ctz(bits);
  for (int i = 0; i < kLanes; ++i) {
    rows[i] = g.shN + (begin + ((bits >> i & 1) != 0 ? i : first)) * 3 * g.num_rest;
  }
  for_eights(used, [&](int at) { load_columns_8(rows, at, rest + at); });
}

// The colors of the lanes in `bits`, before the clamp at 0; anything in the other lanes.
SPLAT_LANES Vec3<F8> shade(const GaussianArrays& g, int degree, Vec3<F8> direction,
                           const Rows& rows, uint32_t bits) {
  F8 basis[kMaxCoefficients], rest[kMaxRest];
  sh_basis(degree, direction, basis);
  const F8 half = constant<F8>(0.5f);
  const Vec3<F8> sh0 = rows.load3(g.sh0);
  Vec3<F8> color = {half + basis[0] * sh0.x, half + basis[0] * sh0.y, half + basis[0] * sh0.z};
  const int num = num_coefficients(degree);
  if (num == 1) return color;
  load_rest(g, rows.begin, bits, rest_in_use(degree), rest);
  // Which of the sums are fused is what earlier versions did, whose results stay as they were.
  const int apart = num == kMaxCoefficients ? kLanes : 0;
  for (int k = 1; k < num; ++k) {
    const F8* c = rest + 3 * (k - 1);
    Vec3<F8> more = {basis[k] * c[0], basis[k] * c[1], basis[k] * c[2]};
    if (k <= apart) more = {rounded(more.x), rounded(more.y), rounded(more.z)};
    color = color + more;
  }
  return color;
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
    color = shade(args.gaussians, args.settings.sh_degree, direction_to(v.mean, camera).unit, rows,
                  bits);
    visible &= is_finite(color.x + color.y + color.z);
  }
  const auto shown = [&](F8 x) { return select(visible, x, zero); };
  rows.store(args.means2d, Vec2<F8>{shown(v.image.mean.x), shown(v.image.mean.y)});
  rows.store(args.conics, Vec3<F8>{shown(v.ellipse.a), shown(v.ellipse.b), shown(v.ellipse.c)});
  rows.store(args.depths, shown(v.point.z));
  rows.store(args.opacities, shown(opacity));
  rows.store(args.colors, Vec3<F8>{maximum(shown(color.x), zero), maximum(shown(color.y), zero),
                                   maximum(shown(color.z), zero)});
  const F8 radius_x = shown(radii.x), radius_y = shown(radii.y);
  for (int i = 0; i < rows.count; ++i) {
    args.radii[2 * (rows.begin + i)] = static_cast<int32_t>(radius_x[i]);
    args.radii[2 * (rows.begin + i) + 1] = static_cast<int32_t>(radius_y[i]);
  }
}

SPLAT_LANES I8 lanes_in(uint32_t bits) {
  I8 mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = (bits >> i & 1) != 0 ? -1 : 0;
  return mask;
}

// Writes the gradients of the coefficients, 0 where a lane is not in `bits`, and returns the one of
// the mean, through the direction.
SPLAT_LANES Vec3<F8> shade_vjp(const ProjectBwd& args, Vec3<F8> mean, const Rows& rows,
                               uint32_t bits) {
  const GaussianArrays& g = args.gaussians;
  const int degree = args.settings.sh_degree, num = num_coefficients(degree);
  const int used = rest_in_use(degree);
  const Direction direction = direction_to(mean, args.settings.camera);
  F8 basis[kMaxCoefficients], v_basis[kMaxCoefficients];
  sh_basis(degree, direction.unit, basis);
  const I8 visible = lanes_in(bits);
  const Vec3<F8> color = rows.load3(args.colors), v_color = rows.load3(args.v_colors);
  const F8 zero = constant<F8>(0.0f);
  const Vec3<F8> v = {keep(visible & (color.x > zero), v_color.x),
                      keep(visible & (color.y > zero), v_color.y),
                      keep(visible & (color.z > zero), v_color.z)};
  const Rows out = {rows.begin - args.v_begin, rows.count};
  out.store(args.v_sh0, basis[0] * v);
  if (num > 1) {
    F8 rest[kMaxRest], v_rest[kMaxRest];
    load_rest(g, rows.begin, bits, used, rest);
    for (int k = 1; k < num; ++k) {
      const F8* c = rest + 3 * (k - 1);
      F8* v_c = v_rest + 3 * (k - 1);
      const F8 weight = keep(visible, basis[k]);
      v_c[0] = weight * v.x;
      v_c[1] = weight * v.y;
      v_c[2] = weight * v.z;
      v_basis[k] = c[0] * v.x + c[1] * v.y + c[2] * v.z;
    }
    float nowhere[kMaxRest];
    float* v_rows[kLanes];
    const int unused = 3 * g.num_rest - used;
    for (int i = 0; i < kLanes; ++i) {
      v_rows[i] = i < out.count ? args.v_shN + (out.begin + i) * 3 * g.num_rest : nowhere;
      if (unused > 0 && i < out.count) std::memset(v_rows[i] + used, 0, sizeof(float) * unused);
    }
    for_eights(used, [&](int at) { store_columns_8(v_rows, at, v_rest + at); });
  }
  const Vec3<F8> v_unit = sh_basis_vjp(degree, direction.unit, v_basis);
  return normalize_vjp(direction.unit, direction.inverse_length, v_unit);
}

template <CameraModel model>
SPLAT_LANES void project_rows_vjp(const ProjectBwd& args, const Rows& rows, uint32_t bits) {
  const Camera& camera = args.settings.camera;
  const F8 zero = constant<F8>(0.0f);
  const View v = view_of<model>(args.gaussians, args.settings, rows);
  const F8 v_effective = rows.load(args.v_out_opacities);
  F8 v_opacity = v_effective, v_compensation = zero;
  if (args.settings.antialiased) {
    v_opacity = v_effective * compensation_of(v.ellipse);
    v_compensation = v_effective * v.opacity;
  }
  EllipseGradient<F8> e = ellipse_of_vjp(v.ellipse, v.projection, v.rotation, v.scales,
                                         rows.load3(args.v_conics), v_compensation);
  // projection = jacobian * camera rotation
  const Mat23<F8> v_jacobian = {times(camera.rotation, e.projection.row0),
                                times(camera.rotation, e.projection.row1)};
  Vec3<F8> v_point =
      project_point_vjp<model>(camera, v.point, rows.load2(args.v_means2d), v_jacobian);
  v_point.z = v_point.z + rows.load(args.v_depths);
  const Vec3<F8> v_mean = times(v_point, camera.rotation) + shade_vjp(args, v.mean, rows, bits);
  const Quat<F8> v_quat = rotation_of_vjp(v.quat, e.rotation);
  if (args.settings.raw) {
    v_opacity = v_opacity * v.opacity * (constant<F8>(1.0f) - v.opacity);
    e.scales = {e.scales.x * v.scales.x, e.scales.y * v.scales.y, e.scales.z * v.scales.z};
  }

  // A gradient that overflows (a quaternion of length 1e-30, say) is left out, not passed on.
  I8 visible = lanes_in(bits);
  visible &= is_finite(v_mean.x + v_mean.y + v_mean.z + v_quat.w + v_quat.x + v_quat.y + v_quat.z +
                       e.scales.x + e.scales.y + e.scales.z + v_opacity);
  const auto shown = [&](F8 x) { return select(visible, x, zero); };
  const Rows out = {rows.begin - args.v_begin, rows.count};
  out.store(args.v_means, Vec3<F8>{shown(v_mean.x), shown(v_mean.y), shown(v_mean.z)});
  out.store(args.v_scales, Vec3<F8>{shown(e.scales.x), shown(e.scales.y), shown(e.scales.z)});
  out.store(args.v_quats,
            Quat<F8>{shown(v_quat.w), shown(v_quat.x), shown(v_quat.y), shown(v_quat.z)});
  out.store(args.v_opacities, shown(v_opacity));
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
    if (bits != 0) {
      project_rows_vjp<model>(args, rows, bits);
    } else {
      zero_rows(args.v_sh0, 3, out);
      if (args.v_shN != nullptr) zero_rows(args.v_shN, 3 * args.gaussians.num_rest, out);
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
