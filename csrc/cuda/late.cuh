// Rows of shN make the steps that they have missed out of sight, to the bits of those who made them
// in time.
#pragma once

#include "adam.cuh"
#include "gate.cuh"

namespace splat::cuda {

// An argument of the kernels: the history is at most a kilobyte.
struct LateSteps {
  AdamTensor tensor;
  int32_t* steps_done;  // [N]
  int64_t stride;       // floats of a row
  int used;             // of these take part
  int num_steps;
  bool moves_shrink;  // see there
  Decay decay;
  StepGate last;  // of the last step
  AdamRate history[kMostLateSteps];
};

inline LateSteps late_steps_of(const SettleAdam& args, const StepGate& last) {
  LateSteps late = {args.tensor,
                    args.late.steps_done,
                    args.columns,
                    static_cast<int>(args.used_columns),
                    static_cast<int>(args.late.num_steps),
                    args.late.moves_shrink,
                    decay_of(args.settings),
                    last,
                    {}};
  for (int step = 0; step < late.num_steps; ++step) late.history[step] = args.late.history[step];
  return late;
}

// How many of the steps were made.
__device__ __forceinline__ int made_steps(const LateSteps& late) {
  return late.num_steps - (is_open(late.last) ? 0 : 1);
}

// Threads ask for different steps, which arguments of a kernel serve one after the other. For whole
// blocks; a barrier must follow.
__device__ __forceinline__ void copy_history(const LateSteps& late, AdamRate* history) {
  for (int step = threadIdx.x; step < late.num_steps; step += blockDim.x) {
    history[step] = late.history[step];
  }
}

// Lets number `i` of shN make the steps from `begin` to `end`, which had no gradient.
__device__ __forceinline__ void catch_up(const LateSteps& late, const AdamRate* history, int64_t i,
                                         int begin, int end) {
  AdamNumber n = load_number(late.tensor, i);
  if (n.exp_avg == 0.0f && n.exp_avg_sq == 0.0f) return;
  bool moves = true;
  for (int step = begin; step < end; ++step) {
    const float before = n.param;
    n = moves ? advanced(n, late.decay, history[step], 0.0f) : decayed(n, late.decay, 0.0f);
    // Each move is smaller than the last: the rest rounds away, too.
    if (late.moves_shrink && n.param == before) moves = false;
  }
  store_number(late.tensor, i, n);
}

}  // namespace splat::cuda
