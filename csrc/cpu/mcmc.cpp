#include "../mcmc.h"

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kGaussiansATask = 4096;

}  // namespace

void inject_noise(const InjectNoise& args, int num_threads) {
  parallel_ranges(num_threads, args.num, kGaussiansATask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) inject_noise_row(args, i);
  });
}

void part(const Parting& args, int num_threads) {
  parallel_ranges(num_threads, args.num, kGaussiansATask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) part_row(args, i);
  });
}

}  // namespace splat::cpu
