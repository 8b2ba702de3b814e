// How wrong the drawn depths are at known points: every block adds up what its points say, one
// block all that. A photo shows some thousand of them.
#include "../depth.h"
#include "block_sum.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

// Every thread has it.
__device__ DepthErrorSum block_total(const DepthErrorSum& own) {
  DepthErrorSum total;
  total.wrong = block_sum(own.wrong);
  total.counted = block_sum(own.counted);
  return total;
}

__global__ void __launch_bounds__(kThreads)
    depth_parts_kernel(DepthError args, DepthErrorSum* parts) {
  const int64_t i = global_index();
  const DepthErrorSum own = i < args.num ? depth_error_of(args, i) : DepthErrorSum{};
  const DepthErrorSum total = block_total(own);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    depth_total_kernel(DepthError args, const DepthErrorSum* parts, int64_t num_parts) {
  DepthErrorSum own = {};
  for (int64_t i = threadIdx.x; i < num_parts; i += kThreads) own = own + parts[i];
  const DepthErrorSum total = block_total(own);
  if (threadIdx.x == 0) write_depth_error(args, total);
}

__global__ void __launch_bounds__(kThreads) depth_zeros_kernel(DepthErrorGradient args) {
  const int64_t i = global_index();
  if (i < args.num_pixels) args.v_alpha[i] = args.v_depth_sum[i] = 0.0f;
}

__global__ void __launch_bounds__(kThreads) depth_sides_kernel(DepthErrorGradient args) {
  const int64_t i = global_index();
  if (i >= args.num || args.codes[i] < 0) return;
  const int64_t pixel = args.codes[i] / 3;
  atomicAdd(&args.v_alpha[pixel], side_of(args.codes[i]));
  args.first[i] = atomicAdd(&args.v_depth_sum[pixel], 1.0f) == 0.0f;
}

__global__ void __launch_bounds__(kThreads) depth_gradients_kernel(DepthErrorGradient args) {
  const int64_t i = global_index();
  if (i < args.num) write_depth_gradients(args, i);
}

}  // namespace

int64_t depth_error_scratch(int64_t num) {
  return static_cast<int64_t>(sizeof(DepthErrorSum)) * blocks_for(num);
}

void depth_error(const DepthError& args, void* scratch, void* stream) {
  const int64_t num_parts = blocks_for(args.num);
  auto* parts = static_cast<DepthErrorSum*>(scratch);
  launch("depth_error_parts", depth_parts_kernel, num_parts, kThreads, stream, args, parts);
  launch("depth_error_total", depth_total_kernel, 1, kThreads, stream, args, parts, num_parts);
}

void depth_error_bwd(const DepthErrorGradient& args, void* stream) {
  const int64_t blocks = blocks_for(args.num);
  launch("depth_zeros", depth_zeros_kernel, blocks_for(args.num_pixels), kThreads, stream, args);
  launch("depth_sides", depth_sides_kernel, blocks, kThreads, stream, args);
  launch("depth_gradients", depth_gradients_kernel, blocks, kThreads, stream, args);
}

}  // namespace splat::cuda
