#include "../depth.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kPointsATask = 4096, kPixelsATask = 65536;

}  // namespace

void depth_error(const DepthError& args, int num_threads) {
  std::vector<DepthErrorSum> parts((args.num + kPointsATask - 1) / kPointsATask);
  parallel_for(num_threads, static_cast<int64_t>(parts.size()), [&](int64_t task) {
    DepthErrorSum sum = {};
    const int64_t end = std::min(args.num, (task + 1) * kPointsATask);
    for (int64_t i = task * kPointsATask; i < end; ++i) sum = sum + depth_error_of(args, i);
    parts[task] = sum;
  });
  DepthErrorSum total = {};
  for (const DepthErrorSum& part : parts) total = total + part;
  write_depth_error(args, total);
}

void depth_error_bwd(const DepthErrorGradient& args, int num_threads) {
  parallel_ranges(num_threads, args.num_pixels, kPixelsATask, [&](int64_t begin, int64_t end) {
    std::memset(args.v_alpha + begin, 0, (end - begin) * sizeof(float));
    std::memset(args.v_depth_sum + begin, 0, (end - begin) * sizeof(float));
  });
  for (int64_t i = 0; i < args.num; ++i) {
    if (args.codes[i] < 0) continue;
    const int64_t pixel = args.codes[i] / 3;
    args.first[i] = args.v_depth_sum[pixel] == 0.0f;
    args.v_depth_sum[pixel] = 1.0f;
    args.v_alpha[pixel] += side_of(args.codes[i]);
  }
  for (int64_t i = 0; i < args.num; ++i) write_depth_gradients(args, i);
}

}  // namespace splat::cpu
