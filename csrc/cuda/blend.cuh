// The blend rule of a GPU: how much of a pixel one splat covers, and when the pixel is finished.
//
// Forward and backward must agree to the bit on who is visible, so both call these functions, fused
// steps are spelled out, and nothing is fused beside them (--fmad=false).
#pragma once

#include "../blend.h"
#include "approximate.cuh"
#include "buckets.cuh"
#include "launch.cuh"

namespace splat::cuda {

// t of alpha = 2^t, t = log2(opacity) - log2(e) sigma; (dx, dy) = center - pixel.
__device__ __forceinline__ float exponent_at(const PackedSplat& s, float dx, float dy) {
  const float rest = multiply_add(s.c * dy, dy, s.log2_opacity);
  return multiply_add(multiply_add(s.a, dx, s.b * dy), dx, rest);
}

// False for NaN, and where rounding has made sigma negative.
__device__ __forceinline__ bool is_visible(const PackedSplat& s, float t) {
  return t >= kLog2AlphaThreshold && t <= s.most;
}

// The centers of a warp's pixels, px.
struct Rectangle {
  float left, top, right, bottom;
};

__device__ __forceinline__ Rectangle rectangle_of_warp(const TileOrigin& origin, int thread) {
  const int first = pixel_of_thread(thread / kWarp * kWarp);
  const float left = static_cast<float>(origin.x + first % kTileSize) + 0.5f;
  const float top = static_cast<float>(origin.y + first / kTileSize) + 0.5f;
  return {left, top, left + (kWarpColumns - 1), top + (kWarpRows - 1)};
}

__device__ __forceinline__ float between(float x, float low, float high) {
  return minimum(maximum(x, low), high);
}

// Whether a splat may be visible at any pixel of a rectangle. The exponent falls along every line
// from the splat's center, so its largest value lies on one of the two sides that face the center;
// along a side it is a parabola. What rounding may add to the exponent of a pixel, whose terms may
// be far larger than their sum, is granted.
__device__ __forceinline__ bool may_reach(const PackedSplat& s, const Rectangle& r) {
  const float dx_low = s.x - r.right, dx_high = s.x - r.left;
  const float dy_low = s.y - r.bottom, dy_high = s.y - r.top;
  const float dx = between(0.0f, dx_low, dx_high), dy = between(0.0f, dy_low, dy_high);
  const float dy_best = between(-0.5f * s.b * dx * reciprocal(s.c), dy_low, dy_high);
  const float dx_best = between(-0.5f * s.b * dy * reciprocal(s.a), dx_low, dx_high);
  const float t = maximum(exponent_at(s, dx, dy_best), exponent_at(s, dx_best, dy));
  const float far_x = maximum(magnitude(dx_low), magnitude(dx_high));
  const float far_y = maximum(magnitude(dy_low), magnitude(dy_high));
  const float terms = (s.a * far_x - magnitude(s.b) * far_y) * far_x + s.c * far_y * far_y;
  const float product = 4.0f * s.a * s.c;
  // Of a needle whose determinant rounding has eaten nothing is known. NaN, too, may reach.
  const bool is_ellipse = product - s.b * s.b > 1e-5f * product;
  return !(is_ellipse && t < kLog2AlphaThreshold - 1e-4f + 1e-6f * terms);
}

struct Blended {
  float alpha;         // of a visible splat
  float weight, next;  // alpha * transmittance, and the transmittance behind it, had it been added
  bool added, clamped;
};

// `transmittance` is above 0: the pixel is not finished.
__device__ __forceinline__ Blended blend(float t, float max_alpha, float transmittance) {
  Blended b;
  const float raw = power_of_2(t);
  b.clamped = raw > max_alpha;
  b.alpha = minimum(raw, max_alpha);
  b.weight = b.alpha * transmittance;
  b.next = transmittance - b.weight;
  b.added = b.next > kTransmittanceStop;
  return b;
}

// The transmittance after a visible splat. The first that would go below the stop is left out and
// finishes the pixel: its sign turns, its value stays for the output.
__device__ __forceinline__ float transmittance_after(const Blended& b, float transmittance) {
  return b.added ? b.next : -transmittance;
}

}  // namespace splat::cuda
