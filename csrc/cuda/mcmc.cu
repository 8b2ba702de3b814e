// What the strategy mcmc does to single Gaussians, one thread each.
#include "../mcmc.h"
#include "gate.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) inject_noise_kernel(InjectNoise args, StepGate gate) {
  const int64_t i = global_index();
  if (i < args.num && is_open(gate)) inject_noise_row(args, i);
}

__global__ void __launch_bounds__(kThreads) part_kernel(Parting args) {
  const int64_t i = global_index();
  if (i < args.num) part_row(args, i);
}

}  // namespace

void inject_noise(const InjectNoise& args, const StepGate& gate, void* stream) {
  launch("inject_noise", inject_noise_kernel, blocks_for(args.num), kThreads, stream, args, gate);
}

void part(const Parting& args, void* stream) {
  launch("part", part_kernel, blocks_for(args.num), kThreads, stream, args);
}

}  // namespace splat::cuda
