// What the blend rule of the CPU (cpu/cells.h) and of a GPU (cuda/blend.cuh) have in common.
#pragma once

#include "gaussian.h"
#include "linalg.h"

namespace splat {

constexpr float kTransmittanceStop = 1e-4f;  // no splat may leave less than this
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kLog2AlphaThreshold = -7.99435344f;
// A splat's own center must pass the test t <= log2(opacity), however its t is rounded.
constexpr float kLog2Rounding = 1e-5f;
// An opacity is at most 1; of what else may come, powers of 2 shall make a number.
constexpr float kMostLog2Opacity = 64.0f;

// Half the squared distance from the splat's center in standard deviations; (dx, dy) = center -
// pixel, (half_a, b, half_c) the conic with its diagonal halved.
template <typename F>
SPLAT_HD F falloff(F half_a, F b, F half_c, F dx, F dy) {
  return multiply_add(multiply_add(half_a, dx, b * dy), dx, half_c * dy * dy);
}

}  // namespace splat
