// How Adam moves one number: every kernel that does so goes through `advanced`.
#pragma once

#include "../kernels.h"
#include "approximate.cuh"

namespace splat::cuda {

// The settings in float32; the differences are made in double precision, on the host.
struct Decay {
  float beta1, beta2, rest1, rest2, eps;
};

inline Decay decay_of(const AdamSettings& s) {
  return {static_cast<float>(s.beta1), static_cast<float>(s.beta2),
          static_cast<float>(1.0 - s.beta1), static_cast<float>(1.0 - s.beta2),
          static_cast<float>(s.eps)};
}

// One number and its moments, on their way through a thread.
struct AdamNumber {
  float param, exp_avg, exp_avg_sq;
};

__device__ __forceinline__ AdamNumber load_number(const AdamTensor& t, int64_t i) {
  return {t.param[i], t.exp_avg[i], t.exp_avg_sq[i]};
}

__device__ __forceinline__ void store_number(const AdamTensor& t, int64_t i, const AdamNumber& n) {
  t.exp_avg[i] = n.exp_avg;
  t.exp_avg_sq[i] = n.exp_avg_sq;
  t.param[i] = n.param;
}

// The number with the moments of the next step, not yet moved.
__device__ __forceinline__ AdamNumber decayed(const AdamNumber& n, const Decay& r, float grad) {
  return {n.param, multiply_add(r.beta1, n.exp_avg, r.rest1 * grad),
          multiply_add(r.beta2, n.exp_avg_sq, r.rest2 * grad * grad)};
}

__device__ __forceinline__ AdamNumber advanced(const AdamNumber& n, const Decay& r, AdamRate rate,
                                               float grad) {
  const AdamNumber next = decayed(n, r, grad);
  const float scale = multiply_add(square_root(next.exp_avg_sq), rate.root, r.eps);
  return {n.param - rate.size * next.exp_avg * reciprocal(scale), next.exp_avg, next.exp_avg_sq};
}

__device__ __forceinline__ void advance(const AdamTensor& t, int64_t i, const Decay& r,
                                        AdamRate rate, float grad) {
  store_number(t, i, advanced(load_number(t, i), r, rate, grad));
}

}  // namespace splat::cuda
