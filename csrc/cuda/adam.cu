// Adam, one thread a number.
#include <cmath>

#include "../kernels.h"
#include "launch.cuh"

namespace splat::cuda {
namespace {

// The step's constants, made once on the host in double precision.
struct Rates {
  float beta1, beta2, rest1, rest2, rate, root, eps;
};

__global__ void __launch_bounds__(kThreads) adam_kernel(Adam args, Rates rates) {
  const int64_t i = global_index();
  if (i >= args.num) return;
  const float g = args.grad[i];
  const float m = rates.beta1 * args.exp_avg[i] + rates.rest1 * g;
  const float v = rates.beta2 * args.exp_avg_sq[i] + rates.rest2 * g * g;
  args.exp_avg[i] = m;
  args.exp_avg_sq[i] = v;
  args.param[i] -= rates.rate * m / (sqrtf(v) * rates.root + rates.eps);
}

}  // namespace

void adam_step(const Adam& args, Stream stream) {
  const double step = static_cast<double>(args.step);
  const Rates rates = {static_cast<float>(args.beta1),
                       static_cast<float>(args.beta2),
                       static_cast<float>(1.0 - args.beta1),
                       static_cast<float>(1.0 - args.beta2),
                       static_cast<float>(args.lr / (1.0 - std::pow(args.beta1, step))),
                       static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, step))),
                       static_cast<float>(args.eps)};
  launch("adam_step", adam_kernel, blocks_for(args.num), kThreads, stream, args, rates);
}

}  // namespace splat::cuda
