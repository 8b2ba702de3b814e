// Who is left out of a step, one thread each.
#include "../dropout.h"
#include "launch.cuh"

namespace splat::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) drop_out_kernel(DropOut args) {
  const int64_t i = global_index();
  if (i >= args.num) return;
  args.shown[i] = is_left_out(args, i) ? kLeftOut : raised_logit(args.opacities[i], args.gain);
}

}  // namespace

void drop_out(const DropOut& args, void* stream) {
  launch("drop_out", drop_out_kernel, blocks_for(args.num), kThreads, stream, args);
}

}  // namespace splat::cuda
