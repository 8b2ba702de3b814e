// Adam, one thread a number, and what a strategy counts, one thread a Gaussian.
#include "adam.cuh"
#include "gate.cuh"
#include "late.cuh"

namespace splat::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamTensor tensor, const float* grad, int64_t num, Decay decay, AdamRate rate) {
  const int64_t i = global_index();
  if (i < num) advance(tensor, i, decay, rate, grad[i]);
}

__global__ void __launch_bounds__(kThreads)
    adam_within_kernel(AdamTensor tensor, const float* grad, int64_t num, const uint8_t* visible,
                       int64_t width, Decay decay, AdamRate rate, StepGate gate) {
  const int64_t i = global_index();
  if (i >= num || !is_open(gate)) return;
  if (visible == nullptr || visible[i / width] != 0) advance(tensor, i, decay, rate, grad[i]);
}

__global__ void __launch_bounds__(kThreads) count_seen_kernel(SeenCounts args, StepGate gate) {
  const int64_t i = global_index();
  if (i >= args.num || !is_open(gate)) return;
  const int32_t x = args.radii[2 * i], y = args.radii[2 * i + 1];
  if (!(x > 0 && y > 0)) return;
  const float gx = args.gradients2d[2 * i] * args.scale_x;
  const float gy = args.gradients2d[2 * i + 1] * args.scale_y;
  args.grad2d[i] += sqrtf(gx * gx + gy * gy);
  args.visible[i] += 1.0f;
  if (args.radius2d == nullptr) return;
  const float radius = static_cast<float>(x > y ? x : y) / args.longer_side;
  args.radius2d[i] = maximum(args.radius2d[i], radius);
}

__global__ void __launch_bounds__(kThreads) flush_kernel(LateSteps late, int64_t num) {
  __shared__ AdamRate history[kMostLateSteps];
  copy_history(late, history);
  __syncthreads();
  const int64_t i = global_index();
  if (i >= num * late.used) return;
  const int64_t row = i / late.used;
  const int end = made_steps(late), begin = late.steps_done[row];
  if (begin < end) catch_up(late, history, row * late.stride + i % late.used, begin, end);
}

}  // namespace

void flush_lazy_adam(const SettleAdam& args, const StepGate& last, Stream stream) {
  launch("flush_lazy_adam", flush_kernel, blocks_for(args.num * args.used_columns), kThreads,
         stream, late_steps_of(args, last), args.num);
}

void adam_step(const Adam& args, Stream stream) {
  const AdamSettings settings = {args.beta1, args.beta2, args.eps};
  const AdamTensor tensor = {args.param, args.exp_avg, args.exp_avg_sq};
  launch("adam_step", adam_kernel, blocks_for(args.num), kThreads, stream, tensor, args.grad,
         args.num, decay_of(settings), adam_rate(settings, args.lr, args.step));
}

void adam_step_within(const Adam& args, const uint8_t* visible, int64_t width, const StepGate& gate,
                      Stream stream) {
  const AdamSettings settings = {args.beta1, args.beta2, args.eps};
  const AdamTensor tensor = {args.param, args.exp_avg, args.exp_avg_sq};
  launch("adam_step_within", adam_within_kernel, blocks_for(args.num), kThreads, stream, tensor,
         args.grad, args.num, visible, width, decay_of(settings),
         adam_rate(settings, args.lr, args.step), gate);
}

void count_seen(const SeenCounts& args, const StepGate& gate, Stream stream) {
  launch("count_seen", count_seen_kernel, blocks_for(args.num), kThreads, stream, args, gate);
}

}  // namespace splat::cuda
