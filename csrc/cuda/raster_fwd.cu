// Compositing front to back: a block a tile, a thread a pixel.
#include "blend.cuh"
#include "buckets.cuh"

namespace splat::cuda {
namespace {

struct PixelState {
  float transmittance, red, green, blue, depth;
  int32_t end;  // one behind the last instance that added
};

__device__ __forceinline__ void add(const PackedSplat& s, float x, float y, float max_alpha,
                                    int32_t instance, PixelState& p) {
  const float t = exponent_at(s, s.x - x, s.y - y);
  if (!is_visible(s, t)) return;
  const Blended b = blend(t, max_alpha, p.transmittance);
  if (b.added) {
    p.red = multiply_add(b.weight, s.red, p.red);
    p.green = multiply_add(b.weight, s.green, p.green);
    p.blue = multiply_add(b.weight, s.blue, p.blue);
    p.depth = multiply_add(b.weight, s.depth, p.depth);
    p.end = instance + 1;
  }
  p.transmittance = transmittance_after(b, p.transmittance);
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
  const int thread = threadIdx.x, lane = thread % kWarp, number = pixel_of_thread(thread);
  const TileOrigin origin = origin_of(args.grid, tile);
  const Rectangle of_warp = rectangle_of_warp(origin, thread);
  const Pixel pixel = pixel_at(args.grid, origin, number);
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
    for (int from = 0; from < num; from += kBucket) {
      const bool live = p.transmittance > 0.0f;
      if (__ballot_sync(kAllLanes, live) == 0) break;  // the warp has nothing more to do
      const int chunks = (first + from - begin) >> chunk.shift;
      if (live && checkpoints != nullptr && from % chunk.instances() == 0 && chunks > 0) {
        write_state(checkpoints, chunk.checkpoint(begin, chunks), number, p);
      }
      // A lane looks at a splat, and the warp blends those that may reach its pixels.
      const bool reaches = from + lane < num && may_reach(batch[from + lane], of_warp);
      for (unsigned left = __ballot_sync(kAllLanes, reaches); left != 0; left &= left - 1) {
        const int j = from + __ffs(static_cast<int>(left)) - 1;
        if (p.transmittance > 0.0f) add(batch[j], x, y, args.max_alpha, first + j, p);
      }
    }
  }
  if (pixel.inside) write_pixel(args, pixel, p);
  if (checkpoints == nullptr) return;
  __syncthreads();
  atomicMax(&tile_end, p.end);
  __syncthreads();
  if (thread == 0) args.tile_ends[tile] = tile_end;
  pixel_ends(args.tile_ends, args.grid, tile)[number] = p.end;
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
