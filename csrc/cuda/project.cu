// Projection and shading, one thread a Gaussian, and the gradients.
#include "project.cuh"

namespace splat::cuda {
namespace {

// The color before the clamp at 0.
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
  float basis[kMaxCoefficients];
  Vec3<float> v_color;
  const GaussianValues<float> v = gaussian_vjp<model>(args, i, basis, v_color);
  store3(args.v_means, i, v.mean);
  store3(args.v_scales, i, v.scales);
  args.v_quats[4 * i] = v.quat.w;
  args.v_quats[4 * i + 1] = v.quat.x;
  args.v_quats[4 * i + 2] = v.quat.y;
  args.v_quats[4 * i + 3] = v.quat.z;
  args.v_opacities[i] = v.opacity;
  store3(args.v_sh0, i, basis[0] * v_color);
  if (args.v_shN == nullptr) return;
  const int num = num_coefficients(args.settings.sh_degree), num_rest = args.gaussians.num_rest;
  SPLAT_UNROLL
  for (int k = 1; k < kMaxCoefficients; ++k) {
    if (k < num) store3(args.v_shN, i * num_rest + k - 1, basis[k] * v_color);
  }
  for (int k = num - 1; k < num_rest; ++k) zero_row(args.v_shN, 3, i * num_rest + k);
}

}  // namespace

void project_fwd(const ProjectFwd& args, Stream stream) {
  launch_for_model(
      "project_fwd", args.settings.camera.model, project_fwd_kernel<CameraModel::kPinhole>,
      project_fwd_kernel<CameraModel::kOrtho>, project_fwd_kernel<CameraModel::kFisheye>,
      blocks_for(args.gaussians.num), kThreads, stream, args);
}

void project_bwd(const ProjectBwd& args, Stream stream) {
  launch_for_model(
      "project_bwd", args.settings.camera.model, project_bwd_kernel<CameraModel::kPinhole>,
      project_bwd_kernel<CameraModel::kOrtho>, project_bwd_kernel<CameraModel::kFisheye>,
      blocks_for(args.gaussians.num), kThreads, stream, args);
}

}  // namespace splat::cuda
