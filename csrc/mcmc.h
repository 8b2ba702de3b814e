// What the strategy mcmc does to single Gaussians (Kheradmand et al. 2024, 3DGS as MCMC): noise
// that moves them, and the formula by which one is parted into equals.
#pragma once

#include <cstdint>

#include "gate.h"
#include "gaussian.h"
#include "linalg.h"

namespace splat {

// The noise falls with the opacity by a logistic curve, which is a half at `min_opacity`.
constexpr float kNoiseSteepness = 100.0f;
constexpr float kNoiseRange = 0.095f;  // above it by this much, none is made

struct InjectNoise {
  float* means;            // [N, 3]
  const float* quats;      // [N, 4]
  const float* scales;     // [N, 3] logarithms
  const float* opacities;  // [N] logits
  const int64_t* places;   // [N] whose noise each has; null: its own row's
  int64_t num;
  float amount, min_opacity;
  uint64_t seed;
};

struct Parting {
  const float* opacities;  // [M] in 0..1, of the whole
  const int64_t* copies;   // [M] how many parts there will be
  int64_t num;
  double *each, *factors;  // [M] the opacity of each part, and by what its size is multiplied
};

struct RandomBits {
  uint32_t x[4];
};

// Philox4x32-10 (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3): the bits of a
// row depend on the key and the row alone, whoever asks and in whatever order.
SPLAT_HD RandomBits random_bits(uint64_t key, uint64_t row) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  RandomBits r = {{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), 0, 0}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * r.x[0], b = uint64_t{0xCD9E8D57u} * r.x[2];
    r = {{static_cast<uint32_t>(b >> 32) ^ r.x[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ r.x[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return r;
}

// Above 0 up to 1, in steps of 2^-24.
SPLAT_HD float unit_of(uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 1.0f) * (1.0f / 16777216.0f);
}

// Three independent normal numbers (Box and Muller 1958).
SPLAT_HD Vec3<float> normal_noise(uint64_t key, uint64_t row) {
  constexpr float kTurn = 6.28318531f;
  const RandomBits r = random_bits(key, row);
  const float first = sqrtf(-2.0f * logf(unit_of(r.x[0])));
  const float second = sqrtf(-2.0f * logf(unit_of(r.x[2])));
  const float angle = kTurn * unit_of(r.x[1]);
  return {first * cosf(angle), first * sinf(angle), second * cosf(kTurn * unit_of(r.x[3]))};
}

// Moves one Gaussian by its covariance times noise; an offset that is no number is left out.
SPLAT_HD void inject_noise_row(const InjectNoise& args, int64_t i) {
  const float opacity = opacity_of(args.opacities[i]);
  // A logit that is no number has no part in it either.
  if (!(opacity < args.min_opacity + kNoiseRange && args.opacities[i] == args.opacities[i])) return;
  const float* q = args.quats + 4 * i;
  const float* s = args.scales + 3 * i;
  const Mat3<float> axes = rotation_of(Quat<float>{q[0], q[1], q[2], q[3]});
  const int64_t place = args.places == nullptr ? i : args.places[i];
  const Vec3<float> noise = normal_noise(args.seed, static_cast<uint64_t>(place));
  const Vec3<float> turned = times(noise, axes.m);  // the transpose of `axes` times the noise
  const Vec3<float> along = {scale_of(2.0f * s[0]) * turned.x, scale_of(2.0f * s[1]) * turned.y,
                             scale_of(2.0f * s[2]) * turned.z};
  const float share = opacity_of(kNoiseSteepness * (args.min_opacity - opacity));
  const Vec3<float> offset = (args.amount * share) * times(axes.m, along);
  if (!is_finite(offset.x + offset.y + offset.z)) return;
  float* mean = args.means + 3 * i;
  mean[0] += offset.x;
  mean[1] += offset.y;
  mean[2] += offset.z;
}

// Equation 9 of the paper, in double precision: the sum's terms are large and of changing sign.
SPLAT_HD void part_row(const Parting& args, int64_t i) {
  const double whole = args.opacities[i], copies = static_cast<double>(args.copies[i]);
  const double each = 1.0 - pow(1.0 - whole, 1.0 / copies);
  double total = 0.0, term = -1.0;
  for (int64_t k = 0; k < args.copies[i]; ++k) {
    const double n = static_cast<double>(k);
    term *= -each * (copies - n) / (n + 1.0);  // times C(copies, k + 1) / C(copies, k)
    total += term / sqrt(n + 1.0);
  }
  args.each[i] = each;
  args.factors[i] = whole / total;
}

namespace cpu {

void inject_noise(const InjectNoise& args, int num_threads);
void part(const Parting& args, int num_threads);

}  // namespace cpu

namespace cuda {

void inject_noise(const InjectNoise& args, const StepGate& gate, void* stream);
void part(const Parting& args, void* stream);

}  // namespace cuda
}  // namespace splat
