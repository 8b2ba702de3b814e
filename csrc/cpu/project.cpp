#include "lanes.h"
#include "pool.h"

namespace splat::cpu {

constexpr int64_t kGaussiansATask = 1024;

void project_fwd(const ProjectFwd& args, int num_threads) {
  parallel_ranges(num_threads, args.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) { lanes().project_fwd(args, begin, end); });
}

void project_bwd(const ProjectBwd& args, int num_threads) {
  parallel_ranges(num_threads, args.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) { lanes().project_bwd(args, begin, end); });
}

}  // namespace splat::cpu
