// What the strategy mcmc does to single Gaussians, one thread each.
#include "../mcmc.h"
#include "gate.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) tremble_kernel(Tremble args, StepGate gate) {
  const int64_t i = global_index();
  if (i < args.num && is_open(gate)) tremble_row(args, i);
}

__global__ void __launch_bounds__(kThreads) part_kernel(Parting args) {
  const int64_t i = global_index();
  if (i < args.num) part_row(args, i);
}

}  // namespace

void tremble(const Tremble& args, const StepGate& gate, void* stream) {
  launch("tremble", tremble_kernel, blocks_for(args.num), kThreads, stream, args, gate);
}

void part(const Parting& args, void* stream) {
  launch("part", part_kernel, blocks_for(args.num), kThreads, stream, args);
}

}  // namespace splat::cuda
