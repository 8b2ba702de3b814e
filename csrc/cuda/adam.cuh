// How Adam moves one number: every kernel that does so goes through `advance`.
#pragma once

#include "../kernels.h"
#include "launch.cuh"

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

__device__ __forceinline__ void advance(const AdamTensor& t, int64_t i, const Decay& r,
                                        AdamRate rate, float grad) {
  const float m = multiply_add(r.beta1, t.exp_avg[i], r.rest1 * grad);
  const float v = multiply_add(r.beta2, t.exp_avg_sq[i], r.rest2 * grad * grad);
  t.exp_avg[i] = m;
  t.exp_avg_sq[i] = v;
  t.param[i] -= rate.size * m / multiply_add(sqrtf(v), rate.root, r.eps);
}

}  // namespace splat::cuda
