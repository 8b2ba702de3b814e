#include "../dropout.h"

#include "lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kGaussiansATask = 4096;

}  // namespace

void drop_out(const DropOut& args, int num_threads) {
  parallel_ranges(num_threads, args.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) { lanes().drop_out(args, begin, end); });
}

}  // namespace splat::cpu
