// The tiles of ellipses. What is gained are the instructions for rounding, and that the ellipses of
// a group are under way together: how many rows and columns one has is not foreseen, and after each
// wrong guess one alone would be waited for, from its first root to its last.
#include "../cover.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

constexpr int kGroup = 64;   // splats
constexpr int kBands = 128;  // rows of tiles of splats

struct Band {
  int32_t member, ty;
};

// Tiles a splat may have, at most.
int64_t most_tiles(const Splat& s, const ImageGrid& grid, const CoveredRows& covered) {
  const float columns =
      minimum(s.radius_x * (2.0f / kTileSize) + 2.0f, static_cast<float>(grid.tiles_x));
  return (covered.rows.end - covered.rows.begin) * static_cast<int64_t>(columns);
}

void write_bands(const Splat* group, const ImageGrid& grid, const CoveredRows* covered,
                 const Band* bands, int num_bands, int64_t* counts, TileBuffer& buffer) {
  for (int i = 0; i < num_bands; ++i) {
    const Band band = bands[i];
    const TileRange columns =
        covered_columns(group[band.member], grid, covered[band.member], band.ty);
    const int num = columns.end > columns.begin ? columns.end - columns.begin : 0;
    const int32_t first = band.ty * grid.tiles_x + columns.begin;
    int32_t* tiles = buffer.tiles + buffer.num;
    for (int k = 0; k < kMostWritten; ++k) tiles[k] = first + k;
    for (int k = kMostWritten; k < num; ++k) tiles[k] = first + k;
    buffer.num += num;
    counts[band.member] += num;
  }
}

}  // namespace

int64_t walk_tiles(const Splat* splats, int64_t begin, int64_t end, const ImageGrid& grid,
                   int64_t* counts, TileBuffer& buffer) {
  CoveredRows covered[kGroup];
  Band bands[kBands];
  for (int64_t first = begin; first < end;) {
    const int size = static_cast<int>(end - first < kGroup ? end - first : kGroup);
    for (int k = 0; k < size; ++k) covered[k] = covered_rows(splats[first + k], grid);
    int64_t room = buffer.capacity - buffer.num - kMostWritten;
    int num_bands = 0, member = 0;
    const auto write = [&] {
      write_bands(splats + first, grid, covered, bands, num_bands, counts + first, buffer);
      num_bands = 0;
    };
    for (; member < size; ++member) {
      room -= most_tiles(splats[first + member], grid, covered[member]);
      if (room < 0) break;
      counts[first + member] = 0;
      const TileRange rows = covered[member].rows;
      for (int ty = rows.begin; ty < rows.end; ++ty) {
        bands[num_bands++] = {member, ty};
        if (num_bands == kBands) write();
      }
    }
    write();
    first += member;
    if (member < size) return first;
  }
  return end;
}

}  // namespace splat::cpu::SPLAT_ISA
