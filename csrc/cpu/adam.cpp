#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kGaussiansATask = 1024;

// Room for the gradients of a chunk of Gaussians, tensor by tensor.
struct ChunkGradients {
  float numbers[kAdamChunk * kFloatsOfGaussian];
  AdamGradients tensors;

  ChunkGradients() {
    float* free = numbers;
    for (int k = 0; k < kNumTensors; ++k) {
      tensors.of[k] = free;
      free += kAdamChunk * kColumns[k];
    }
  }

  ChunkGradients(const ChunkGradients&) = delete;

  // Lets the way back of a projection write here, from the first row on.
  void take(ProjectBwd& bwd) const {
    float** outputs[] = {&bwd.v_means,     &bwd.v_quats, &bwd.v_scales,
                         &bwd.v_opacities, &bwd.v_sh0,   &bwd.v_shN};
    for (int k = 0; k < kNumTensors; ++k) *outputs[k] = tensors.of[k];
    if (bwd.settings.sh_degree == 0) bwd.v_shN = nullptr;
  }
};

// What a view has of a chunk of Gaussians, row by row; of those out of sight zeros.
struct ChunkRows {
  int32_t radii[2 * kAdamChunk] = {};
  float means2d[2 * kAdamChunk] = {}, conics[3 * kAdamChunk] = {}, depths[kAdamChunk] = {};
  float opacities[kAdamChunk] = {}, v_colors[3 * kAdamChunk] = {}, colors[3 * kAdamChunk] = {};

  // Returns whether the view shows any of them.
  bool read(const ViewRows& view, int64_t begin, int64_t num) {
    bool any = false;
    for (int64_t i = 0; i < num; ++i) {
      const int64_t place = view.places[begin + i];
      if (place < 0) continue;
      any = true;
      const float* v = view.v + place * view.stride;
      radii[2 * i] = radii[2 * i + 1] = 1;
      std::copy_n(v, 2, means2d + 2 * i);
      std::copy_n(v + 2, 3, conics + 3 * i);
      depths[i] = v[5];
      opacities[i] = v[6];
      std::copy_n(v + 7, 3, v_colors + 3 * i);
      std::copy_n(view.colors + 3 * place, 3, colors + 3 * i);
    }
    return any;
  }

  void give(ProjectBwd& bwd) const {
    bwd.radii = radii;
    bwd.colors = colors;
    bwd.v_means2d = means2d;
    bwd.v_conics = conics;
    bwd.v_depths = depths;
    bwd.v_out_opacities = opacities;
    bwd.v_colors = v_colors;
  }
};

GaussianArrays gaussians_from(GaussianArrays g, int64_t begin, int64_t num) {
  const int64_t rest = g.num_rest;
  return {g.means + 3 * begin,
          g.quats + 4 * begin,
          g.scales + 3 * begin,
          g.opacities + begin,
          g.sh0 + 3 * begin,
          g.shN + 3 * rest * begin,
          num,
          g.num_rest};
}

// The step of `num` Gaussians from `begin` on alone, which are its first then.
ProjectAdam step_from(const ProjectAdam& whole, int64_t begin, int64_t num) {
  ProjectAdam step = whole;
  step.projection.gaussians = gaussians_from(whole.projection.gaussians, begin, num);
  for (int k = 0; k < kNumTensors; ++k) {
    const int64_t columns = k == kShN ? 3 * whole.projection.gaussians.num_rest : kColumns[k];
    AdamTensor& t = step.tensors[k];
    t = {t.param + columns * begin, t.exp_avg + columns * begin, t.exp_avg_sq + columns * begin};
  }
  return step;
}

// Adds the gradients of the rows in sight to `sums`, and notes who that was.
void add_rows(const ProjectBwd& bwd, const ChunkGradients& parts, ChunkGradients& sums,
              int32_t* seen) {
  const int64_t rest = bwd.settings.sh_degree > 0 ? 3 * bwd.gaussians.num_rest : 0;
  for (int64_t i = 0; i < bwd.gaussians.num; ++i) {
    if (!(bwd.radii[2 * i] > 0)) continue;
    seen[2 * i] = 1;
    for (int k = 0; k < kNumTensors; ++k) {
      const int64_t columns = k == kShN ? rest : kColumns[k];
      float* sum = sums.tensors.of[k] + i * columns;
      const float* part = parts.tensors.of[k] + i * columns;
      for (int64_t c = 0; c < columns; ++c) sum[c] += part[c];
    }
  }
}

void step_views(const ViewsAdam& args, int64_t begin, int64_t num) {
  ProjectAdam step = step_from(args.step, begin, num);
  ChunkGradients sums, parts;
  std::fill_n(sums.numbers, kAdamChunk * kFloatsOfGaussian, 0.0f);
  int32_t seen[2 * kAdamChunk] = {};
  for (int j = 0; j < args.num_views; ++j) {
    ChunkRows rows;
    if (!rows.read(args.views[j], begin, num)) continue;
    ProjectBwd bwd = step.projection;
    bwd.settings = args.views[j].settings;
    rows.give(bwd);
    parts.take(bwd);
    lanes().project_bwd(bwd, 0, num);
    add_rows(bwd, parts, sums, seen);
  }
  // Without `visible_only` all rows make the step, those of shN, too.
  if (!step.visible_only) std::fill_n(seen, 2 * kAdamChunk, 1);
  step.projection.radii = seen;
  lanes().adam_rows(step, sums.tensors, 0, num);
}

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
    ChunkGradients grads;
    ProjectBwd bwd = args.projection;
    grads.take(bwd);
    bwd.v_begin = begin;
    lanes().project_bwd(bwd, begin, end);
    lanes().adam_rows(args, grads.tensors, begin, end);
  };
  parallel_ranges(num_threads, args.projection.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; i += kAdamChunk) {
                      step_chunk(i, std::min(i + kAdamChunk, end));
                    }
                  });
}

void project_adam_views(const ViewsAdam& args, int num_threads) {
  parallel_ranges(num_threads, args.step.projection.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; i += kAdamChunk) {
                      step_views(args, i, std::min(kAdamChunk, end - i));
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
