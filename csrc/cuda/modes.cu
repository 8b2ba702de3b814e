// The viewer's modes: a thread a Gaussian, then a block a tile and a thread a pixel. Compiled
// without implicit fusing, as the forward pass is: both must agree on who is visible.
#include "../cpu/splat.h"
#include "../modes.h"
#include "../surface.h"
#include "blend.cuh"
#include "buckets.cuh"
#include "project.cuh"

namespace splat::cuda {
namespace {

template <CameraModel model>
__global__ void __launch_bounds__(kThreads) shapes_kernel(Shapes args) {
  const int64_t i = global_index();
  const GaussianArrays& g = args.gaussians;
  if (i >= g.num) return;
  GaussianValues<float> values = {};
  values.mean = load3(g.means, i);
  values.scales = load3(g.scales, i);
  if (args.settings.raw) {
    values.scales = {scale_of(values.scales.x), scale_of(values.scales.y),
                     scale_of(values.scales.z)};
  }
  values.quat = {g.quats[4 * i], g.quats[4 * i + 1], g.quats[4 * i + 2], g.quats[4 * i + 3]};
  const Shape<float> shape = shape_of<model>(args.settings.camera, values);
  const bool seen = args.radii[2 * i] > 0 && args.radii[2 * i + 1] > 0 && shape.good;
  const auto shown = [&](float x) { return select(seen, x, 0.0f); };
  store3(args.normals, i, {shown(shape.normal.x), shown(shape.normal.y), shown(shape.normal.z)});
  float* surface = args.surfaces + kSurfaceSize * i;
  surface[0] = shown(shape.ux);
  surface[1] = shown(shape.uy);
  surface[2] = shown(shape.thickness);
  surface[3] = shown(shape.pixels);
}

struct MedianPixel {
  float transmittance, depth;
  int32_t count;
};

__device__ __forceinline__ void add(const PackedSplat& s, float x, float y, float max_alpha,
                                    MedianPixel& p) {
  const float t = exponent_at(s, s.x - x, s.y - y);
  if (!is_visible(s, t)) return;
  const Blended b = blend(t, max_alpha, p.transmittance);
  if (b.added) {
    if (p.transmittance >= 0.5f && b.next < 0.5f) p.depth = s.depth;
    ++p.count;
  }
  p.transmittance = transmittance_after(b, p.transmittance);
}

__global__ void __launch_bounds__(kThreads) median_kernel(RasterMedian args) {
  __shared__ PackedSplat batch[kThreads];
  const int64_t tile = blockIdx.x;
  const int thread = threadIdx.x;
  const Pixel pixel = pixel_at(args.grid, origin_of(args.grid, tile), thread);
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
  const int32_t begin = args.lists.tile_starts[tile], end = args.lists.tile_starts[tile + 1];
  const PackedSplat* splats = reinterpret_cast<const PackedSplat*>(args.splats.splats);
  MedianPixel p = {pixel.inside ? 1.0f : -1.0f, 0.0f, 0};
  for (int32_t first = begin; first < end; first += kThreads) {
    // Nobody may read the old batch any more when the new one comes.
    if (__syncthreads_count(p.transmittance > 0.0f ? 1 : 0) == 0) break;
    if (first + thread < end) batch[thread] = splats[args.lists.instances[first + thread]];
    __syncthreads();
    const int num = end - first < kThreads ? end - first : kThreads;
    for (int j = 0; j < num && p.transmittance > 0.0f; ++j) add(batch[j], x, y, args.max_alpha, p);
  }
  if (!pixel.inside) return;
  const int64_t i = pixel.index(args.grid);
  args.depth[i] = p.depth;
  args.count[i] = p.count;
}

struct SolidSplat {
  float x, y, half_a, b, half_c, depth, red, green, blue;
  float limit;  // of sigma: beyond it alpha < 1/255
  float surface[kSurfaceSize];
};

struct SolidPixel {
  float depth, red, green, blue;
};

// Puts a splat's surface where it is the nearest so far.
__device__ __forceinline__ void cover_solid(const SolidSplat& s, float x, float y, SolidPixel& p) {
  const float dx = s.x - x, dy = s.y - y;
  const float sigma = falloff(s.half_a, s.b, s.half_c, dx, dy);
  if (!(sigma <= s.limit)) return;
  const Front<float> front = front_of(s, s.surface, s.limit, sigma, dx, dy);
  if (!(front.depth < p.depth)) return;
  p = {front.depth, s.red * front.light, s.green * front.light, s.blue * front.light};
}

__device__ SolidSplat load_solid(const RasterSolid& args, int32_t instance) {
  const PackedSplat s = reinterpret_cast<const PackedSplat*>(args.splats.splats)[instance];
  SolidSplat solid = {
      s.x,     s.y,   -kLn2 * s.a, -kLn2 * s.b, -kLn2 * s.c,
      s.depth, s.red, s.green,     s.blue,      kLn2 * (s.log2_opacity - kLog2AlphaThreshold),
      {}};
  const float* surface =
      args.surfaces + kSurfaceSize * static_cast<int64_t>(args.splats.order[instance]);
  for (int k = 0; k < kSurfaceSize; ++k) solid.surface[k] = surface[k];
  return solid;
}

// No splat hides those behind it: a body may reach in front of one whose center is nearer.
__global__ void __launch_bounds__(kThreads) solid_kernel(RasterSolid args) {
  __shared__ SolidSplat batch[kThreads];
  const int64_t tile = blockIdx.x;
  const int thread = threadIdx.x;
  const Pixel pixel = pixel_at(args.grid, origin_of(args.grid, tile), thread);
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
  const int32_t begin = args.lists.tile_starts[tile], end = args.lists.tile_starts[tile + 1];
  SolidPixel p = {kInfinity, args.background[0], args.background[1], args.background[2]};
  for (int32_t first = begin; first < end; first += kThreads) {
    __syncthreads();  // nobody may read the old batch any more
    if (first + thread < end) {
      batch[thread] = load_solid(args, args.lists.instances[first + thread]);
    }
    __syncthreads();
    const int num = end - first < kThreads ? end - first : kThreads;
    for (int j = 0; j < num; ++j) cover_solid(batch[j], x, y, p);
  }
  if (!pixel.inside) return;
  const int64_t i = pixel.index(args.grid);
  store3(args.rgb, i, {p.red, p.green, p.blue});
  args.depth[i] = p.depth < kInfinity ? p.depth : 0.0f;
}

__global__ void __launch_bounds__(kThreads) bytes_kernel(ToBytes args) {
  const int64_t i = global_index();
  if (i < args.num) args.bytes[i] = byte_of(args.values[i]);
}

}  // namespace

void splat_shapes(const Shapes& args, Stream stream) {
  launch_for_model("splat_shapes", args.settings.camera.model, shapes_kernel<CameraModel::kPinhole>,
                   shapes_kernel<CameraModel::kOrtho>, shapes_kernel<CameraModel::kFisheye>,
                   blocks_for(args.gaussians.num), kThreads, stream, args);
}

void raster_median(const RasterMedian& args, Stream stream) {
  launch("raster_median", median_kernel, args.grid.num_tiles(), kThreads, stream, args);
}

void raster_solid(const RasterSolid& args, Stream stream) {
  launch("raster_solid", solid_kernel, args.grid.num_tiles(), kThreads, stream, args);
}

void to_uint8(const ToBytes& args, Stream stream) {
  launch("to_uint8", bytes_kernel, blocks_for(args.num), kThreads, stream, args);
}

}  // namespace splat::cuda
