#include <algorithm>

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

void project_bwd_add(const ProjectBwd& sums, int num_threads) {
  float* const totals[kNumTensors] = {sums.v_means,     sums.v_quats, sums.v_scales,
                                      sums.v_opacities, sums.v_sh0,   sums.v_shN};
  const bool with_rest = sums.settings.sh_degree > 0;
  const auto add_chunk = [&](int64_t begin, int64_t end) {
    float scratch[kAdamChunk * kFloatsOfGaussian];
    float* parts[kNumTensors];
    float* free = scratch;
    for (int k = 0; k < kNumTensors; ++k) {
      parts[k] = free;
      free += kAdamChunk * kColumns[k];
    }
    ProjectBwd bwd = sums;
    bwd.v_begin = begin;
    bwd.v_means = parts[0];
    bwd.v_quats = parts[1];
    bwd.v_scales = parts[2];
    bwd.v_opacities = parts[3];
    bwd.v_sh0 = parts[4];
    bwd.v_shN = with_rest ? parts[kShN] : nullptr;
    lanes().project_bwd(bwd, begin, end);
    for (int k = 0; k < (with_rest ? kNumTensors : kShN); ++k) {
      const int64_t columns = k == kShN ? 3 * sums.gaussians.num_rest : kColumns[k];
      for (int64_t i = begin; i < end; ++i) {
        if (!(sums.radii[2 * i] > 0)) continue;
        float* total = totals[k] + i * columns;
        const float* part = parts[k] + (i - begin) * columns;
        for (int64_t c = 0; c < columns; ++c) total[c] += part[c];
      }
    }
  };
  const auto any_visible = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (sums.radii[2 * i] > 0) return true;
    }
    return false;
  };
  parallel_ranges(num_threads, sums.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; i += kAdamChunk) {
                      const int64_t stop = std::min(i + kAdamChunk, end);
                      if (any_visible(i, stop)) add_chunk(i, stop);
                    }
                  });
}

}  // namespace splat::cpu
