// The way back of the projection and a step of Adam in one pass over all Gaussians.
#include "adam.cuh"
#include "block_gradients.cuh"
#include "gate.cuh"

namespace splat::cuda {
namespace {

// What lies out of sight has these gradients alone.
__device__ void regularize(const ProjectAdam& args, int64_t i, GaussianValues<float>& v) {
  const Regularization& weights = args.regularization;
  if (weights.scale != 0.0f) {
    const Vec3<float> s = load3(args.tensors[kScales].param, i);
    v.scales = v.scales + weights.scale * Vec3<float>{scale_of(s.x), scale_of(s.y), scale_of(s.z)};
  }
  if (weights.opacity != 0.0f) {
    const float o = opacity_of(args.tensors[kOpacities].param[i]);
    v.opacity = v.opacity + weights.opacity * (o * (1.0f - o));
  }
}

template <CameraModel model>
__device__ void make_gradients(const ProjectAdam& args, int64_t i, int row, BlockGradients& out) {
  RowGradients found = row_gradients<model>(args.projection, i);
  regularize(args, i, found.values);
  put_row(out, row, found);
}

// A thread has so many numbers under way at once: the stores of one may be to where the next is
// loaded from, for all that the compiler knows, so it would wait for each, and the memory idles
// meanwhile.
constexpr int kAtOnce = 4;

// Steps the numbers 0..num - 1 of a block. Of number j, `place` says where it lies in the tensor,
// below 0: it stays as it is, and `grad` its gradient.
template <typename Place, typename Gradient>
__device__ __forceinline__ void step_numbers(const AdamTensor& tensor, AdamRate rate,
                                             const Decay& decay, int num, const Place& place,
                                             const Gradient& grad) {
  for (int first = threadIdx.x; first < num; first += kAtOnce * kRows) {
    AdamNumber numbers[kAtOnce];
    int64_t places[kAtOnce];
    SPLAT_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int j = first + k * kRows;
      places[k] = j < num ? place(j) : -1;
      if (places[k] >= 0) numbers[k] = load_number(tensor, places[k]);
    }
    SPLAT_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      if (places[k] < 0) continue;
      store_number(tensor, places[k], advanced(numbers[k], decay, rate, grad(first + k * kRows)));
    }
  }
}

// A tensor of `columns` numbers a Gaussian, the block's first Gaussian being `begin`.
template <int columns>
__device__ void step_small(const ProjectAdam& args, int tensor, const float* grads,
                           const bool* visible, int64_t begin, int num_rows, const Decay& decay) {
  step_numbers(
      args.tensors[tensor], args.rates[tensor], decay, num_rows * columns,
      [&](int j) {
        return args.visible_only && !visible[j / columns] ? int64_t{-1} : begin * columns + j;
      },
      [&](int j) { return grads[j]; });
}

// A row out of sight stays as it is: `visible_only`, or until it is seen again (late.cuh).
__device__ void step_shN(const ProjectAdam& args, const BlockGradients& grads,
                         const VisibleRows& visible, int64_t begin, const Decay& decay) {
  const int used = static_cast<int>(args.used_columns);
  const int moving = 3 * num_coefficients(args.projection.settings.sh_degree) - 3;
  const int64_t stride = 3 * args.projection.gaussians.num_rest;
  const ByColumns division = by_columns(used);
  step_numbers(
      args.tensors[kShN], args.rates[kShN], decay, visible.num * used,
      [&](int j) {
        const int number = division.row(j);
        return (begin + visible.rows[number]) * stride + j - number * used;
      },
      [&](int j) {
        const int number = division.row(j), column = j - number * used;
        return column < moving ? grads.of_shN(visible.rows[number], column) : 0.0f;
      });
}

// A block's gradients of several views, whose sums of shN have no factors.
struct BlockSums {
  float means[kRows * 3], quats[kRows * 4], scales[kRows * 3], opacities[kRows], sh0[kRows * 3];
  float rest[kRows * 3 * kRest];
  bool visible[kRows];  // in any of the views
};

__device__ void add3(float* p, int row, Vec3<float> x) {
  p[3 * row] += x.x;
  p[3 * row + 1] += x.y;
  p[3 * row + 2] += x.z;
}

__device__ void add_gaussian(BlockSums& out, int row, const GaussianValues<float>& v) {
  add3(out.means, row, v.mean);
  add3(out.scales, row, v.scales);
  out.quats[4 * row] += v.quat.w;
  out.quats[4 * row + 1] += v.quat.x;
  out.quats[4 * row + 2] += v.quat.y;
  out.quats[4 * row + 3] += v.quat.z;
  out.opacities[row] += v.opacity;
}

struct SparseRow {
  const float* v;
  const float* colors;  // [3]

  __device__ __forceinline__ Vec2<float> v_mean2d() const { return {v[0], v[1]}; }
  __device__ __forceinline__ Vec3<float> v_conic() const { return load3(v + 2, 0); }
  __device__ __forceinline__ float v_depth() const { return v[5]; }
  __device__ __forceinline__ float v_opacity() const { return v[6]; }
  __device__ __forceinline__ Vec3<float> v_color() const { return load3(v + 7, 0); }
  __device__ __forceinline__ Vec3<float> color() const { return load3(colors, 0); }
};

template <CameraModel model>
__device__ void add_views(const ViewsAdam& args, int64_t i, int row, BlockSums& out) {
  const GaussianArrays& gaussians = args.step.projection.gaussians;
  store3(out.means, row, {});
  store3(out.scales, row, {});
  store3(out.sh0, row, {});
  for (int k = 0; k < 4; ++k) out.quats[4 * row + k] = 0.0f;
  out.opacities[row] = 0.0f;
  for (int k = 0; k < 3 * kRest; ++k) out.rest[row * 3 * kRest + k] = 0.0f;
  out.visible[row] = false;
  for (int j = 0; j < args.num_views; ++j) {
    const int32_t place = args.views[j].places[i];
    if (place < 0) continue;
    out.visible[row] = true;
    float basis[kMaxCoefficients] = {};
    Vec3<float> v_color = {0.0f, 0.0f, 0.0f};
    const ViewRows& view = args.views[j];
    const SparseRow found = {view.v + place * view.stride, view.colors + int64_t{3} * place};
    add_gaussian(out, row, gaussian_vjp<model>(gaussians, view.settings, found, i, basis, v_color));
    add3(out.sh0, row, basis[0] * v_color);
    const int num = num_coefficients(view.settings.sh_degree);
    SPLAT_UNROLL
    for (int k = 1; k < kMaxCoefficients; ++k) {
      if (k < num) add3(out.rest, row * kRest + k - 1, basis[k] * v_color);
    }
  }
  GaussianValues<float> more = {};
  regularize(args.step, i, more);
  add_gaussian(out, row, more);
}

// All rows of shN make the step; with `visible_only` those in sight.
__device__ void step_all_shN(const ProjectAdam& args, const BlockSums& sums, int64_t begin,
                             int num_rows, const Decay& decay) {
  const int used = static_cast<int>(args.used_columns);
  const int64_t stride = 3 * args.projection.gaussians.num_rest;
  const ByColumns division = by_columns(used);
  step_numbers(
      args.tensors[kShN], args.rates[kShN], decay, num_rows * used,
      [&](int j) {
        const int row = division.row(j);
        return args.visible_only && !sums.visible[row] ? int64_t{-1}
                                                       : (begin + row) * stride + j - row * used;
      },
      [&](int j) {
        const int row = division.row(j);
        return sums.rest[row * 3 * kRest + j - row * used];
      });
}

template <CameraModel model>
__global__ void __launch_bounds__(kRows)
    project_adam_views_kernel(const __grid_constant__ ViewsAdam args, Decay decay) {
  __shared__ BlockSums sums;
  const ProjectAdam& step = args.step;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t left = step.projection.gaussians.num - begin;
  const int num_rows = left < kRows ? static_cast<int>(left) : kRows;
  const int row = threadIdx.x;
  if (row < num_rows) add_views<model>(args, begin + row, row, sums);
  // From here on the parameters change: nobody may need the old ones any more.
  __syncthreads();
  step_small<3>(step, 0, sums.means, sums.visible, begin, num_rows, decay);
  step_small<4>(step, 1, sums.quats, sums.visible, begin, num_rows, decay);
  step_small<3>(step, kScales, sums.scales, sums.visible, begin, num_rows, decay);
  step_small<1>(step, kOpacities, sums.opacities, sums.visible, begin, num_rows, decay);
  step_small<3>(step, 4, sums.sh0, sums.visible, begin, num_rows, decay);
  if (step.used_columns > 0) step_all_shN(step, sums, begin, num_rows, decay);
}

static_assert(sizeof(ViewsAdam) + sizeof(Decay) <= 4096, "what a kernel takes as arguments");

// So many blocks shall find room in a multiprocessor's registers: left alone, the compiler spills
// some of a pinhole camera's to have one block more there.
constexpr int kBlocks = 5;

template <CameraModel model>
__global__ void __launch_bounds__(kRows, kBlocks)
    project_adam_kernel(ProjectAdam args, Decay decay, StepGate gate) {
  __shared__ BlockGradients grads;
  __shared__ VisibleRows visible;
  if (!is_open(gate)) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t left = args.projection.gaussians.num - begin;
  const int num_rows = left < kRows ? static_cast<int>(left) : kRows;
  const int row = threadIdx.x;
  if (row < num_rows) make_gradients<model>(args, begin + row, row, grads);
  list_visible(grads.visible, num_rows, visible);
  step_small<3>(args, 0, grads.means, grads.visible, begin, num_rows, decay);
  step_small<4>(args, 1, grads.quats, grads.visible, begin, num_rows, decay);
  step_small<3>(args, kScales, grads.scales, grads.visible, begin, num_rows, decay);
  step_small<1>(args, kOpacities, grads.opacities, grads.visible, begin, num_rows, decay);
  step_small<3>(args, 4, grads.sh0, grads.visible, begin, num_rows, decay);
  if (args.used_columns == 0) return;
  step_shN(args, grads, visible, begin, decay);
  if (args.late.steps_done != nullptr && row < num_rows && grads.visible[row]) {
    args.late.steps_done[begin + row] = static_cast<int32_t>(args.late.num_steps);
  }
}

}  // namespace

void project_adam(const ProjectAdam& args, const StepGate& gate, Stream stream) {
  const int64_t num = args.projection.gaussians.num;
  launch_for_model("project_adam", args.projection.settings.camera.model,
                   project_adam_kernel<CameraModel::kPinhole>,
                   project_adam_kernel<CameraModel::kOrtho>,
                   project_adam_kernel<CameraModel::kFisheye>, blocks_for(num, kRows), kRows,
                   stream, args, decay_of(args.settings), gate);
}

void project_adam_views(const ViewsAdam& args, Stream stream) {
  const int64_t num = args.step.projection.gaussians.num;
  launch_for_model("project_adam_views", args.views[0].settings.camera.model,
                   project_adam_views_kernel<CameraModel::kPinhole>,
                   project_adam_views_kernel<CameraModel::kOrtho>,
                   project_adam_views_kernel<CameraModel::kFisheye>, blocks_for(num, kRows), kRows,
                   stream, args, decay_of(args.step.settings));
}

}  // namespace splat::cuda
