// Projection and shading, one thread a Gaussian, and the gradients.
#include "block_gradients.cuh"
#include "late.cuh"

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

// Writes a tensor of `columns` numbers a Gaussian, the block's first Gaussian being `begin`; or
// adds those in sight to what is there.
template <int columns, bool adds>
__device__ void write_small(float* p, const float* grads, const VisibleRows& visible, int64_t begin,
                            int num_rows) {
  p += begin * columns;
  if constexpr (adds) {
    for (int j = threadIdx.x; j < visible.num * columns; j += kRows) {
      const int at = visible.rows[j / columns] * columns + j % columns;
      p[at] += grads[at];
    }
  } else {
    for (int j = threadIdx.x; j < num_rows * columns; j += kRows) p[j] = grads[j];
  }
}

template <bool adds>
__device__ void write_shN(const ProjectBwd& args, const BlockGradients& grads,
                          const VisibleRows& visible, int64_t begin, int num_rows) {
  const int stride = static_cast<int>(3 * args.gaussians.num_rest);
  const int moving = 3 * num_coefficients(args.settings.sh_degree) - 3;
  float* p = args.v_shN + begin * stride;
  if (adds && moving == 0) return;
  const int columns = adds ? moving : stride;
  const ByColumns division = by_columns(columns);
  const int num = (adds ? visible.num : num_rows) * columns;
  for (int j = threadIdx.x; j < num; j += kRows) {
    const int number = division.row(j), column = j - number * columns;
    if constexpr (adds) {
      const int row = visible.rows[number];
      p[row * stride + column] += grads.of_shN(row, column);
    } else {
      p[j] = column < moving ? grads.of_shN(number, column) : 0.0f;
    }
  }
}

template <CameraModel model, bool adds>
__global__ void __launch_bounds__(kRows) project_bwd_kernel(ProjectBwd args) {
  __shared__ BlockGradients grads;
  __shared__ VisibleRows visible;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t left = args.gaussians.num - begin;
  const int num_rows = left < kRows ? static_cast<int>(left) : kRows;
  const int row = threadIdx.x;
  if (row < num_rows) put_row(grads, row, row_gradients<model>(args, begin + row));
  list_visible(grads.visible, num_rows, visible);
  write_small<3, adds>(args.v_means, grads.means, visible, begin, num_rows);
  write_small<4, adds>(args.v_quats, grads.quats, visible, begin, num_rows);
  write_small<3, adds>(args.v_scales, grads.scales, visible, begin, num_rows);
  write_small<1, adds>(args.v_opacities, grads.opacities, visible, begin, num_rows);
  write_small<3, adds>(args.v_sh0, grads.sh0, visible, begin, num_rows);
  if (args.v_shN != nullptr) write_shN<adds>(args, grads, visible, begin, num_rows);
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
                   project_bwd_kernel<CameraModel::kFisheye, false>,
                   blocks_for(args.gaussians.num, kRows), kRows, stream, args);
}

void project_bwd_add(const ProjectBwd& sums, Stream stream) {
  launch_for_model("project_bwd_add", sums.settings.camera.model,
                   project_bwd_kernel<CameraModel::kPinhole, true>,
                   project_bwd_kernel<CameraModel::kOrtho, true>,
                   project_bwd_kernel<CameraModel::kFisheye, true>,
                   blocks_for(sums.gaussians.num, kRows), kRows, stream, sums);
}

}  // namespace splat::cuda
