// The gradients of a block's Gaussians in shared memory: a thread makes those of one Gaussian, and
// then the threads of the block take its numbers in the order in which they lie in memory,
// whoever's they are.
#pragma once

#include "project.cuh"

namespace splat::cuda {

constexpr int kRows = 128;  // Gaussians, and threads, of a block
constexpr int kRest = kMaxCoefficients - 1;

// One of shN is basis * v_color: 18 numbers stand for 45.
struct BlockGradients {
  float means[kRows * 3], quats[kRows * 4], scales[kRows * 3], opacities[kRows], sh0[kRows * 3];
  float basis[kRows * kRest], v_color[kRows * 3];
  bool visible[kRows];

  __device__ __forceinline__ float of_shN(int row, int column) const {
    return basis[row * kRest + column / 3] * v_color[3 * row + column % 3];
  }
};

// What one thread has found of its Gaussian, which may be out of sight.
struct RowGradients {
  GaussianValues<float> values;
  Vec3<float> v_color;
  float basis[kMaxCoefficients];
  bool visible;
};

template <CameraModel model>
__device__ __forceinline__ RowGradients row_gradients(const ProjectBwd& args, int64_t i) {
  RowGradients found = {};
  found.visible = args.radii[2 * i] > 0;
  if (found.visible) found.values = gaussian_vjp<model>(args, i, found.basis, found.v_color);
  return found;
}

__device__ __forceinline__ void put_row(BlockGradients& out, int row, const RowGradients& found) {
  const GaussianValues<float>& v = found.values;
  out.visible[row] = found.visible;
  store3(out.means, row, v.mean);
  store3(out.scales, row, v.scales);
  out.quats[4 * row] = v.quat.w;
  out.quats[4 * row + 1] = v.quat.x;
  out.quats[4 * row + 2] = v.quat.y;
  out.quats[4 * row + 3] = v.quat.z;
  out.opacities[row] = v.opacity;
  store3(out.sh0, row, found.basis[0] * found.v_color);
  store3(out.v_color, row, found.v_color);
  for (int k = 0; k < kRest; ++k) out.basis[row * kRest + k] = found.basis[k + 1];
}

// The block's rows that are in sight, in their order.
struct VisibleRows {
  // One load, which shall not take in what is written beside it.
  alignas(16) int of_warps[kRows / kWarp];
  int num;
  uint8_t rows[kRows];
};

// For whole blocks, of which each thread has put its row. When it returns, all threads see all
// rows, and nobody needs the old parameters any more.
__device__ __forceinline__ void list_visible(const bool* visible, int num_rows, VisibleRows& out) {
  const int row = static_cast<int>(threadIdx.x), lane = row % kWarp, warp = row / kWarp;
  const bool mine = row < num_rows && visible[row];
  const unsigned seen = __ballot_sync(kAllLanes, mine);
  if (lane == 0) out.of_warps[warp] = __popc(seen);
  __syncthreads();
  int before = 0, all = 0;
  for (int other = 0; other < kRows / kWarp; ++other) {
    if (other < warp) before += out.of_warps[other];
    all += out.of_warps[other];
  }
  if (mine) out.rows[before + __popc(seen & ((1u << lane) - 1u))] = static_cast<uint8_t>(row);
  if (row == 0) out.num = all;
  __syncthreads();
}

// Divides numbers of a block, below kRows * 3 * kRest, by a number of columns that is known late:
// an integer division takes twenty instructions.
struct ByColumns {
  static constexpr int kShift = 20;
  int factor;

  __device__ __forceinline__ int row(int number) const { return (number * factor) >> kShift; }
};
static_assert(int64_t{kRows} * ((1 << ByColumns::kShift) + 3 * kRest) < int64_t{1} << 31 &&
                  kRows * 3 * kRest * 3 * kRest < 1 << ByColumns::kShift,
              "exact, and in 32 bits");

__device__ __forceinline__ ByColumns by_columns(int columns) {
  return {(1 << ByColumns::kShift) / columns + 1};
}

}  // namespace splat::cuda
