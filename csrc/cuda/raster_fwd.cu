// Compositing front to back: a block a tile, a thread a pixel. Compiled without implicit fusing, as
// the backward pass is: both must agree to the bit on who is visible.
#include "../blend.h"
#include "buckets.cuh"

namespace splat::cuda {
namespace {

struct PixelState {
  float transmittance, red, green, blue, depth;
  int32_t end;  // one behind the last instance that added
};

__device__ __forceinline__ void add(const PackedSplat& s, float x, float y, float max_alpha,
                                    int32_t instance, PixelState& p) {
  const float sigma = falloff(s.half_a, s.b, s.half_c, s.x - x, s.y - y);
  if (!(sigma <= s.sigma_limit)) return;
  const Coverage<float> c = cover(sigma, s.opacity, max_alpha, p.transmittance);
  if (c.added) {
    const float weight = c.alpha * p.transmittance;
    p.red = multiply_add(weight, s.red, p.red);
    p.green = multiply_add(weight, s.green, p.green);
    p.blue = multiply_add(weight, s.blue, p.blue);
    p.depth = multiply_add(weight, s.depth, p.depth);
    p.end = instance + 1;
  }
  p.transmittance = advance(c, p.transmittance);
}

__device__ void write_state(float* checkpoints, int64_t checkpoint, int pixel,
                            const PixelState& p) {
  checkpoints[state_at(checkpoint, 0, pixel)] = p.transmittance;
  checkpoints[state_at(checkpoint, 1, pixel)] = p.red;
  checkpoints[state_at(checkpoint, 2, pixel)] = p.green;
  checkpoints[state_at(checkpoint, 3, pixel)] = p.blue;
  checkpoints[state_at(checkpoint, 4, pixel)] = p.depth;
}

__device__ void write_pixel(const RasterFwd& args, const Pixel& pixel, const PixelState& p) {
  const int64_t i = pixel.index(args.grid);
  const float left = magnitude(p.transmittance);
  args.rgb[3 * i] = p.red + left * args.background[0];
  args.rgb[3 * i + 1] = p.green + left * args.background[1];
  args.rgb[3 * i + 2] = p.blue + left * args.background[2];
  args.alpha[i] = 1.0f - left;
  args.depth_sum[i] = p.depth;
}

// `checkpoints` and the ends: null where nobody will go back.
__global__ void __launch_bounds__(kThreads) raster_fwd_kernel(RasterFwd args, float* checkpoints) {
  __shared__ PackedSplat batch[kThreads];
  __shared__ int32_t tile_end;
  const int64_t tile = blockIdx.x;
  const int thread = threadIdx.x;
  const Pixel pixel = pixel_at(args.grid, origin_of(args.grid, tile), thread);
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
  const int32_t begin = args.lists.tile_starts[tile], end = args.lists.tile_starts[tile + 1];
  const PackedSplat* splats = reinterpret_cast<const PackedSplat*>(args.splats.splats);
  const ChunkSize chunk = chunk_size(args.grid);
  PixelState p = {pixel.inside ? 1.0f : -1.0f, 0.0f, 0.0f, 0.0f, 0.0f, begin};
  if (thread == 0) tile_end = begin;
  for (int32_t first = begin; first < end; first += kThreads) {
    // Nobody may read the old batch any more when the new one comes.
    if (__syncthreads_count(p.transmittance > 0.0f ? 1 : 0) == 0) break;
    if (first + thread < end) {
      batch[thread] = splats[args.lists.instances[first + thread]];
    }
    __syncthreads();
    const int num = end - first < kThreads ? end - first : kThreads;
    for (int j = 0; j < num; ++j) {
      if (j % kBucket == 0) {
        const bool live = p.transmittance > 0.0f;
        if (__ballot_sync(kAllLanes, live) == 0) break;  // the warp has nothing more to do
        const int number = (first + j - begin) >> chunk.shift;
        if (live && checkpoints != nullptr && j % chunk.instances() == 0 && number > 0) {
          write_state(checkpoints, chunk.checkpoint(begin, number), thread, p);
        }
      }
      if (p.transmittance > 0.0f) add(batch[j], x, y, args.max_alpha, first + j, p);
    }
  }
  if (pixel.inside) write_pixel(args, pixel, p);
  if (checkpoints == nullptr) return;
  __syncthreads();
  atomicMax(&tile_end, p.end);
  __syncthreads();
  if (thread == 0) args.tile_ends[tile] = tile_end;
  pixel_ends(args.tile_ends, args.grid, tile)[thread] = p.end;
}

}  // namespace

int64_t num_checkpoints(const ImageGrid& grid, int64_t num_instances) {
  return ((num_instances >> chunk_size(grid).shift) + 1) * kStateSize * kPixels;
}

int64_t num_ends(const ImageGrid& grid) { return grid.num_tiles() * (1 + kPixels); }

void raster_fwd(const RasterFwd& args, float* checkpoints, Stream stream) {
  launch("raster_fwd", raster_fwd_kernel, args.grid.num_tiles(), kThreads, stream, args,
         checkpoints);
}

}  // namespace splat::cuda
