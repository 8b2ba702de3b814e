// A splat as it lies in a GPU's memory: loaded and stored 16 bytes at a time, in the order in which
// the pixels ask.
#pragma once

#include "../blend.h"
#include "../cpu/splat.h"
#include "../kernels.h"
#include "launch.cuh"

namespace splat::cuda {

// (a, b, c) is the conic of the exponent of 2: -log2(e) times (half_a, b, half_c). An exponent
// above `most` is rounding's; what a rejected pixel reads lies in the first 32 bytes.
struct alignas(16) PackedSplat {
  float x, y, a, b;
  float c, log2_opacity, most, opacity;
  float red, green, blue, depth;
};
static_assert(sizeof(PackedSplat) == kPackedSize * sizeof(float), "rows of the list");

// What of a splat says which tiles it covers.
struct alignas(16) TileShape {
  float x, y, slope, w2;
  float v2, radius_x, radius_y, unused;
};
static_assert(sizeof(TileShape) == kShapeSize * sizeof(float), "rows of the shapes");

__device__ __forceinline__ PackedSplat packed(const cpu::Splat& s) {
  const float log2_opacity = minimum(log2f(s.opacity), kMostLog2Opacity);
  return {s.x,
          s.y,
          -kLog2E * s.half_a,
          -kLog2E * s.b,
          -kLog2E * s.half_c,
          log2_opacity,
          log2_opacity + kLog2Rounding,
          s.opacity,
          s.red,
          s.green,
          s.blue,
          s.depth};
}

__device__ __forceinline__ TileShape tile_shape(const cpu::Splat& s) {
  return {s.x, s.y, s.slope, s.w2, s.v2, s.radius_x, s.radius_y, 0.0f};
}

}  // namespace splat::cuda
