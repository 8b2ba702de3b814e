// A tile of 16 x 16 pixels as 32 cells of 8, and which of them an ellipse touches: cell 2 * row +
// half holds pixels 8 * half .. 8 * half + 7 of that row. For the *_lanes.cpp, behind simd.h.
#pragma once

#include "../blend.h"
#include "../kernels.h"
#include "splat.h"

namespace splat::cpu::SPLAT_ISA {

constexpr int kCells = kTileSize * kTileSize / kLanes;
static_assert(kCells == 32 && kTileSize == 2 * kLanes, "a mask of cells is one 32-bit word");

struct Tile {
  int x0, y0;         // px, its top-left corner
  int columns, rows;  // px inside the image
};

SPLAT_LANES Tile tile_at(const ImageGrid& grid, int64_t index) {
  const int x0 = static_cast<int>(index % grid.tiles_x) * kTileSize;
  const int y0 = static_cast<int>(index / grid.tiles_x) * kTileSize;
  const int columns = grid.width - x0, rows = grid.height - y0;
  return {x0, y0, columns < kTileSize ? columns : kTileSize, rows < kTileSize ? rows : kTileSize};
}

constexpr int32_t kAhead = 6;

// The splats of a list lie scattered: without this a fifth of the forward pass waits for memory.
SPLAT_LANES void fetch_ahead(const Splat* splats, const int32_t* instances, int32_t i,
                             int32_t end) {
  if (i + kAhead < end) __builtin_prefetch(splats + instances[i + kAhead]);
}

SPLAT_LANES F8 lane_numbers() { return F8{0, 1, 2, 3, 4, 5, 6, 7}; }

// The number of a cell's pixels that lie in the image.
SPLAT_LANES int pixels_inside(const Tile& tile, int cell) {
  if ((cell >> 1) >= tile.rows) return 0;
  const int columns = tile.columns - (cell & 1) * kLanes;
  return columns < 0 ? 0 : (columns < kLanes ? columns : kLanes);
}

SPLAT_LANES uint32_t cells_inside(const Tile& tile) {
  uint32_t cells = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    cells |= (pixels_inside(tile, cell) > 0 ? 1u : 0u) << cell;
  }
  return cells;
}

// Every bit of a byte to every second bit of a word.
SPLAT_LANES uint32_t spread_bits(uint32_t x) {
  x = (x | x << 4) & 0x0f0fu;
  x = (x | x << 2) & 0x3333u;
  return (x | x << 1) & 0x5555u;
}

// The cells of eight rows, from `first_row` on, that the ellipse may touch: 16 bits.
SPLAT_LANES uint32_t cells_of_rows(const Splat& s, const Tile& tile, int first_row) {
  const F8 ey = lane_numbers() + (static_cast<float>(tile.y0 + first_row) + 0.5f - s.y);
  const F8 center = (s.x - static_cast<float>(tile.x0)) - s.slope * ey;
  // Outside the ellipse the root is NaN, and NaN touches no cell.
  const F8 half_width =
      square_root(constant<F8>(s.w2) - s.v2 * ey * ey) + constant<F8>(kPixelMargin);
  const F8 left = center - half_width, right = center + half_width;
  const I8 in_left = (left <= constant<F8>(7.5f)) & (right >= constant<F8>(0.5f));
  const I8 in_right = (left <= constant<F8>(15.5f)) & (right >= constant<F8>(8.5f));
  return spread_bits(lane_bits(in_left)) | spread_bits(lane_bits(in_right)) << 1;
}

SPLAT_LANES uint32_t cells_of(const Splat& s, const Tile& tile) {
  return cells_of_rows(s, tile, 0) | cells_of_rows(s, tile, 8) << 16;
}

// Where a cell's pixels lie as seen from the splat: centre - pixel.
struct Offsets {
  F8 dx;
  float dy;
};

SPLAT_LANES Offsets offsets_of(const Splat& s, const Tile& tile, int cell) {
  const float x = static_cast<float>(tile.x0 + (cell & 1) * kLanes) + 0.5f;
  return {(s.x - x) - lane_numbers(), s.y - (static_cast<float>(tile.y0 + (cell >> 1)) + 0.5f)};
}

SPLAT_LANES F8 sigma_at(const Splat& s, const Offsets& at) {
  return falloff(constant<F8>(s.half_a), constant<F8>(s.b), constant<F8>(s.half_c), at.dx,
                 constant<F8>(at.dy));
}

// 1 for pixels inside the image; others start finished.
SPLAT_LANES F8 first_transmittance(const Tile& tile, int cell) {
  const float inside = static_cast<float>(pixels_inside(tile, cell));
  return select(lane_numbers() < constant<F8>(inside), constant<F8>(1.0f), constant<F8>(-1.0f));
}

}  // namespace splat::cpu::SPLAT_ISA
