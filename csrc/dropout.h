// Gaussians that a step leaves out at random: the opacities with which it draws them all.
#pragma once

#include <cstdint>

#include "gaussian.h"

namespace splat {

constexpr float kLeastRaised = 1e-8f, kMostRaised = 0.999f;
constexpr float kLeftOut = -20.0f;  // the logit of an opacity that nothing draws

struct DropOut {
  const float* opacities;  // [N] logits
  const int64_t* keys;     // [N] by which chance knows each
  int64_t num;
  uint64_t seed, limit;  // left out is who draws a number of 32 bits below the limit
  float gain;            // what multiplies the opacities of those that stay
  float* shown;          // [N] logits
};

// A number of 32 bits that follows from key and seed alone.
SPLAT_HD uint64_t drawn_number(uint64_t key, uint64_t seed) {
  uint64_t bits = (key ^ seed) * 0x9E3779B97F4A7C15u;
  bits ^= bits >> 32;
  bits *= 0xC4CEB9FE1A85EC53u;
  return bits >> 32;
}

SPLAT_HD bool is_left_out(const DropOut& args, int64_t i) {
  return drawn_number(static_cast<uint64_t>(args.keys[i]), args.seed) < args.limit;
}

// The logit of an opacity that is raised because others are left out.
template <typename F>
SPLAT_HD F raised_logit(F logit, float gain) {
  const F one = constant<F>(1.0f), opacity = opacity_of(logit) * constant<F>(gain);
  const F raised = minimum(maximum(opacity, constant<F>(kLeastRaised)), constant<F>(kMostRaised));
  return natural_log(raised / (one - raised));
}

namespace cpu {

void drop_out(const DropOut& args, int num_threads);

}  // namespace cpu

namespace cuda {

void drop_out(const DropOut& args, void* stream);

}  // namespace cuda
}  // namespace splat
