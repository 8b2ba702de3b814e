#include <cstring>

#include "lanes.h"
#include "modes_lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

struct ModeLanes {
  void (*shapes)(const Shapes&, int64_t begin, int64_t end);
  void (*median_tile)(const RasterMedian&, int64_t tile);
  void (*solid_tile)(const RasterSolid&, int64_t tile);
  void (*bytes)(const ToBytes&, int64_t begin, int64_t end);
};

#define SPLAT_MODES_OF(isa) \
  ModeLanes { isa::shapes, isa::median_tile, isa::solid_tile, isa::bytes }

const ModeLanes& mode_lanes() {
  static const ModeLanes chosen = [] {
#if defined(__x86_64__)
    if (std::strcmp(lanes().name, "avx512") == 0) return SPLAT_MODES_OF(avx512);
    if (std::strcmp(lanes().name, "avx2") == 0) return SPLAT_MODES_OF(avx2);
#endif
    return SPLAT_MODES_OF(portable);
  }();
  return chosen;
}

constexpr int64_t kGaussiansATask = 1024;
constexpr int64_t kValuesATask = 1 << 16;

}  // namespace

void splat_shapes(const Shapes& args, int num_threads) {
  parallel_ranges(num_threads, args.gaussians.num, kGaussiansATask,
                  [&](int64_t begin, int64_t end) { mode_lanes().shapes(args, begin, end); });
}

void raster_median(const RasterMedian& args, int num_threads) {
  parallel_for(num_threads, args.grid.num_tiles(),
               [&](int64_t tile) { mode_lanes().median_tile(args, tile); });
}

void raster_solid(const RasterSolid& args, int num_threads) {
  parallel_for(num_threads, args.grid.num_tiles(),
               [&](int64_t tile) { mode_lanes().solid_tile(args, tile); });
}

void to_uint8(const ToBytes& args, int num_threads) {
  parallel_ranges(num_threads, args.num, kValuesATask,
                  [&](int64_t begin, int64_t end) { mode_lanes().bytes(args, begin, end); });
}

}  // namespace splat::cpu
