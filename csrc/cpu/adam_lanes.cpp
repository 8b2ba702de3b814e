// Adam, eight values at a time.
//
// Every way of updating a value (all rows at once, row by row, several steps made up for at once)
// goes through `advance`, and lanes do not mix: the result is the same to the last bit.
#include <cfloat>
#include <cstring>

#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../gaussian.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

struct Rates {
  F8 beta1, beta2, rest1, rest2, eps;
};

Rates rates_of(const AdamSettings& s) {
  const auto all = [](double x) { return constant<F8>(static_cast<float>(x)); };
  return {all(s.beta1), all(s.beta2), all(1.0 - s.beta1), all(1.0 - s.beta2), all(s.eps)};
}

struct Moments {
  F8 param, exp_avg, exp_avg_sq;
};

SPLAT_LANES Moments advance(const Rates& r, AdamRate rate, Moments x, F8 grad) {
  F8 m = multiply_add(r.beta1, x.exp_avg, r.rest1 * grad);
  const F8 v = multiply_add(r.beta2, x.exp_avg_sq, r.rest2 * grad * grad);
  // What lies below the smallest normal number moves nothing, but would make the arithmetic slow.
  m = select(magnitude(m) < constant<F8>(FLT_MIN), constant<F8>(0.0f), m);
  const F8 root = multiply_add(square_root(v), constant<F8>(rate.root), r.eps);
  return {x.param - constant<F8>(rate.size) * m / root, m, v};
}

SPLAT_LANES bool all_zero(F8 a, F8 b) { return lane_bits(((I8)a | (I8)b) != 0) == 0; }

// The steps [begin, end) of the history without a gradient.
SPLAT_LANES Moments make_up(const Rates& r, const AdamRate* history, int64_t begin, int64_t end,
                            bool moves_shrink, Moments x) {
  if (all_zero(x.exp_avg, x.exp_avg_sq)) return x;
  const F8 zero = constant<F8>(0.0f);
  int64_t step = begin;
  for (; step < end; ++step) {
    const F8 before = x.param;
    x = advance(r, history[step], x, zero);
    if (!moves_shrink || lane_bits(x.param != before) != 0) continue;
    // Each move is smaller than the last: the rest rounds away too.
    for (++step; step < end; ++step) {
      x.exp_avg = multiply_add(r.beta1, x.exp_avg, zero);
      x.exp_avg_sq = multiply_add(r.beta2, x.exp_avg_sq, zero);
      x.exp_avg = select(magnitude(x.exp_avg) < constant<F8>(FLT_MIN), zero, x.exp_avg);
    }
    return x;
  }
  return x;
}

struct Row {
  float *param, *exp_avg, *exp_avg_sq;
  int64_t num;

  Row(const AdamTensor& t, int64_t at, int64_t num)
      : param(t.param + at), exp_avg(t.exp_avg + at), exp_avg_sq(t.exp_avg_sq + at), num(num) {}

  SPLAT_LANES Moments load(int64_t i) const {
    return {load8(param + i), load8(exp_avg + i), load8(exp_avg_sq + i)};
  }

  SPLAT_LANES void store(int64_t i, const Moments& x) const {
    store8(param + i, x.param);
    store8(exp_avg + i, x.exp_avg);
    store8(exp_avg_sq + i, x.exp_avg_sq);
  }

  // Replaces the values by update(values, i), eight at a time from i on. The last eight may overlap
  // with others: they are updated from what was there before, twice to the same result.
  template <typename Update>
  SPLAT_LANES void each(const Update& update) const {
    if (num < kLanes) {
      Moments x = {};
      const size_t size = sizeof(float) * num;
      std::memcpy(&x.param, param, size);
      std::memcpy(&x.exp_avg, exp_avg, size);
      std::memcpy(&x.exp_avg_sq, exp_avg_sq, size);
      x = update(x, 0);
      std::memcpy(param, &x.param, size);
      std::memcpy(exp_avg, &x.exp_avg, size);
      std::memcpy(exp_avg_sq, &x.exp_avg_sq, size);
      return;
    }
    const int64_t last = num - kLanes;
    const Moments end = num % kLanes != 0 ? update(load(last), last) : Moments{};
    for (int64_t i = 0; i + kLanes <= num; i += kLanes) store(i, update(load(i), i));
    if (num % kLanes != 0) store(last, end);
  }
};

SPLAT_LANES F8 load_some(const float* p, int64_t num) {
  if (num >= kLanes) return load8(p);
  F8 x = {};
  std::memcpy(&x, p, sizeof(float) * num);
  return x;
}

SPLAT_LANES void step_row(const Rates& r, AdamRate rate, const Row& row, const float* grad) {
  row.each([&](const Moments& x, int64_t i) {
    return advance(r, rate, x, load_some(grad + i, row.num - i));
  });
}

// The same for those rows of `columns` values alone that are marked.
SPLAT_LANES void step_marked(const Rates& r, AdamRate rate, const Row& rows, const float* grad,
                             const float* marks, int64_t columns) {
  rows.each([&](const Moments& x, int64_t i) {
    F8 mark;
    for (int k = 0; k < kLanes; ++k) mark[k] = i + k < rows.num ? marks[(i + k) / columns] : 0.0f;
    const I8 moves = mark != 0.0f;
    const Moments y = advance(r, rate, x, load_some(grad + i, rows.num - i));
    return Moments{select(moves, y.param, x.param), select(moves, y.exp_avg, x.exp_avg),
                   select(moves, y.exp_avg_sq, x.exp_avg_sq)};
  });
}

static_assert(kAdamChunk % kLanes == 0, "the gradients have room for whole vectors");

// Adds weight * slope(param) to the gradients of `num` values.
template <typename Slope>
SPLAT_LANES void regularize(const float* param, float* grad, int64_t num, float weight,
                            const Slope& slope) {
  if (weight == 0) return;
  for (int64_t i = 0; i < num; i += kLanes) {
    const F8 more = constant<F8>(weight) * slope(load_some(param + i, num - i));
    const F8 sum = load_some(grad + i, num - i) + more;
    store8(grad + i, sum);
  }
}

SPLAT_LANES void regularize_rows(const ProjectAdam& args, const AdamGradients& grads, int64_t begin,
                                 int64_t end) {
  const float* scales = args.tensors[kScales].param + begin * kColumns[kScales];
  const float* opacities = args.tensors[kOpacities].param + begin * kColumns[kOpacities];
  regularize(scales, grads.of[kScales], (end - begin) * kColumns[kScales],
             args.regularization.scale, [](F8 s) { return scale_of(s); });
  regularize(opacities, grads.of[kOpacities], (end - begin) * kColumns[kOpacities],
             args.regularization.opacity, [](F8 logit) {
               const F8 o = opacity_of(logit);
               return o * (constant<F8>(1.0f) - o);
             });
}

}  // namespace

void adam(const AdamPass& args, int64_t begin, int64_t end) {
  step_row(rates_of(args.settings), args.rate, Row(args.tensor, begin, end - begin),
           args.grad + begin);
}

void adam_rows(const ProjectAdam& args, const AdamGradients& grads, int64_t begin, int64_t end) {
  const Rates r = rates_of(args.settings);
  const int32_t* radii = args.projection.radii;
  regularize_rows(args, grads, begin, end);
  float visible[kAdamChunk];
  for (int64_t i = begin; i < end; ++i) visible[i - begin] = radii[2 * i] > 0 ? 1.0f : 0.0f;
  for (int k = 0; k < kShN; ++k) {
    const AdamTensor& t = args.tensors[k];
    const int64_t columns = kColumns[k];
    const Row rows(t, begin * columns, (end - begin) * columns);
    if (args.visible_only) {
      step_marked(r, args.rates[k], rows, grads.of[k], visible, columns);
    } else {
      step_row(r, args.rates[k], rows, grads.of[k]);
    }
  }
  if (args.used_columns == 0) return;
  const int64_t stride = 3 * args.projection.gaussians.num_rest;
  for (int64_t i = begin; i < end; ++i) {
    if (!(radii[2 * i] > 0)) continue;
    const Row row(args.tensors[kShN], i * stride, args.used_columns);
    const float* grad = grads.of[kShN] + (i - begin) * stride;
    step_row(r, args.rates[kShN], row, grad);
    if (args.late.steps_done != nullptr) {
      args.late.steps_done[i] = static_cast<int32_t>(args.late.num_steps);
    }
  }
}

void settle_rows(const SettleAdam& args, int64_t begin, int64_t end) {
  const Rates r = rates_of(args.settings);
  const LazyRows& late = args.late;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t done = late.steps_done[i];
    if (done == late.num_steps) continue;
    late.steps_done[i] = static_cast<int32_t>(late.num_steps);
    Row(args.tensor, i * args.columns, args.used_columns).each([&](const Moments& x, int64_t) {
      return make_up(r, late.history, done, late.num_steps, late.moves_shrink, x);
    });
  }
}

}  // namespace splat::cpu::SPLAT_ISA
