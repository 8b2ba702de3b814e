// A splat as it lies in a GPU's memory: loaded and stored 16 bytes at a time, in the order in which
// the pixels ask.
#pragma once

#include "../cpu/splat.h"
#include "../kernels.h"
#include "launch.cuh"

namespace splat::cuda {

struct alignas(16) PackedSplat {
  float x, y, half_a, b;
  float half_c, sigma_limit, opacity, depth;
  float red, green, blue, unused;
};
static_assert(sizeof(PackedSplat) == kPackedSize * sizeof(float), "rows of the list");

// What of a splat says which tiles it covers.
struct alignas(16) TileShape {
  float x, y, slope, w2;
  float v2, radius_x, radius_y, unused;
};
static_assert(sizeof(TileShape) == kShapeSize * sizeof(float), "rows of the shapes");

__device__ __forceinline__ PackedSplat packed(const cpu::Splat& s) {
  return {s.x,       s.y,     s.half_a, s.b,     s.half_c, s.sigma_limit,
          s.opacity, s.depth, s.red,    s.green, s.blue,   0.0f};
}

__device__ __forceinline__ TileShape tile_shape(const cpu::Splat& s) {
  return {s.x, s.y, s.slope, s.w2, s.v2, s.radius_x, s.radius_y, 0.0f};
}

}  // namespace splat::cuda
