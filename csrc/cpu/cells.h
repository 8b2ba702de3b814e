// A tile of 16 x 16 pixels as 32 cells of 8, and how a splat meets them: cell 16 * half + row holds
// pixels 8 * half .. 8 * half + 7 of that row. For the *_lanes.cpp, behind simd.h.
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
  if ((cell % kTileSize) >= tile.rows) return 0;
  const int columns = tile.columns - (cell / kTileSize) * kLanes;
  return columns < 0 ? 0 : (columns < kLanes ? columns : kLanes);
}

SPLAT_LANES uint32_t cells_inside(const Tile& tile) {
  uint32_t cells = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    cells |= (pixels_inside(tile, cell) > 0 ? 1u : 0u) << cell;
  }
  return cells;
}

// log2 of the opacity, from the limit k / 2 = ln(255 opacity) + kExtentMargin / 2.
SPLAT_LANES float log2_opacity_of(const Splat& s) {
  constexpr float kLog255 = 5.54126355f;
  const float log2_opacity = kLog2E * (s.sigma_limit - (kLog255 + 0.5f * kExtentMargin));
  return log2_opacity < kMostLog2Opacity ? log2_opacity : kMostLog2Opacity;
}

// alpha is 2^t, t = log2(opacity) - log2(e) sigma: one power of 2 instead of an exponential and a
// product. With (dx, dy) = center - pixel it is t = (across + along) dx + rest, of which a column
// and a row share their parts. Forward and backward must agree to the bit on who is visible, so
// both make it with these functions, and fused steps are spelled out.
struct alignas(32) RowTerms {
  float dy[kTileSize];     // px
  float along[kTileSize];  // -log2(e) b dy
  float rest[kTileSize];   // log2(opacity) - log2(e) c / 2 dy^2
  float log2_opacity;
};

SPLAT_LANES RowTerms rows_of(const Splat& s, const Tile& tile) {
  RowTerms rows;
  rows.log2_opacity = log2_opacity_of(s);
  for (int row = 0; row < kTileSize; row += kLanes) {
    const F8 dy = (s.y - (static_cast<float>(tile.y0 + row) + 0.5f)) - lane_numbers();
    store8(rows.dy + row, dy);
    store8(rows.along + row, (-kLog2E * s.b) * dy);
    store8(rows.rest + row,
           multiply_add((-kLog2E * s.half_c) * dy, dy, constant<F8>(rows.log2_opacity)));
  }
  return rows;
}

struct ColumnTerms {
  F8 dx;      // px
  F8 across;  // -log2(e) a / 2 dx
};

SPLAT_LANES ColumnTerms columns_of(const Splat& s, const Tile& tile, int half) {
  const F8 dx = (s.x - (static_cast<float>(tile.x0 + half * kLanes) + 0.5f)) - lane_numbers();
  return {dx, (-kLog2E * s.half_a) * dx};
}

struct Blended {
  F8 alpha;         // 0 where the splat is not visible
  F8 weight, next;  // alpha * transmittance where it is added, else 0; transmittance behind it
  I8 alive;         // neither finished before nor by this splat; only then it is added
  I8 clamped;       // where alpha would pass its limit; unset for a plain splat
};

// Whether sigma cannot be negative, for all rounding, and alpha stays below its limit.
SPLAT_LANES bool is_plain(const Splat& s, float max_alpha) {
  return s.opacity < 0.999f * max_alpha && s.half_c > 0 && s.v2 * s.half_a > 1e-4f * s.half_c;
}

// The blend rule for the pixels of one cell; `transmittance` is negative for finished
// ones. `plain`: what is_plain says of the splat, or false.
template <bool plain>
SPLAT_LANES Blended blend_cell(const ColumnTerms& columns, const RowTerms& rows, int row,
                               float max_alpha, F8 transmittance) {
  const F8 t =
      multiply_add(columns.across + rows.along[row], columns.dx, constant<F8>(rows.rest[row]));
  Blended r;
  F8 alpha = power_of_2(t);
  I8 visible = t >= constant<F8>(kLog2AlphaThreshold);
  if constexpr (!plain) {
    visible &= t <= constant<F8>(rows.log2_opacity + kLog2Rounding);
    r.clamped = alpha > constant<F8>(max_alpha);
    alpha = minimum(alpha, constant<F8>(max_alpha));
  }
  r.alpha = keep(visible, alpha);
  r.weight = r.alpha * transmittance;
  r.next = transmittance - r.weight;
  r.alive = r.next > constant<F8>(kTransmittanceStop);
  r.weight = keep(r.alive, r.weight);
  return r;
}

// The transmittance after a splat. The first that would go below the stop is left out and finishes
// the pixel: its sign turns, its value stays for the output.
SPLAT_LANES F8 advance(const Blended& blended, F8 transmittance) {
  return select(blended.alive, blended.next, negative_magnitude(transmittance));
}

SPLAT_LANES uint32_t cells_of(const Splat& s, const Tile& tile, const RowTerms& rows) {
  uint32_t cells = 0;
  for (int group = 0; group < 2; ++group) {
    const F8 dy = load8(rows.dy + group * kLanes);
    const F8 center = (s.x - static_cast<float>(tile.x0)) + s.slope * dy;
    // Outside the ellipse the root is NaN, and NaN touches no cell.
    const F8 half_width =
        square_root(constant<F8>(s.w2) - s.v2 * dy * dy) + constant<F8>(kPixelMargin);
    const F8 left = center - half_width, right = center + half_width;
    const I8 in_left = (left <= constant<F8>(7.5f)) & (right >= constant<F8>(0.5f));
    const I8 in_right = (left <= constant<F8>(15.5f)) & (right >= constant<F8>(8.5f));
    cells |= (lane_bits(in_left) | lane_bits(in_right) << 16) << (group * kLanes);
  }
  return cells;
}

// The bits of one half's rows.
SPLAT_LANES uint32_t rows_in_half(uint32_t cells, int half) {
  return cells >> (half * kTileSize) & 0xffffu;
}

// 1 for pixels inside the image; others start finished.
SPLAT_LANES F8 first_transmittance(const Tile& tile, int cell) {
  const float inside = static_cast<float>(pixels_inside(tile, cell));
  return select(lane_numbers() < constant<F8>(inside), constant<F8>(1.0f), constant<F8>(-1.0f));
}

}  // namespace splat::cpu::SPLAT_ISA
