// What the forward pass keeps of a tile's pixels, and how a splat is added to them: one cell after
// the other or, where the machine has AVX-512, two at a time, one below the other. Bits are the
// same, for pixels do not mix, and to a cell that is not in the mask the splat is not visible. For
// raster_lanes.cpp, behind cells.h.
#pragma once

#include "cells.h"

namespace splat::cpu::SPLAT_ISA {

template <typename F>
struct ForwardState {
  F transmittance, red, green, blue, depth;
};
typedef ForwardState<F8> ForwardCell;

#if defined(__AVX512F__)
constexpr int kPairs = kCells / 2;
constexpr uint32_t kUpperCells = 0x55555555u;  // in a mask of cells, the upper of each pair
static_assert(kLanes == 8 && kWideLanes == 16, "a cell in each half");

typedef ForwardState<F16> ForwardPair;

// Calls visit(pair's upper cell, mask of its lanes) on all pairs of which a cell is in the mask.
template <typename Visit>
SPLAT_LANES void for_pairs(uint32_t cells, const Visit& visit) {
  constexpr uint16_t kLanesIn[4] = {0, 0x00ff, 0xff00, 0xffff};
  for (uint32_t left = (cells | cells >> 1) & kUpperCells; left != 0; left &= left - 1) {
    const uint32_t upper = __builtin_ctz(left);
    visit(upper, static_cast<M16>(kLanesIn[cells >> upper & 3]));
  }
}

// The term of a row in the lanes of its cell.
SPLAT_LANES F16 row_terms(const float* terms, uint32_t row) {
  return select(static_cast<M16>(0xff00), constant<F16>(terms[row + 1]), constant<F16>(terms[row]));
}

SPLAT_LANES ColumnTermsOf<F16> twice(const ColumnTerms& columns) {
  return {joined(columns.dx, columns.dx), joined(columns.across, columns.across)};
}

template <bool plain>
SPLAT_LANES BlendedOf<F16> blend_pair(const ColumnTermsOf<F16>& columns, const RowTerms& rows,
                                      uint32_t row, float max_alpha, F16 transmittance, M16 among) {
  return blend_pixels<plain>(columns, row_terms(rows.along, row), row_terms(rows.rest, row),
                             rows.log2_opacity, max_alpha, transmittance, among);
}

struct ForwardTile {
  ForwardPair pairs[kPairs];

  SPLAT_LANES explicit ForwardTile(const Tile& tile) {
    const F16 zero = constant<F16>(0.0f);
    for (int i = 0; i < kPairs; ++i) {
      const F16 first =
          joined(first_transmittance(tile, 2 * i), first_transmittance(tile, 2 * i + 1));
      pairs[i] = {first, zero, zero, zero, zero};
    }
  }

  SPLAT_LANES ForwardCell cell(int index) const {
    const ForwardPair& p = pairs[index / 2];
    const auto half = [&](F16 x) { return index % 2 == 0 ? low_half(x) : high_half(x); };
    return {half(p.transmittance), half(p.red), half(p.green), half(p.blue), half(p.depth)};
  }
};

// Adds a splat to the cells in `mask` and returns those that it has finished.
template <bool plain>
SPLAT_LANES uint32_t add_splat(const Splat& s, const Tile& tile, const RowTerms& rows,
                               uint32_t mask, float max_alpha, ForwardTile& state) {
  uint32_t finished = 0;
  const ColumnTermsOf<F16> columns[2] = {twice(columns_of(s, tile, 0)),
                                         twice(columns_of(s, tile, 1))};
  for_pairs(mask, [&](uint32_t upper, M16 among) {
    ForwardPair& pair = state.pairs[upper / 2];
    const BlendedOf<F16> r = blend_pair<plain>(columns[upper / kTileSize], rows, upper % kTileSize,
                                               max_alpha, pair.transmittance, among);
    pair.red = multiply_add(r.weight, constant<F16>(s.red), pair.red);
    pair.green = multiply_add(r.weight, constant<F16>(s.green), pair.green);
    pair.blue = multiply_add(r.weight, constant<F16>(s.blue), pair.blue);
    pair.depth = multiply_add(r.weight, constant<F16>(s.depth), pair.depth);
    pair.transmittance = advance(r, pair.transmittance);
    const uint32_t alive = lane_bits(r.alive);
    if (alive <= 0x00ff) finished |= 2u << upper;
    if ((alive & 0x00ff) == 0) finished |= 1u << upper;
  });
  return finished & mask;
}

#else

struct ForwardTile {
  ForwardCell cells[kCells];

  SPLAT_LANES explicit ForwardTile(const Tile& tile) {
    const F8 zero = constant<F8>(0.0f);
    for (int i = 0; i < kCells; ++i) {
      cells[i] = {first_transmittance(tile, i), zero, zero, zero, zero};
    }
  }

  SPLAT_LANES const ForwardCell& cell(int index) const { return cells[index]; }
};

// Adds a splat to the cells in `mask` and returns those that it has finished.
template <bool plain>
SPLAT_LANES uint32_t add_splat(const Splat& s, const Tile& tile, const RowTerms& rows,
                               uint32_t mask, float max_alpha, ForwardTile& state) {
  uint32_t finished = 0;
  const ColumnTerms columns[2] = {columns_of(s, tile, 0), columns_of(s, tile, 1)};
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int index = __builtin_ctz(left), row = index % kTileSize;
    ForwardCell& cell = state.cells[index];
    const Blended r =
        blend_cell<plain>(columns[index / kTileSize], rows, row, max_alpha, cell.transmittance);
    cell.red = multiply_add(r.weight, constant<F8>(s.red), cell.red);
    cell.green = multiply_add(r.weight, constant<F8>(s.green), cell.green);
    cell.blue = multiply_add(r.weight, constant<F8>(s.blue), cell.blue);
    cell.depth = multiply_add(r.weight, constant<F8>(s.depth), cell.depth);
    cell.transmittance = advance(r, cell.transmittance);
    if (lane_bits(r.alive) == 0) finished |= 1u << index;
  }
  return finished;
}

#endif

}  // namespace splat::cpu::SPLAT_ISA
