// Projection and shading, one thread a Gaussian, and the gradients.
#include "../kernels.h"
#include "../sh.h"
#include "../view.h"
#include "launch.cuh"

namespace splat::cuda {
namespace {

__device__ __forceinline__ Vec3<float> load3(const float* p, int64_t i) {
  return {p[3 * i], p[3 * i + 1], p[3 * i + 2]};
}

__device__ __forceinline__ void store3(float* p, int64_t i, Vec3<float> x) {
  p[3 * i] = x.x;
  p[3 * i + 1] = x.y;
  p[3 * i + 2] = x.z;
}

__device__ GaussianValues<float> load_gaussian(const GaussianArrays& g, bool raw, int64_t i) {
  GaussianValues<float> v = {
      load3(g.means, i),
      load3(g.scales, i),
      {g.quats[4 * i], g.quats[4 * i + 1], g.quats[4 * i + 2], g.quats[4 * i + 3]},
      g.opacities[i]};
  if (raw) {
    v.scales = {scale_of(v.scales.x), scale_of(v.scales.y), scale_of(v.scales.z)};
    v.opacity = opacity_of(v.opacity);
  }
  return v;
}

// The colour before the clamp at 0.
__device__ Vec3<float> shade(const GaussianArrays& g, int degree, Vec3<float> direction,
                             int64_t i) {
  float basis[kMaxCoefficients];
  sh_basis(degree, direction, basis);
  const Vec3<float> half = {0.5f, 0.5f, 0.5f};
  Vec3<float> color = half + basis[0] * load3(g.sh0, i);
  const int num = num_coefficients(degree);
  for (int k = 1; k < num; ++k) color = color + basis[k] * load3(g.shN, i * g.num_rest + k - 1);
  return color;
}

template <CameraModel model>
__global__ void __launch_bounds__(kThreads) project_fwd_kernel(ProjectFwd args) {
  const int64_t i = global_index();
  if (i >= args.gaussians.num) return;
  const Camera& camera = args.settings.camera;
  const GaussianValues<float> g = load_gaussian(args.gaussians, args.settings.raw, i);
  const View<float> view = view_of<model>(camera, g);
  float opacity = g.opacity;
  if (args.settings.antialiased) opacity *= compensation_of(view.ellipse);
  const Vec2<float> radii = radii_of(view.ellipse, opacity);
  bool visible = is_seen(view, opacity, radii, camera);
  Vec3<float> color = {0.0f, 0.0f, 0.0f};
  if (visible) {
    color = shade(args.gaussians, args.settings.sh_degree, direction_to(g.mean, camera).unit, i);
    visible = is_finite(color.x + color.y + color.z);
  }
  const auto shown = [&](float x) { return select(visible, x, 0.0f); };
  args.means2d[2 * i] = shown(view.image.mean.x);
  args.means2d[2 * i + 1] = shown(view.image.mean.y);
  store3(args.conics, i, {shown(view.ellipse.a), shown(view.ellipse.b), shown(view.ellipse.c)});
  args.depths[i] = shown(view.point.z);
  args.opacities[i] = shown(opacity);
  store3(args.colors, i,
         {maximum(shown(color.x), 0.0f), maximum(shown(color.y), 0.0f),
          maximum(shown(color.z), 0.0f)});
  args.radii[2 * i] = static_cast<int32_t>(shown(radii.x));
  args.radii[2 * i + 1] = static_cast<int32_t>(shown(radii.y));
}

__device__ void zero_row(float* p, int stride, int64_t i) {
  for (int k = 0; k < stride; ++k) p[i * stride + k] = 0.0f;
}

// Writes the gradients of the coefficients and returns the one of the mean, through the direction.
__device__ Vec3<float> shade_vjp(const ProjectBwd& args, Vec3<float> mean, int64_t i) {
  const GaussianArrays& g = args.gaussians;
  const int degree = args.settings.sh_degree, num = num_coefficients(degree);
  const Direction<float> direction = direction_to(mean, args.settings.camera);
  float basis[kMaxCoefficients], v_basis[kMaxCoefficients] = {};
  sh_basis(degree, direction.unit, basis);
  const Vec3<float> colors = load3(args.colors, i), v_colors = load3(args.v_colors, i);
  // Where the colour was clamped it does not move.
  const Vec3<float> v = {colors.x > 0 ? v_colors.x : 0.0f, colors.y > 0 ? v_colors.y : 0.0f,
                         colors.z > 0 ? v_colors.z : 0.0f};
  store3(args.v_sh0, i, basis[0] * v);
  if (num == 1) return {0.0f, 0.0f, 0.0f};
  for (int k = 1; k < num; ++k) {
    const int64_t row = i * g.num_rest + k - 1;
    v_basis[k] = dot(load3(g.shN, row), v);
    store3(args.v_shN, row, basis[k] * v);
  }
  for (int k = num - 1; k < g.num_rest; ++k) zero_row(args.v_shN, 3, i * g.num_rest + k);
  const Vec3<float> v_unit = sh_basis_vjp(degree, direction.unit, v_basis);
  return normalize_vjp(direction.unit, direction.inverse_length, v_unit);
}

__device__ void zero_rows(const ProjectBwd& args, int64_t i) {
  zero_row(args.v_means, 3, i);
  zero_row(args.v_quats, 4, i);
  zero_row(args.v_scales, 3, i);
  zero_row(args.v_opacities, 1, i);
  zero_row(args.v_sh0, 3, i);
  if (args.v_shN != nullptr) zero_row(args.v_shN, 3 * args.gaussians.num_rest, i);
}

template <CameraModel model>
__global__ void __launch_bounds__(kThreads) project_bwd_kernel(ProjectBwd args) {
  const int64_t i = global_index();
  if (i >= args.gaussians.num) return;
  if (args.radii[2 * i] <= 0) {
    zero_rows(args, i);
    return;
  }
  const Camera& camera = args.settings.camera;
  const GaussianValues<float> g = load_gaussian(args.gaussians, args.settings.raw, i);
  const View<float> view = view_of<model>(camera, g);
  const float v_effective = args.v_out_opacities[i];
  ViewGradient<float> v = {{args.v_means2d[2 * i], args.v_means2d[2 * i + 1]},
                           load3(args.v_conics, i),
                           args.v_depths[i],
                           0.0f};
  float v_opacity = v_effective;
  if (args.settings.antialiased) {
    v_opacity = v_effective * compensation_of(view.ellipse);
    v.compensation = v_effective * g.opacity;
  }
  GaussianValues<float> out = view_of_vjp<model>(camera, g, view, v);
  out.mean = out.mean + shade_vjp(args, g.mean, i);
  if (args.settings.raw) {
    v_opacity = v_opacity * g.opacity * (1.0f - g.opacity);
    out.scales = {out.scales.x * g.scales.x, out.scales.y * g.scales.y, out.scales.z * g.scales.z};
  }
  // A gradient that overflows (a quaternion of length 1e-30, say) is left out, not passed on.
  const bool finite =
      is_finite(out.mean.x + out.mean.y + out.mean.z + out.quat.w + out.quat.x + out.quat.y +
                out.quat.z + out.scales.x + out.scales.y + out.scales.z + v_opacity);
  const auto shown = [&](float x) { return select(finite, x, 0.0f); };
  store3(args.v_means, i, {shown(out.mean.x), shown(out.mean.y), shown(out.mean.z)});
  store3(args.v_scales, i, {shown(out.scales.x), shown(out.scales.y), shown(out.scales.z)});
  args.v_quats[4 * i] = shown(out.quat.w);
  args.v_quats[4 * i + 1] = shown(out.quat.x);
  args.v_quats[4 * i + 2] = shown(out.quat.y);
  args.v_quats[4 * i + 3] = shown(out.quat.z);
  args.v_opacities[i] = shown(v_opacity);
}

template <typename Args, typename Kernel>
void launch_for_model(const char* name, const Args& args, Kernel pinhole, Kernel ortho,
                      Kernel fisheye, Stream stream) {
  const CameraModel model = args.settings.camera.model;
  const Kernel kernel = model == CameraModel::kPinhole ? pinhole
                        : model == CameraModel::kOrtho ? ortho
                                                       : fisheye;
  launch(name, kernel, blocks_for(args.gaussians.num), kThreads, stream, args);
}

}  // namespace

void project_fwd(const ProjectFwd& args, Stream stream) {
  launch_for_model("project_fwd", args, project_fwd_kernel<CameraModel::kPinhole>,
                   project_fwd_kernel<CameraModel::kOrtho>,
                   project_fwd_kernel<CameraModel::kFisheye>, stream);
}

void project_bwd(const ProjectBwd& args, Stream stream) {
  launch_for_model("project_bwd", args, project_bwd_kernel<CameraModel::kPinhole>,
                   project_bwd_kernel<CameraModel::kOrtho>,
                   project_bwd_kernel<CameraModel::kFisheye>, stream);
}

}  // namespace splat::cuda
