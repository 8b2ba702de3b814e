#include <cstring>
#include <vector>

#include "lanes.h"
#include "pool.h"
#include "splat.h"

namespace splat::cpu {
namespace {

// Long lists first, so that no thread is left alone with one at the end. By powers of two.
std::vector<int32_t> tiles_by_cost(const ImageGrid& grid, const int32_t* tile_starts) {
  constexpr int kClasses = 32;
  const auto class_of = [&](int64_t tile) {
    const uint32_t length = static_cast<uint32_t>(tile_starts[tile + 1] - tile_starts[tile]);
    return length == 0 ? kClasses - 1 : __builtin_clz(length);
  };
  int64_t starts[kClasses + 1] = {};
  const int64_t num_tiles = grid.num_tiles();
  for (int64_t tile = 0; tile < num_tiles; ++tile) ++starts[class_of(tile) + 1];
  for (int i = 0; i < kClasses; ++i) starts[i + 1] += starts[i];
  std::vector<int32_t> order(num_tiles);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    order[starts[class_of(tile)]++] = static_cast<int32_t>(tile);
  }
  return order;
}

// Gaussians by depth lie scattered in memory.
void fetch_ahead(const RasterBwd& args, int64_t at) {
  __builtin_prefetch(args.v_means2d + 2 * at, 1);
  __builtin_prefetch(args.v_conics + 3 * at, 1);
  __builtin_prefetch(args.v_depths + at, 1);
  __builtin_prefetch(args.v_opacities + at, 1);
  __builtin_prefetch(args.v_colors + 3 * at, 1);
}

// Adds up a splat's instances and turns the sums over pixels into gradients.
template <int slab_size>
void gather_splat(const RasterBwd& args, int64_t i) {
  const Splat& s = reinterpret_cast<const Splat*>(args.splats.splats)[i];
  float sum[kSlabSize] = {};
  for (int64_t slot = args.lists.splat_starts[i]; slot < args.lists.splat_starts[i + 1]; ++slot) {
    const float* row = args.slab + slot * slab_size;
    for (int k = 0; k < slab_size; ++k) sum[k] += row[k];
  }
  const int64_t at = args.splats.order[i];
  const float q = sum[3], qx = sum[4], qy = sum[5], qxx = sum[6], qxy = sum[7], qyy = sum[8];
  for (int c = 0; c < 3; ++c) args.v_colors[3 * at + c] = sum[c];
  args.v_depths[at] = sum[9];
  args.v_opacities[at] = -q / s.opacity;
  args.v_means2d[2 * at] = 2.0f * s.half_a * qx + s.b * qy;
  args.v_means2d[2 * at + 1] = s.b * qx + 2.0f * s.half_c * qy;
  args.v_conics[3 * at] = 0.5f * qxx;
  args.v_conics[3 * at + 1] = qxy;
  args.v_conics[3 * at + 2] = 0.5f * qyy;
  if (args.v_probe != nullptr) {
    args.v_probe[2 * at] = args.absgrad ? sum[10] : args.v_means2d[2 * at];
    args.v_probe[2 * at + 1] = args.absgrad ? sum[11] : args.v_means2d[2 * at + 1];
  }
}

// Most rows of a large scene belong to Gaussians out of sight.
void zero_rows(const RasterBwd& args, int64_t begin, int64_t end) {
  const auto zero = [&](float* p, int64_t stride) {
    if (p != nullptr) std::memset(p + begin * stride, 0, sizeof(float) * (end - begin) * stride);
  };
  zero(args.v_means2d, 2);
  zero(args.v_conics, 3);
  zero(args.v_depths, 1);
  zero(args.v_opacities, 1);
  zero(args.v_colors, 3);
  zero(args.v_probe, 2);
}

}  // namespace

void raster_fwd(const RasterFwd& args, int num_threads) {
  const std::vector<int32_t> order = tiles_by_cost(args.grid, args.lists.tile_starts);
  parallel_for(num_threads, args.grid.num_tiles(),
               [&](int64_t i) { lanes().raster_fwd_tile(args, order[i]); });
}

void raster_bwd(const RasterBwd& args, int num_threads) {
  const int slab_size = slab_size_of(args);
  fetch_pages(num_threads, args.slab, args.lists.num * slab_size * sizeof(float));
  const std::vector<int32_t> order = tiles_by_cost(args.grid, args.lists.tile_starts);
  parallel_for(num_threads, args.grid.num_tiles(),
               [&](int64_t i) { lanes().raster_bwd_tile(args, order[i]); });
  parallel_ranges(num_threads, args.num, 1 << 14,
                  [&](int64_t begin, int64_t end) { zero_rows(args, begin, end); });
  parallel_ranges(num_threads, args.splats.num, 1024, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 12;
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) fetch_ahead(args, args.splats.order[i + kAhead]);
      slab_size == kSlabSize ? gather_splat<kSlabSize>(args, i)
                             : gather_splat<kPlainSlabSize>(args, i);
    }
  });
}

}  // namespace splat::cpu
