// The tiles of ellipses, one after the other: what is gained is the instructions for rounding.
#include "../cover.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {

int64_t walk_tiles(const Splat* splats, int64_t begin, int64_t end, const ImageGrid& grid,
                   int64_t* counts, TileBuffer& buffer) {
  const int64_t last = buffer.capacity - grid.num_tiles();
  int64_t i = begin;
  for (; i < end && buffer.num <= last; ++i) {
    const int64_t before = buffer.num;
    const CoveredRows covered = covered_rows(splats[i], grid);
    for (int ty = covered.rows.begin; ty < covered.rows.end; ++ty) {
      const TileRange columns = covered_columns(splats[i], grid, covered, ty);
      for (int tx = columns.begin; tx < columns.end; ++tx) {
        buffer.tiles[buffer.num++] = ty * grid.tiles_x + tx;
      }
    }
    counts[i] = buffer.num - before;
  }
  return i;
}

}  // namespace splat::cpu::SPLAT_ISA
