// A tile's list is cut into buckets of 32 instances, a warp of the backward pass each. The forward
// pass leaves the state of every pixel at the beginning of each bucket but the first.
#pragma once

#include "../kernels.h"
#include "launch.cuh"
#include "packed_splat.cuh"

namespace splat::cuda {

constexpr int kBucket = 32;    // instances
constexpr int kPixels = 256;   // of a tile
constexpr int kStateSize = 5;  // transmittance (negative: finished), red, green, blue, depth
static_assert(kPixels == kTileSize * kTileSize && kPixels == kThreads, "one thread a pixel");

// A tile's first bucket, without a scan: every tile has room for one bucket more than it may need.
__host__ __device__ __forceinline__ int64_t first_bucket(int64_t tile, int64_t tile_start) {
  return tile_start / kBucket + tile;
}

// A pixel's place in a bucket's state; one number of all pixels lies together.
__device__ __forceinline__ float* state_of(float* checkpoints, int64_t bucket, int number,
                                           int pixel) {
  return checkpoints + (bucket * kStateSize + number) * kPixels + pixel;
}

// The ends that the forward pass leaves: one behind the last instance that added to any pixel of
// the tile, and then the same of each pixel.
__device__ __forceinline__ int32_t* pixel_ends(int32_t* ends, const ImageGrid& grid, int64_t tile) {
  return ends + grid.num_tiles() + tile * kPixels;
}

struct Pixel {
  int x, y;
  bool inside;

  __device__ int64_t index(const ImageGrid& grid) const {
    return static_cast<int64_t>(y) * grid.width + x;
  }
};

__device__ __forceinline__ Pixel pixel_at(const ImageGrid& grid, int64_t tile, int number) {
  const int x = static_cast<int>(tile % grid.tiles_x) * kTileSize + number % kTileSize;
  const int y = static_cast<int>(tile / grid.tiles_x) * kTileSize + number / kTileSize;
  return {x, y, x < grid.width && y < grid.height};
}

}  // namespace splat::cuda
