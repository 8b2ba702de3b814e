#include "lanes.h"
#include "pool.h"

namespace splat::cpu {

void adam_step(const Adam& args, int num_threads) {
  parallel_ranges(num_threads, args.num, 1 << 15,
                  [&](int64_t begin, int64_t end) { lanes().adam(args, begin, end); });
}

}  // namespace splat::cpu
