#include "../pose.h"

#include <algorithm>
#include <vector>

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kGaussiansATask = 4096;

}  // namespace

void pose_gradient(const PoseGradient& args, double* out, int num_threads) {
  std::vector<Twist> parts((args.num + kGaussiansATask - 1) / kGaussiansATask);
  parallel_for(num_threads, static_cast<int64_t>(parts.size()), [&](int64_t task) {
    Twist sum = {};
    const int64_t end = std::min(args.num, (task + 1) * kGaussiansATask);
    for (int64_t i = task * kGaussiansATask; i < end; ++i) sum = sum + twist_of(args, i);
    parts[task] = sum;
  });
  Twist total = {};
  for (const Twist& part : parts) total = total + part;
  write_twist(args, total, out);
}

}  // namespace splat::cpu
