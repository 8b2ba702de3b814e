// Projection and shading, one thread a Gaussian, and the gradients.
#include "late.cuh"
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

// A Gaussian before the camera, but for its color.
struct Seen {
  Vec3<float> mean, conic;
  Vec2<float> image, radii;
  float depth, opacity;
  bool visible;
};

template <CameraModel model>
__device__ __forceinline__ Seen look_at(const ProjectFwd& args, int64_t i) {
  const Camera& camera = args.settings.camera;
  const GaussianValues<float> g = load_gaussian(args.gaussians, args.settings.raw, i);
  const View<float> view = view_of<model>(camera, g);
  float opacity = g.opacity;
  if (args.settings.antialiased) opacity *= compensation_of(view.ellipse);
  const Vec2<float> radii = radii_of(view.ellipse, opacity);
  const Ellipse<float>& e = view.ellipse;
  return {g.mean,
          {e.a, e.b, e.c},
          view.image.mean,
          radii,
          view.point.z,
          opacity,
          is_seen(view, opacity, radii, camera)};
}

// Colors what is visible, and writes it.
__device__ __forceinline__ void write_seen(const ProjectFwd& args, int64_t i, const Seen& seen) {
  bool visible = seen.visible;
  Vec3<float> color = {0.0f, 0.0f, 0.0f};
  if (visible) {
    const Vec3<float> direction = direction_to(seen.mean, args.settings.camera).unit;
    color = shade(args.gaussians, args.settings.sh_degree, direction, i);
    visible = is_finite(color.x + color.y + color.z);
  }
  const auto shown = [&](float x) { return select(visible, x, 0.0f); };
  args.means2d[2 * i] = shown(seen.image.x);
  args.means2d[2 * i + 1] = shown(seen.image.y);
  store3(args.conics, i, {shown(seen.conic.x), shown(seen.conic.y), shown(seen.conic.z)});
  args.depths[i] = shown(seen.depth);
  args.opacities[i] = shown(seen.opacity);
  store3(args.colors, i,
         {maximum(shown(color.x), 0.0f), maximum(shown(color.y), 0.0f),
          maximum(shown(color.z), 0.0f)});
  args.radii[2 * i] = static_cast<int32_t>(shown(seen.radii.x));
  args.radii[2 * i + 1] = static_cast<int32_t>(shown(seen.radii.y));
}

template <CameraModel model>
__global__ void __launch_bounds__(kThreads) project_fwd_kernel(ProjectFwd args) {
  const int64_t i = global_index();
  if (i < args.gaussians.num) write_seen(args, i, look_at<model>(args, i));
}

// The rows of a block that have steps to make up for.
struct LateRows {
  AdamRate history[kMostLateSteps];
  int num;
  uint8_t row[kThreads];   // in the block
  int32_t done[kThreads];  // steps
};

// The same, but what is visible first makes the steps of its shN that it has yet to make: a thread
// finds whether its Gaussian is, and then the block takes the late rows' numbers in the order in
// which they lie in memory.
template <CameraModel model>
__global__ void __launch_bounds__(kThreads)
    project_lazy_kernel(ProjectFwd args, const __grid_constant__ LateSteps late) {
  __shared__ LateRows rows;
  const int64_t i = global_index(), first = i - threadIdx.x;
  const int end = made_steps(late);
  copy_history(late, rows.history);
  if (threadIdx.x == 0) rows.num = 0;
  __syncthreads();
  Seen seen = {};
  if (i < args.gaussians.num) seen = look_at<model>(args, i);
  if (seen.visible && late.steps_done[i] < end) {
    const int place = atomicAdd(&rows.num, 1);  // their order changes nothing
    rows.row[place] = static_cast<uint8_t>(threadIdx.x);
    rows.done[place] = late.steps_done[i];
    late.steps_done[i] = end;
  }
  __syncthreads();
  for (int j = threadIdx.x; j < rows.num * late.used; j += kThreads) {
    const int place = j / late.used;
    const int64_t at = (first + rows.row[place]) * late.stride + j % late.used;
    catch_up(late, rows.history, at, rows.done[place], end);
  }
  __syncthreads();
  if (i < args.gaussians.num) write_seen(args, i, seen);
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

// Writes a number, or adds it to what is there.
template <bool adds>
__device__ __forceinline__ void put(float* p, float x) {
  *p = adds ? *p + x : x;
}

template <bool adds>
__device__ __forceinline__ void put3(float* p, int64_t i, Vec3<float> v) {
  put<adds>(p + 3 * i, v.x);
  put<adds>(p + 3 * i + 1, v.y);
  put<adds>(p + 3 * i + 2, v.z);
}

template <CameraModel model, bool adds>
__global__ void __launch_bounds__(kThreads) project_bwd_kernel(ProjectBwd args) {
  const int64_t i = global_index();
  if (i >= args.gaussians.num) return;
  if (args.radii[2 * i] <= 0) {
    if constexpr (!adds) zero_rows(args, i);
    return;
  }
  float basis[kMaxCoefficients];
  Vec3<float> v_color;
  const GaussianValues<float> v = gaussian_vjp<model>(args, i, basis, v_color);
  put3<adds>(args.v_means, i, v.mean);
  put3<adds>(args.v_scales, i, v.scales);
  put<adds>(args.v_quats + 4 * i, v.quat.w);
  put<adds>(args.v_quats + 4 * i + 1, v.quat.x);
  put<adds>(args.v_quats + 4 * i + 2, v.quat.y);
  put<adds>(args.v_quats + 4 * i + 3, v.quat.z);
  put<adds>(args.v_opacities + i, v.opacity);
  put3<adds>(args.v_sh0, i, basis[0] * v_color);
  if (args.v_shN == nullptr) return;
  const int num = num_coefficients(args.settings.sh_degree), num_rest = args.gaussians.num_rest;
  SPLAT_UNROLL
  for (int k = 1; k < kMaxCoefficients; ++k) {
    if (k < num) put3<adds>(args.v_shN, i * num_rest + k - 1, basis[k] * v_color);
  }
  if constexpr (!adds) {
    for (int k = num - 1; k < num_rest; ++k) zero_row(args.v_shN, 3, i * num_rest + k);
  }
}

}  // namespace

void project_fwd(const ProjectFwd& args, Stream stream) {
  launch_for_model(
      "project_fwd", args.settings.camera.model, project_fwd_kernel<CameraModel::kPinhole>,
      project_fwd_kernel<CameraModel::kOrtho>, project_fwd_kernel<CameraModel::kFisheye>,
      blocks_for(args.gaussians.num), kThreads, stream, args);
}

void project_lazy(const ProjectFwd& args, const SettleAdam& late, const StepGate& last,
                  Stream stream) {
  launch_for_model(
      "project_lazy", args.settings.camera.model, project_lazy_kernel<CameraModel::kPinhole>,
      project_lazy_kernel<CameraModel::kOrtho>, project_lazy_kernel<CameraModel::kFisheye>,
      blocks_for(args.gaussians.num), kThreads, stream, args, late_steps_of(late, last));
}

void project_bwd(const ProjectBwd& args, Stream stream) {
  launch_for_model("project_bwd", args.settings.camera.model,
                   project_bwd_kernel<CameraModel::kPinhole, false>,
                   project_bwd_kernel<CameraModel::kOrtho, false>,
                   project_bwd_kernel<CameraModel::kFisheye, false>, blocks_for(args.gaussians.num),
                   kThreads, stream, args);
}

void project_bwd_add(const ProjectBwd& sums, Stream stream) {
  launch_for_model("project_bwd_add", sums.settings.camera.model,
                   project_bwd_kernel<CameraModel::kPinhole, true>,
                   project_bwd_kernel<CameraModel::kOrtho, true>,
                   project_bwd_kernel<CameraModel::kFisheye, true>, blocks_for(sums.gaussians.num),
                   kThreads, stream, sums);
}

}  // namespace splat::cuda
