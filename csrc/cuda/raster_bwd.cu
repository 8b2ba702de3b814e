// The way back: a warp a chunk of a tile's list, and of that a bucket after the other, a lane a
// splat. Chunks take very different times: each is a block, so that none waits for others. The
// pixels that are not finished stream through the lanes, so that a splat's gradients stay in
// registers; what leaves the last lane is how the next bucket meets the pixel. Nothing is added in
// memory by two threads, and the result does not depend on who comes first.
#include "blend.cuh"
#include "buckets.cuh"
#include "shared_array.cuh"
#include "slab.cuh"

namespace splat::cuda {
namespace {

// The gradients of the outputs at a pixel.
struct alignas(16) OutputGradient {
  float red, green, blue, depth;
};

// A pixel as a splat meets it: what changes of it on its way through the lanes, and
// suffix = sum over the splats still to come of weight * (color . v_rgb + depth * v_depth_sum)
//          + the part of the final transmittance (background and alpha).
struct alignas(8) PixelState {
  float transmittance, suffix;  // negative: none of the splats to come adds to it
};

struct alignas(8) PixelCenter {
  float x, y;
};

// So many pixels are on their way at most, or enter the first lane next.
constexpr int kOnTheWay = 2 * kWarp;

// The pixels to which splats of its chunk have added, as the bucket at work meets them.
struct LivePixels {
  PixelState starts[kPixels];
  // Of those that enter the first lane next. The last lane writes `starts` meanwhile: a shuffle
  // alone does not order what two lanes do to the shared memory.
  PixelState staged_starts[kWarp];
  // What stays the same on the way, of pixel `place` at place % kOnTheWay: to load it takes fewer
  // instructions than to hand it on from lane to lane.
  OutputGradient gradients[kOnTheWay];
  PixelCenter centers[kOnTheWay];
  uint8_t numbers[kPixels];  // in the tile
};

template <bool with_depth, bool absgrad>
__device__ __forceinline__ void collect(const PackedSplat& s, float dx, float dy, float t,
                                        float max_alpha, const OutputGradient& v, PixelState& p,
                                        Collected& sum) {
  const Blended b = blend(t, max_alpha, p.transmittance);
  if (b.added) {
    sum.red = multiply_add(b.weight, v.red, sum.red);
    sum.green = multiply_add(b.weight, v.green, sum.green);
    sum.blue = multiply_add(b.weight, v.blue, sum.blue);
    float own = s.red * v.red;
    own = multiply_add(s.green, v.green, own);
    own = multiply_add(s.blue, v.blue, own);
    if constexpr (with_depth) {
      sum.depth = multiply_add(b.weight, v.depth, sum.depth);
      own = multiply_add(s.depth, v.depth, own);
    }
    p.suffix = multiply_add(-b.weight, own, p.suffix);
    const float behind = p.suffix * reciprocal(1.0f - b.alpha);  // what a larger alpha would hide
    const float q = b.clamped ? 0.0f : b.alpha * multiply_add(-p.transmittance, own, behind);
    const float qx = q * dx, qy = q * dy;
    sum.q += q;
    sum.qx += qx;
    sum.qy += qy;
    sum.qxx = multiply_add(qx, dx, sum.qxx);
    sum.qxy = multiply_add(qx, dy, sum.qxy);
    sum.qyy = multiply_add(qy, dy, sum.qyy);
    if constexpr (absgrad) {
      sum.abs_x += magnitude(q * multiply_add(s.a + s.a, dx, s.b * dy));
      sum.abs_y += magnitude(q * multiply_add(s.b, dx, (s.c + s.c) * dy));
    }
  }
  p.transmittance = transmittance_after(b, p.transmittance);
}

__device__ OutputGradient output_gradient(const RasterBwd& args, int64_t i) {
  OutputGradient v = {0.0f, 0.0f, 0.0f, 0.0f};
  if (args.v_rgb != nullptr) {
    v.red = args.v_rgb[3 * i];
    v.green = args.v_rgb[3 * i + 1];
    v.blue = args.v_rgb[3 * i + 2];
  }
  if (args.v_depth_sum != nullptr) v.depth = args.v_depth_sum[i];
  return v;
}

// What a warp has to go through.
struct Chunk {
  int64_t tile, number;  // of the tile's chunks
  TileOrigin origin;
  int32_t tile_start;
  int32_t first, stop;  // its instances
  int32_t reached;      // one behind the last that added to a pixel, below `first` where none did
};

__device__ PixelState pixel_start(const RasterBwd& args, const float* checkpoints,
                                  const Chunk& chunk, int number) {
  const Pixel pixel = pixel_at(args.grid, chunk.origin, number);
  const int32_t* ends = pixel_ends(args.tile_ends, args.grid, chunk.tile);
  if (!pixel.inside || ends[number] <= chunk.first) return {-1.0f, 0.0f};
  float state[kStateSize] = {1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  if (chunk.number > 0) {
    const ChunkSize size = chunk_size(args.grid);
    const int64_t checkpoint = size.checkpoint(chunk.tile_start, chunk.number);
    for (int k = 0; k < kStateSize; ++k) state[k] = checkpoints[state_at(checkpoint, k, number)];
  }
  const int64_t i = pixel.index(args.grid);
  const OutputGradient v = output_gradient(args, i);
  float suffix = v.red * (args.rgb[3 * i] - state[1]) + v.green * (args.rgb[3 * i + 1] - state[2]) +
                 v.blue * (args.rgb[3 * i + 2] - state[3]);
  if (args.v_depth_sum != nullptr) suffix += v.depth * (args.depth_sum[i] - state[4]);
  if (args.v_alpha != nullptr) suffix -= (1.0f - args.alpha[i]) * args.v_alpha[i];
  return {state[0], suffix};
}

// Puts a pixel of each lane behind `num` others where it is not finished; returns how many they are
// then. For whole warps.
__device__ __forceinline__ int append_live(const PixelState& start, int number, int lane, int num,
                                           LivePixels& live) {
  const unsigned all = __ballot_sync(kAllLanes, start.transmittance > 0.0f);
  if (start.transmittance > 0.0f) {
    const int place = num + __popc(all & ((1u << lane) - 1u));
    live.starts[place] = start;
    live.numbers[place] = static_cast<uint8_t>(number);
  }
  return num + __popc(all);
}

// Puts the pixels to which the chunk adds side by side; returns how many they are. What a lane has
// written others may read behind a barrier, with which go_through begins.
__device__ int gather_live(const RasterBwd& args, const float* checkpoints, const Chunk& chunk,
                           int lane, LivePixels& live) {
  int num = 0;
  for (int first = 0; first < kPixels; first += kWarp) {
    const PixelState start = pixel_start(args, checkpoints, chunk, first + lane);
    num = append_live(start, first + lane, lane, num, live);
  }
  return num;
}

// Leaves out the pixels that the bucket before has finished; returns how many are left, as
// gather_live.
__device__ int without_finished(int lane, int num_live, LivePixels& live) {
  int num = 0;
  for (int first = 0; first < num_live; first += kWarp) {
    const int from = first + lane;
    PixelState start = {-1.0f, 0.0f};
    int number = 0;
    if (from < num_live) {
      start = live.starts[from];
      number = live.numbers[from];
    }
    __syncwarp();  // a lane's new place is another one's old one
    num = append_live(start, number, lane, num, live);
  }
  return num;
}

// Every lane takes the pixel that its left neighbor had.
__device__ __forceinline__ PixelState shifted(const PixelState& p) {
  return {__shfl_up_sync(kAllLanes, p.transmittance, 1), __shfl_up_sync(kAllLanes, p.suffix, 1)};
}

// The arrays of LivePixels that are looked at in every turn.
struct PixelArrays {
  SharedArray<PixelState> starts, staged_starts;
  SharedArray<OutputGradient> gradients;
  SharedArray<PixelCenter> centers;

  __device__ __forceinline__ explicit PixelArrays(LivePixels& live)
      : starts(live.starts),
        staged_starts(live.staged_starts),
        gradients(live.gradients),
        centers(live.centers) {}
};

// Makes the pixels from `turn` on ready to enter the first lane, one a lane. For whole warps.
__device__ __forceinline__ void stage(const RasterBwd& args, const Chunk& chunk, int turn, int lane,
                                      int num_live, const LivePixels& live,
                                      const PixelArrays& arrays) {
  __syncwarp();
  const int place = turn + lane;
  if (place < num_live) {
    const Pixel pixel = pixel_at(args.grid, chunk.origin, live.numbers[place]);
    arrays.gradients.store(place % kOnTheWay, output_gradient(args, pixel.index(args.grid)));
    arrays.centers.store(place % kOnTheWay,
                         {static_cast<float>(pixel.x) + 0.5f, static_cast<float>(pixel.y) + 0.5f});
    arrays.staged_starts.store(lane, arrays.starts.load(place));
  }
  __syncwarp();
}

// Lets the pixels stream through a bucket. For whole warps; the splat of a lane without one is
// visible nowhere.
template <bool with_depth, bool absgrad>
__device__ __forceinline__ void go_through(const RasterBwd& args, const Chunk& chunk, int lane,
                                           const PackedSplat& s, LivePixels& live, int num_live,
                                           Collected& sum) {
  constexpr PixelState kNone = {-1.0f, 0.0f};
  const PixelArrays arrays(live);
  PixelState p = kNone;
  for (int turn = 0; turn < num_live + kWarp - 1; ++turn) {
    p = shifted(p);
    if (turn % kWarp == 0 && turn < num_live) {
      stage(args, chunk, turn, lane, num_live, live, arrays);
    }
    if (lane == 0) p = turn < num_live ? arrays.staged_starts.load(turn % kWarp) : kNone;
    if (p.transmittance > 0.0f) {
      const int place = static_cast<int>(static_cast<unsigned>(turn - lane) % kOnTheWay);
      const PixelCenter center = arrays.centers.load(place);
      const float dx = s.x - center.x, dy = s.y - center.y;
      const float t = exponent_at(s, dx, dy);
      if (is_visible(s, t)) {
        collect<with_depth, absgrad>(s, dx, dy, t, args.max_alpha, arrays.gradients.load(place), p,
                                     sum);
      }
    }
    if (lane == kWarp - 1 && turn >= kWarp - 1) arrays.starts.store(turn - (kWarp - 1), p);
  }
  __syncwarp();
}

// The tile that a chunk belongs to: the last one that begins at or before it.
__device__ int64_t tile_of_chunk(const RasterBwd& args, int64_t chunk) {
  const ChunkSize size = chunk_size(args.grid);
  int64_t low = 0, high = args.grid.num_tiles() - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (size.first_chunk(middle, args.lists.tile_starts[middle]) <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ Chunk chunk_of(const RasterBwd& args, int64_t index) {
  const ChunkSize size = chunk_size(args.grid);
  Chunk chunk = {};
  chunk.tile = tile_of_chunk(args, index);
  chunk.origin = origin_of(args.grid, chunk.tile);
  chunk.tile_start = args.lists.tile_starts[chunk.tile];
  const int32_t tile_stop = args.lists.tile_starts[chunk.tile + 1];
  chunk.number = index - size.first_chunk(chunk.tile, chunk.tile_start);
  // Compared in 64 bits: of the last tile there may be chunks far behind its end.
  const int64_t first = chunk.tile_start + (chunk.number << size.shift);
  chunk.first = first < tile_stop ? static_cast<int32_t>(first) : tile_stop;
  chunk.stop = first + size.instances() < tile_stop ? chunk.first + size.instances() : tile_stop;
  const int32_t tile_end = args.tile_ends[chunk.tile];
  chunk.reached = tile_end < chunk.stop ? tile_end : chunk.stop;
  return chunk;
}

// So many blocks shall find room in a multiprocessor's registers: none spills for it, and left
// alone the compiler takes more than one block's worth to save a few instructions between the
// buckets. A Turing has shared memory for 12, and a GeForce since Ampere takes 16 at least.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kBlocks = 12;
#elif defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kBlocks = 16;
#else
constexpr int kBlocks = 32;
#endif

template <bool with_depth, bool absgrad>
__global__ void __launch_bounds__(kWarp, kBlocks)
    raster_bwd_kernel(RasterBwd args, const float* checkpoints) {
  constexpr bool plain = !with_depth && !absgrad;
  __shared__ LivePixels live;
  const int lane = threadIdx.x;
  const Chunk chunk = chunk_of(args, blockIdx.x);
  int num_live = 0;
  if (chunk.first < chunk.reached) num_live = gather_live(args, checkpoints, chunk, lane, live);
  for (int32_t begin = chunk.first; begin < chunk.stop; begin += kBucket) {
    const int32_t instance = begin + lane;
    const bool mine = instance < chunk.reached;
    Collected sum = {};
    if (begin < chunk.reached) {
      if (begin > chunk.first) num_live = without_finished(lane, num_live, live);
      PackedSplat s = {};
      s.most = kLog2AlphaThreshold - 1.0f;  // visible nowhere
      if (mine) {
        s = reinterpret_cast<const PackedSplat*>(
            args.splats.splats)[args.lists.instances[instance]];
      }
      go_through<with_depth, absgrad>(args, chunk, lane, s, live, num_live, sum);
    }
    if (mine) {
      store_row<plain>(args, args.lists.slots[instance], sum);
    } else if (instance < chunk.stop) {
      mark_not_reached<plain>(args, args.lists.slots[instance]);
    }
  }
}

__device__ __forceinline__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kFewRows = 32;  // that a thread adds up alone

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ Collected warp_sum(const Collected& x) {
  return {warp_sum(x.red), warp_sum(x.green), warp_sum(x.blue),  warp_sum(x.q),
          warp_sum(x.qx),  warp_sum(x.qy),    warp_sum(x.qxx),   warp_sum(x.qxy),
          warp_sum(x.qyy), warp_sum(x.depth), warp_sum(x.abs_x), warp_sum(x.abs_y)};
}

// A thread has so many rows under way at once: one after the other it would wait for each, while
// the memory idles. That the lanes of a warp load the rows of all into shared memory is no faster.
constexpr int kRowsAtOnce = 4;

template <bool plain>
__device__ Collected sum_of_rows(const RasterBwd& args, int64_t begin, int64_t end, int stride) {
  Collected sum = {};
  for (int64_t first = begin; first < end; first += kRowsAtOnce * stride) {
    RowState states[kRowsAtOnce];
    Collected rows[kRowsAtOnce];
    SPLAT_UNROLL
    for (int k = 0; k < kRowsAtOnce; ++k) {
      const int64_t slot = first + k * stride;
      states[k] = slot < end ? row_state<plain>(args, slot) : RowState{false, 0.0f};
    }
    SPLAT_UNROLL
    for (int k = 0; k < kRowsAtOnce; ++k) {
      rows[k] = load_row<plain>(args, first + k * stride, states[k]);
    }
    SPLAT_UNROLL
    for (int k = 0; k < kRowsAtOnce; ++k) add(sum, rows[k]);
  }
  return sum;
}

// The sum of each lane's rows. Those of a splat of many tiles are the whole warp's work: a splat
// that covers the image would keep one thread for as long as all others take together.
template <bool plain>
__device__ Collected sums_of_warp(const RasterBwd& args, int64_t begin, int64_t end) {
  const int lane = threadIdx.x % kWarp;
  const bool many = end - begin > kFewRows;
  Collected sum = sum_of_rows<plain>(args, begin, many ? begin : end, 1);
  for (unsigned left = __ballot_sync(kAllLanes, many); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const int64_t its_begin = __shfl_sync(kAllLanes, begin, owner);
    const int64_t its_end = __shfl_sync(kAllLanes, end, owner);
    const Collected all = warp_sum(sum_of_rows<plain>(args, its_begin + lane, its_end, kWarp));
    if (lane == owner) sum = all;
  }
  return sum;
}

// Adds up a splat's instances and turns the sums over pixels into gradients; one thread a splat.
template <bool plain>
__global__ void __launch_bounds__(kThreads) gather_kernel(RasterBwd args) {
  const int64_t i = global_index();
  const bool present = i < args.splats.num;
  // Of a list without room for all only what is in it has a row of the slab.
  const int64_t begin = present ? smaller(args.lists.splat_starts[i], args.lists.num) : 0;
  const int64_t end = present ? smaller(args.lists.splat_starts[i + 1], args.lists.num) : 0;
  const Collected sum = sums_of_warp<plain>(args, begin, end);
  if (!present) return;
  const int64_t at = args.splats.order[i];
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
  // The slab's sums are of sigma's gradient, in which the conic is -ln(2) times the packed one.
  const float v_x = -kLn2 * (2.0f * s.a * qx + s.b * qy);
  const float v_y = -kLn2 * (s.b * qx + 2.0f * s.c * qy);
  args.v_means2d[2 * at] = v_x;
  args.v_means2d[2 * at + 1] = v_y;
  args.v_conics[3 * at] = 0.5f * sum.qxx;
  args.v_conics[3 * at + 1] = sum.qxy;
  args.v_conics[3 * at + 2] = 0.5f * sum.qyy;
  if (args.v_probe == nullptr) return;
  args.v_probe[2 * at] = args.absgrad ? kLn2 * sum.abs_x : v_x;
  args.v_probe[2 * at + 1] = args.absgrad ? kLn2 * sum.abs_y : v_y;
}

}  // namespace

void raster_bwd(const RasterBwd& args, const float* checkpoints, Stream stream) {
  const ChunkSize size = chunk_size(args.grid);
  const int64_t num_chunks = size.first_chunk(args.grid.num_tiles(), args.lists.num);
  const bool with_depth = args.v_depth_sum != nullptr;
  const auto kernel =
      with_depth
          ? (args.absgrad ? raster_bwd_kernel<true, true> : raster_bwd_kernel<true, false>)
          : (args.absgrad ? raster_bwd_kernel<false, true> : raster_bwd_kernel<false, false>);
  launch("raster_bwd", kernel, num_chunks, kWarp, stream, args, checkpoints);
}

void gather_slab(const RasterBwd& args, Stream stream) {
  const auto kernel = args.slab_size == kPlainSlabSize ? gather_kernel<true> : gather_kernel<false>;
  launch("gather", kernel, blocks_for(args.splats.num), kThreads, stream, args);
}

}  // namespace splat::cuda
