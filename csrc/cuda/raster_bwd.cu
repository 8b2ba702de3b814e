// The way back: a warp a bucket, a lane a splat. The tile's pixels stream through the lanes, front
// to back, so that a splat's gradients stay in registers; nothing is added in memory by two
// threads, and the result does not depend on who comes first.
#include "../blend.h"
#include "buckets.cuh"

namespace splat::cuda {
namespace {

constexpr int kWarpsOfBlock = 4;

// A pixel on its way through the lanes: gradients of the outputs there, and
// suffix = sum over the splats still to come of weight * (color . v_rgb + depth * v_depth_sum)
//          + the part of the final transmittance (background and alpha).
struct PixelGradient {
  float transmittance, suffix, v_red, v_green, v_blue, v_depth;
};

// What one splat collects over its tile: a row of the slab; q = d loss / d sigma.
struct alignas(16) Collected {
  float red, green, blue, q, qx, qy, qxx, qxy, qyy, depth, abs_x, abs_y;
};
static_assert(sizeof(Collected) == kSlabSize * sizeof(float), "one slab row");

template <bool absgrad>
__device__ __forceinline__ void collect(const cpu::Splat& s, float dx, float dy, float max_alpha,
                                        PixelGradient& p, Collected& sum) {
  const float sigma = falloff(s.half_a, s.b, s.half_c, dx, dy);
  if (!(sigma <= s.sigma_limit)) return;
  const Coverage<float> c = cover(sigma, s.opacity, max_alpha, p.transmittance);
  if (c.added) {
    const float weight = c.alpha * p.transmittance;
    sum.red = multiply_add(weight, p.v_red, sum.red);
    sum.green = multiply_add(weight, p.v_green, sum.green);
    sum.blue = multiply_add(weight, p.v_blue, sum.blue);
    sum.depth = multiply_add(weight, p.v_depth, sum.depth);
    float own = s.red * p.v_red;
    own = multiply_add(s.green, p.v_green, own);
    own = multiply_add(s.blue, p.v_blue, own);
    own = multiply_add(s.depth, p.v_depth, own);
    p.suffix = multiply_add(-weight, own, p.suffix);
    const float v_alpha = p.transmittance * own - p.suffix / (1.0f - c.alpha);
    const float q = c.clamped ? 0.0f : -c.alpha * v_alpha;
    const float qx = q * dx, qy = q * dy;
    sum.q += q;
    sum.qx += qx;
    sum.qy += qy;
    sum.qxx = multiply_add(qx, dx, sum.qxx);
    sum.qxy = multiply_add(qx, dy, sum.qxy);
    sum.qyy = multiply_add(qy, dy, sum.qyy);
    if constexpr (absgrad) {
      sum.abs_x += magnitude(q * (2.0f * s.half_a * dx + s.b * dy));
      sum.abs_y += magnitude(q * (s.b * dx + 2.0f * s.half_c * dy));
    }
  }
  p.transmittance = advance(c, p.transmittance);
}

// The pixel as the bucket's first splat meets it.
__device__ PixelGradient pixel_gradient(const RasterBwd& args, float* checkpoints, int64_t tile,
                                        int64_t bucket, int32_t first, int number) {
  PixelGradient p = {-1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  const Pixel pixel = pixel_at(args.grid, tile, number);
  int32_t* ends = const_cast<int32_t*>(args.tile_ends);
  if (!pixel.inside || pixel_ends(ends, args.grid, tile)[number] <= first) return p;
  float state[kStateSize] = {1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  if (first > args.lists.tile_starts[tile]) {
    for (int k = 0; k < kStateSize; ++k) state[k] = *state_of(checkpoints, bucket, k, number);
  }
  const int64_t i = pixel.index(args.grid);
  p.transmittance = state[0];
  if (args.v_rgb != nullptr) {
    p.v_red = args.v_rgb[3 * i];
    p.v_green = args.v_rgb[3 * i + 1];
    p.v_blue = args.v_rgb[3 * i + 2];
    p.suffix = p.v_red * (args.rgb[3 * i] - state[1]) +
               p.v_green * (args.rgb[3 * i + 1] - state[2]) +
               p.v_blue * (args.rgb[3 * i + 2] - state[3]);
  }
  if (args.v_depth_sum != nullptr) {
    p.v_depth = args.v_depth_sum[i];
    p.suffix += p.v_depth * (args.depth_sum[i] - state[4]);
  }
  if (args.v_alpha != nullptr) p.suffix -= (1.0f - args.alpha[i]) * args.v_alpha[i];
  return p;
}

// Every lane takes the pixel that its left neighbour had.
__device__ __forceinline__ PixelGradient shifted(const PixelGradient& p) {
  return {__shfl_up_sync(kAllLanes, p.transmittance, 1), __shfl_up_sync(kAllLanes, p.suffix, 1),
          __shfl_up_sync(kAllLanes, p.v_red, 1),         __shfl_up_sync(kAllLanes, p.v_green, 1),
          __shfl_up_sync(kAllLanes, p.v_blue, 1),        __shfl_up_sync(kAllLanes, p.v_depth, 1)};
}

// The tile that a bucket belongs to: the last one that begins at or before it.
__device__ int64_t tile_of_bucket(const RasterBwd& args, int64_t bucket) {
  int64_t low = 0, high = args.grid.num_tiles() - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first_bucket(middle, args.lists.tile_starts[middle]) <= bucket) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ void write_row(const RasterBwd& args, int32_t instance, const Collected& sum) {
  reinterpret_cast<Collected*>(args.slab)[args.lists.slots[instance]] = sum;
}

template <bool absgrad>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    raster_bwd_kernel(RasterBwd args, float* checkpoints, int64_t num_buckets) {
  __shared__ PixelGradient staged[kWarpsOfBlock][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t bucket = static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + warp;
  if (bucket >= num_buckets) return;
  const int64_t tile = tile_of_bucket(args, bucket);
  const int32_t tile_start = args.lists.tile_starts[tile];
  const int32_t tile_stop = args.lists.tile_starts[tile + 1];
  const int64_t offset = (bucket - first_bucket(tile, tile_start)) * kBucket;
  if (offset >= tile_stop - tile_start) return;
  const int32_t first = tile_start + static_cast<int32_t>(offset);
  const int32_t instance = first + lane;
  Collected sum = {};
  if (first < args.tile_ends[tile]) {
    const bool mine = instance < args.tile_ends[tile];
    PackedSplat s = {};
    if (mine) {
      s = reinterpret_cast<const PackedSplat*>(args.splats.splats)[args.lists.instances[instance]];
    }
    PixelGradient p = {-1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int turn = 0; turn < kPixels + kWarp - 1; ++turn) {
      p = shifted(p);
      if (turn % kWarp == 0 && turn < kPixels) {
        __syncwarp();
        staged[warp][lane] = pixel_gradient(args, checkpoints, tile, bucket, first, turn + lane);
        __syncwarp();
      }
      if (lane == 0 && turn < kPixels) p = staged[warp][turn % kWarp];
      const int number = turn - lane;
      if (mine && number >= 0 && number < kPixels && p.transmittance > 0.0f) {
        const Pixel pixel = pixel_at(args.grid, tile, number);
        collect<absgrad>(s, s.x - (static_cast<float>(pixel.x) + 0.5f),
                         s.y - (static_cast<float>(pixel.y) + 0.5f), args.max_alpha, p, sum);
      }
    }
  }
  if (instance < tile_stop) write_row(args, instance, sum);
}

__device__ __forceinline__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

__device__ __forceinline__ void add(Collected& sum, const Collected& row) {
  sum.red += row.red;
  sum.green += row.green;
  sum.blue += row.blue;
  sum.q += row.q;
  sum.qx += row.qx;
  sum.qy += row.qy;
  sum.qxx += row.qxx;
  sum.qxy += row.qxy;
  sum.qyy += row.qyy;
  sum.depth += row.depth;
  sum.abs_x += row.abs_x;
  sum.abs_y += row.abs_y;
}

// Adds up a splat's instances and turns the sums over pixels into gradients; one thread a splat.
__global__ void __launch_bounds__(kThreads) gather_kernel(RasterBwd args) {
  const int64_t i = global_index();
  if (i >= args.splats.num) return;
  const int64_t at = args.splats.order[i];
  // Of a list without room for all only what is in it has a row of the slab.
  const int64_t begin = smaller(args.lists.splat_starts[i], args.lists.num);
  const int64_t end = smaller(args.lists.splat_starts[i + 1], args.lists.num);
  Collected sum = {};
  for (int64_t slot = begin; slot < end; ++slot) {
    add(sum, reinterpret_cast<const Collected*>(args.slab)[slot]);
  }
  // A splat without a tile has nothing packed.
  PackedSplat s = {};
  s.opacity = 1.0f;
  if (begin < end) s = reinterpret_cast<const PackedSplat*>(args.splats.splats)[i];
  const float qx = sum.qx, qy = sum.qy;
  args.v_colors[3 * at] = sum.red;
  args.v_colors[3 * at + 1] = sum.green;
  args.v_colors[3 * at + 2] = sum.blue;
  args.v_depths[at] = sum.depth;
  args.v_opacities[at] = -sum.q / s.opacity;
  const float v_x = 2.0f * s.half_a * qx + s.b * qy, v_y = s.b * qx + 2.0f * s.half_c * qy;
  args.v_means2d[2 * at] = v_x;
  args.v_means2d[2 * at + 1] = v_y;
  args.v_conics[3 * at] = 0.5f * sum.qxx;
  args.v_conics[3 * at + 1] = sum.qxy;
  args.v_conics[3 * at + 2] = 0.5f * sum.qyy;
  if (args.v_probe == nullptr) return;
  args.v_probe[2 * at] = args.absgrad ? sum.abs_x : v_x;
  args.v_probe[2 * at + 1] = args.absgrad ? sum.abs_y : v_y;
}

}  // namespace

void raster_bwd(const RasterBwd& args, const float* checkpoints, Stream stream) {
  const int64_t num_buckets = first_bucket(args.grid.num_tiles(), args.lists.num);
  launch("raster_bwd", args.absgrad ? raster_bwd_kernel<true> : raster_bwd_kernel<false>,
         blocks_for(num_buckets, kWarpsOfBlock), kWarp * kWarpsOfBlock, stream, args,
         const_cast<float*>(checkpoints), num_buckets);
  launch("gather", gather_kernel, blocks_for(args.splats.num), kThreads, stream, args);
}

}  // namespace splat::cuda
