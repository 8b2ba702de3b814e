// The gradient of a camera's place: every block adds up what its Gaussians say, one block all that.
#include "../pose.h"
#include "block_sum.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

constexpr int kRowsAThread = 4;  // so that adding up is not most of the work
constexpr int64_t kRowsABlock = static_cast<int64_t>(kRowsAThread) * kThreads;

// Every thread has it.
__device__ Twist block_total(const Twist& own) {
  Twist total;
  total.shift.x = block_sum(own.shift.x);
  total.shift.y = block_sum(own.shift.y);
  total.shift.z = block_sum(own.shift.z);
  total.turn.x = block_sum(own.turn.x);
  total.turn.y = block_sum(own.turn.y);
  total.turn.z = block_sum(own.turn.z);
  return total;
}

__global__ void __launch_bounds__(kThreads) parts_kernel(PoseGradient args, Twist* parts) {
  Twist own = {};
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsABlock + threadIdx.x;
  for (int row = 0; row < kRowsAThread; ++row) {
    const int64_t i = first + static_cast<int64_t>(row) * kThreads;
    if (i < args.num) own = own + twist_of(args, i);
  }
  const Twist total = block_total(own);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(PoseGradient args, const Twist* parts, int64_t num_parts, double* out) {
  Twist own = {};
  for (int64_t i = threadIdx.x; i < num_parts; i += kThreads) own = own + parts[i];
  const Twist total = block_total(own);
  if (threadIdx.x == 0) write_twist(args, total, out);
}

}  // namespace

int64_t pose_gradient_scratch(int64_t num) {
  return static_cast<int64_t>(sizeof(Twist)) * blocks_for(num, kRowsABlock);
}

void pose_gradient(const PoseGradient& args, double* out, void* scratch, void* stream) {
  const int64_t num_parts = blocks_for(args.num, kRowsABlock);
  Twist* parts = static_cast<Twist*>(scratch);
  launch("pose_parts", parts_kernel, num_parts, kThreads, stream, args, parts);
  launch("pose_total", total_kernel, 1, kThreads, stream, args, parts, num_parts, out);
}

}  // namespace splat::cuda
