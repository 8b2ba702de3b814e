#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kGaussiansATask = 1024;

}  // namespace

void adam_step(const Adam& args, int num_threads) {
  const AdamSettings settings = {args.beta1, args.beta2, args.eps};
  const AdamPass pass = {{args.param, args.exp_avg, args.exp_avg_sq},
                         args.grad,
                         settings,
                         adam_rate(settings, args.lr, args.step)};
  parallel_ranges(num_threads, args.num, 1 << 15,
                  [&](int64_t begin, int64_t end) { lanes().adam(pass, begin, end); });
}

void project_adam(const ProjectAdam& args, int num_threads) {
  const auto step_chunk = [&](int64_t begin, int64_t end) {
    float scratch[kAdamChunk * kFloatsOfGaussian];
    AdamGradients grads;
    ProjectBwd bwd = args.projection;
    float** outputs[] = {&bwd.v_means,     &bwd.v_quats, &bwd.v_scales,
                         &bwd.v_opacities, &bwd.v_sh0,   &bwd.v_shN};
    float* free = scratch;
    for (int k = 0; k <= kShN; ++k) {
      grads.of[k] = *outputs[k] = free;
      free += kAdamChunk * kColumns[k];
    }
    if (args.projection.settings.sh_degree == 0) bwd.v_shN = nullptr;
    bwd.v_begin = begin;
    lanes().project_bwd(bwd, begin, end);
    lanes().adam_rows(args, grads, begin, end);
  };
  parallel_ranges(num_threads, args.projection.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; i += kAdamChunk) {
                      step_chunk(i, std::min(i + kAdamChunk, end));
                    }
                  });
}

void flush_lazy_adam(const SettleAdam& args, int num_threads) {
  parallel_ranges(num_threads, args.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) { lanes().settle_rows(args, begin, end); });
}

void count_seen(const SeenCounts& args, int num_threads) {
  parallel_ranges(num_threads, args.num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t x = args.radii[2 * i], y = args.radii[2 * i + 1];
      if (!(x > 0 && y > 0)) continue;
      const float gx = args.gradients2d[2 * i] * args.scale_x;
      const float gy = args.gradients2d[2 * i + 1] * args.scale_y;
      args.grad2d[i] += std::sqrt(gx * gx + gy * gy);
      args.visible[i] += 1.0f;
      if (args.radius2d == nullptr) continue;
      const float radius = static_cast<float>(std::max(x, y)) / args.longer_side;
      args.radius2d[i] = std::max(args.radius2d[i], radius);
    }
  });
}

}  // namespace splat::cpu
