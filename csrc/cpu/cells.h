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

// Of rows from `row` on, as many as a vector holds: the distance of a center from theirs, in px. It
// is rounded in two steps, and the first is by groups of eight for any width.
template <typename F>
SPLAT_LANES F distance_to_rows(float y, int row);

template <>
inline __attribute__((always_inline)) F8 distance_to_rows<F8>(float y, int row) {
  return (y - (static_cast<float>(row) + 0.5f)) - lane_numbers();
}

SPLAT_LANES void store_rows(float* p, F8 x) { store8(p, x); }
SPLAT_LANES AllLanes all_lanes(F8) { return {}; }

// What the forward pass makes its masks with. Sixteen lanes are for loops that have all of their
// work in them: while such instructions are under way, the others have one unit less.
#if defined(__AVX512F__)
template <>
inline __attribute__((always_inline)) F16 distance_to_rows<F16>(float y, int row) {
  return joined(distance_to_rows<F8>(y, row), distance_to_rows<F8>(y, row + kLanes));
}

SPLAT_LANES void store_rows(float* p, F16 x) { store16(p, x); }
SPLAT_LANES M16 all_lanes(F16) { return 0xffff; }
typedef F16 RowLanes;
#else
typedef F8 RowLanes;
#endif

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
struct alignas(64) RowTerms {
  float dy[kTileSize];     // px
  float along[kTileSize];  // -log2(e) b dy
  float rest[kTileSize];   // log2(opacity) - log2(e) c / 2 dy^2
  float log2_opacity;
};

template <typename F>
SPLAT_LANES RowTerms rows_of(const Splat& s, const Tile& tile) {
  RowTerms rows;
  rows.log2_opacity = log2_opacity_of(s);
  for (int row = 0; row < kTileSize; row += kLanesOf<F>) {
    const F dy = distance_to_rows<F>(s.y, tile.y0 + row);
    store_rows(rows.dy + row, dy);
    store_rows(rows.along + row, (-kLog2E * s.b) * dy);
    store_rows(rows.rest + row,
               multiply_add((-kLog2E * s.half_c) * dy, dy, constant<F>(rows.log2_opacity)));
  }
  return rows;
}

template <typename F>
struct ColumnTermsOf {
  F dx;      // px
  F across;  // -log2(e) a / 2 dx
};
typedef ColumnTermsOf<F8> ColumnTerms;

SPLAT_LANES ColumnTerms columns_of(const Splat& s, const Tile& tile, int half) {
  const F8 dx = (s.x - (static_cast<float>(tile.x0 + half * kLanes) + 0.5f)) - lane_numbers();
  return {dx, (-kLog2E * s.half_a) * dx};
}

template <typename F>
struct BlendedOf {
  F alpha;              // 0 where the splat is not visible
  F weight, next;       // alpha * transmittance where it is added, else 0; transmittance behind it
  LaneMask<F> alive;    // neither finished before nor by this splat; only then it is added
  LaneMask<F> clamped;  // where alpha would pass its limit; unset for a plain splat
};
typedef BlendedOf<F8> Blended;

// Whether sigma cannot be negative, for all rounding, and alpha stays below its limit.
SPLAT_LANES bool is_plain(const Splat& s, float max_alpha) {
  return s.opacity < 0.999f * max_alpha && s.half_c > 0 && s.v2 * s.half_a > 1e-4f * s.half_c;
}

// The blend rule for pixels at `columns`, whose rows have `along` and `rest`: those in `among`, the
// splat is not visible to others. `transmittance` is negative for finished ones. `plain`: what
// is_plain says of the splat, or false.
template <bool plain, typename F, typename Among>
SPLAT_LANES BlendedOf<F> blend_pixels(const ColumnTermsOf<F>& columns, F along, F rest,
                                      float log2_opacity, float max_alpha, F transmittance,
                                      Among among) {
  const F t = multiply_add(columns.across + along, columns.dx, rest);
  BlendedOf<F> r;
  F alpha = power_of_2(t);
  LaneMask<F> visible = at_least(t, constant<F>(kLog2AlphaThreshold), among);
  if constexpr (!plain) {
    visible = at_most(t, constant<F>(log2_opacity + kLog2Rounding), visible);
    r.clamped = above(alpha, constant<F>(max_alpha));
    alpha = minimum(alpha, constant<F>(max_alpha));
  }
  r.alpha = keep(visible, alpha);
  r.weight = r.alpha * transmittance;
  r.next = transmittance - r.weight;
  r.alive = above(r.next, constant<F>(kTransmittanceStop));
  r.weight = keep(r.alive, r.weight);
  return r;
}

// The same for one cell.
template <bool plain>
SPLAT_LANES Blended blend_cell(const ColumnTerms& columns, const RowTerms& rows, int row,
                               float max_alpha, F8 transmittance) {
  return blend_pixels<plain>(columns, constant<F8>(rows.along[row]), constant<F8>(rows.rest[row]),
                             rows.log2_opacity, max_alpha, transmittance, AllLanes{});
}

// The transmittance after a splat. The first that would go below the stop is left out and finishes
// the pixel: its sign turns, its value stays for the output.
template <typename F>
SPLAT_LANES F advance(const BlendedOf<F>& blended, F transmittance) {
  return select(blended.alive, blended.next, negative_magnitude(transmittance));
}

// The cells that the splat's ellipse meets.
template <typename F>
SPLAT_LANES uint32_t cells_of(const Splat& s, const Tile& tile) {
  uint32_t cells = 0;
  for (int row = 0; row < kTileSize; row += kLanesOf<F>) {
    const F dy = distance_to_rows<F>(s.y, tile.y0 + row);
    const F center = (s.x - static_cast<float>(tile.x0)) + s.slope * dy;
    // Outside the ellipse the root is NaN, and NaN touches no cell.
    const F half_width =
        square_root(constant<F>(s.w2) - s.v2 * dy * dy) + constant<F>(kPixelMargin);
    const F left = center - half_width, right = center + half_width;
    const auto meets = [&](float first, float last) {
      const auto begins = at_most(left, constant<F>(last), all_lanes(left));
      return lane_bits(at_least(right, constant<F>(first), begins));
    };
    cells |= (meets(0.5f, 7.5f) | meets(8.5f, 15.5f) << 16) << row;
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
