// A tile's list is cut into chunks, a warp of the backward pass each, and these into buckets of an
// instance a lane. The forward pass leaves the state of every pixel that is not finished at the
// beginning of each chunk but a tile's first, where it is known.
#pragma once

#include "../kernels.h"
#include "launch.cuh"
#include "packed_splat.cuh"

namespace splat::cuda {

constexpr int kBucket = 32;    // instances
constexpr int kPixels = 256;   // of a tile
constexpr int kStateSize = 5;  // transmittance, red, green, blue, depth
static_assert(kPixels == kTileSize * kTileSize && kPixels == kThreads, "one thread a pixel");

// How many instances a chunk has, a power of two. It follows from the picture's size alone: where a
// chunk begins, rounding begins anew, and gradients shall be the same to the bit whatever room the
// lists have and however many ranks hold the Gaussians. The states take 40 bytes an instance in
// chunks of 128, and half of that in chunks of 256, which would leave a small picture too few
// warps.
struct ChunkSize {
  int shift;

  __host__ __device__ int instances() const { return 1 << shift; }

  // A tile's first chunk, without a scan: every tile has room for one chunk more than it may need.
  __host__ __device__ int64_t first_chunk(int64_t tile, int64_t tile_start) const {
    return (tile_start >> shift) + tile;
  }

  // Where the states at the beginning of a tile's chunk `number` lie, from 1 on; of all tiles
  // apart.
  __host__ __device__ int64_t checkpoint(int64_t tile_start, int64_t number) const {
    return (tile_start >> shift) + number - 1;
  }
};

constexpr int64_t kManyTiles = 16384;  // four million pixels

__host__ __device__ __forceinline__ ChunkSize chunk_size(const ImageGrid& grid) {
  return {grid.num_tiles() < kManyTiles ? 7 : 8};
}

// A pixel's place in a checkpoint; one number of all pixels lies together.
__device__ __forceinline__ int64_t state_at(int64_t checkpoint, int number, int pixel) {
  return (checkpoint * kStateSize + number) * kPixels + pixel;
}

// The ends that the forward pass leaves: one behind the last instance that added to any pixel of
// the tile, and then the same of each pixel.
template <typename Int>
__device__ __forceinline__ Int* pixel_ends(Int* ends, const ImageGrid& grid, int64_t tile) {
  return ends + grid.num_tiles() + tile * kPixels;
}

// A warp of a kernel with a thread a pixel has 8 x 4 pixels: fewer splats reach such a rectangle
// than two whole rows.
constexpr int kWarpColumns = 8, kWarpRows = 4;
static_assert(kWarpColumns * kWarpRows == kWarp, "a lane a pixel");

// The number in the tile of a thread's pixel.
__device__ __forceinline__ int pixel_of_thread(int thread) {
  constexpr int kAcross = kTileSize / kWarpColumns;
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int x = warp % kAcross * kWarpColumns + lane % kWarpColumns;
  const int y = warp / kAcross * kWarpRows + lane / kWarpColumns;
  return y * kTileSize + x;
}

struct Pixel {
  int x, y;
  bool inside;

  __device__ int64_t index(const ImageGrid& grid) const {
    return static_cast<int64_t>(y) * grid.width + x;
  }
};

// A tile's first pixel. Whoever asks for many pixels of a tile asks for this once: the division
// does not leave a loop by itself where it may be skipped.
struct TileOrigin {
  int x, y;
};

__device__ __forceinline__ TileOrigin origin_of(const ImageGrid& grid, int64_t tile) {
  const int number = static_cast<int>(tile);  // an image has at most 2^24
  return {number % grid.tiles_x * kTileSize, number / grid.tiles_x * kTileSize};
}

__device__ __forceinline__ Pixel pixel_at(const ImageGrid& grid, const TileOrigin& origin,
                                          int number) {
  const int x = origin.x + number % kTileSize, y = origin.y + number / kTileSize;
  return {x, y, x < grid.width && y < grid.height};
}

}  // namespace splat::cuda
