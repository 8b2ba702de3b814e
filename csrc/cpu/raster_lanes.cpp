// One tile of 16 x 16 pixels, forward and backward: 32 cells of 8 pixels whose state stays in L1.
//
// For each splat of the tile's list the ellipse's spans give a mask of cells (see cells.h); what is
// in it and still live is visited.
#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../blend.h"
#include "cells.h"
#include "forward_tile.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

SPLAT_LANES void write_cell(const RasterFwd& args, const Tile& tile, int index,
                            const ForwardCell& cell) {
  const int count = pixels_inside(tile, index);
  const int64_t pixel = static_cast<int64_t>(tile.y0 + index % kTileSize) * args.grid.width +
                        tile.x0 + index / kTileSize * kLanes;
  const F8 left = magnitude(cell.transmittance);
  const float* bg = args.background;
  const F8 red = cell.red + left * bg[0], green = cell.green + left * bg[1];
  const F8 blue = cell.blue + left * bg[2];
  for (int i = 0; i < count; ++i) {
    args.rgb[3 * (pixel + i)] = red[i];
    args.rgb[3 * (pixel + i) + 1] = green[i];
    args.rgb[3 * (pixel + i) + 2] = blue[i];
    args.alpha[pixel + i] = 1.0f - left[i];
    args.depth_sum[pixel + i] = cell.depth[i];
  }
}

// A pixel on the way back, front to back: gradients of the outputs there, and
// suffix = sum over the splats still to come of weight * (color . v_rgb + depth * v_depth_sum)
//          + the part of the final transmittance (background and alpha).
struct BackwardCell {
  F8 transmittance, suffix, v_red, v_green, v_blue, v_depth;
};

// What one splat collects over its tile; q = d loss / d sigma.
struct Collected {
  F8 red, green, blue, q, qx, qy, qxx, qxy;  // the first eight are summed over lanes together
  F8 qyy, depth, abs_x, abs_y;
};
static_assert(sizeof(Collected) == kSlabSize * sizeof(F8), "one slab row");

// While one half of the tile is walked dx is fixed, so its powers are multiplied in at the end.
struct HalfSums {
  F8 q, qy, qyy;
};

template <bool plain, bool with_depth, bool absgrad>
SPLAT_LANES void cell_vjp(const Splat& s, const Blended& blended, F8 dx, float dy,
                          BackwardCell& cell, Collected& sum, HalfSums& half) {
  sum.red = multiply_add(blended.weight, cell.v_red, sum.red);
  sum.green = multiply_add(blended.weight, cell.v_green, sum.green);
  sum.blue = multiply_add(blended.weight, cell.v_blue, sum.blue);
  F8 own = s.red * cell.v_red;
  own = multiply_add(constant<F8>(s.green), cell.v_green, own);
  own = multiply_add(constant<F8>(s.blue), cell.v_blue, own);
  if constexpr (with_depth) {
    sum.depth = multiply_add(blended.weight, cell.v_depth, sum.depth);
    own = multiply_add(constant<F8>(s.depth), cell.v_depth, own);
  }
  const F8 gain = blended.weight * own;
  cell.suffix = cell.suffix - gain;
  const F8 alpha = keep(blended.alive, blended.alpha);
  F8 q = alpha / (constant<F8>(1.0f) - alpha) * cell.suffix - gain;
  if constexpr (!plain) q = select(blended.clamped, constant<F8>(0.0f), q);
  const F8 qy = q * dy;
  half.q = half.q + q;
  half.qy = half.qy + qy;
  half.qyy = multiply_add(qy, constant<F8>(dy), half.qyy);
  if constexpr (absgrad) {
    const F8 by = constant<F8>(s.b * dy), cy = constant<F8>(2.0f * s.half_c * dy);
    sum.abs_x = sum.abs_x + magnitude(q * (2.0f * s.half_a * dx + by));
    sum.abs_y = sum.abs_y + magnitude(q * (s.b * dx + cy));
  }
}

template <bool plain, bool with_depth, bool absgrad>
SPLAT_LANES Collected splat_vjp(const Splat& s, const Tile& tile, uint32_t mask, float max_alpha,
                                BackwardCell* cells) {
  const RowTerms rows = rows_of<F8>(s, tile);
  const F8 zero = constant<F8>(0.0f);
  Collected sum = {zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero};
  for (int half = 0; half < 2; ++half) {
    uint32_t left = rows_in_half(mask, half);
    if (left == 0) continue;
    const ColumnTerms columns = columns_of(s, tile, half);
    HalfSums of_half = {zero, zero, zero};
    for (; left != 0; left &= left - 1) {
      const int row = __builtin_ctz(left);
      BackwardCell& cell = cells[half * kTileSize + row];
      const Blended blended = blend_cell<plain>(columns, rows, row, max_alpha, cell.transmittance);
      cell_vjp<plain, with_depth, absgrad>(s, blended, columns.dx, rows.dy[row], cell, sum,
                                           of_half);
      cell.transmittance = advance(blended, cell.transmittance);
    }
    const F8 qx = of_half.q * columns.dx;
    sum.q = sum.q + of_half.q;
    sum.qx = sum.qx + qx;
    sum.qy = sum.qy + of_half.qy;
    sum.qxx = multiply_add(qx, columns.dx, sum.qxx);
    sum.qxy = multiply_add(of_half.qy, columns.dx, sum.qxy);
    sum.qyy = sum.qyy + of_half.qyy;
  }
  return sum;
}

SPLAT_LANES F8 load_some(const float* p, int64_t stride, int count) {
  F8 x = constant<F8>(0.0f);
  for (int i = 0; i < count; ++i) x[i] = p[i * stride];
  return x;
}

SPLAT_LANES BackwardCell read_cell(const RasterBwd& args, const Tile& tile, int index) {
  const int count = pixels_inside(tile, index);
  const F8 zero = constant<F8>(0.0f);
  BackwardCell cell = {first_transmittance(tile, index), zero, zero, zero, zero, zero};
  if (count == 0) return cell;
  const int64_t pixel = static_cast<int64_t>(tile.y0 + index % kTileSize) * args.grid.width +
                        tile.x0 + index / kTileSize * kLanes;
  if (args.v_rgb != nullptr) {
    cell.v_red = load_some(args.v_rgb + 3 * pixel, 3, count);
    cell.v_green = load_some(args.v_rgb + 3 * pixel + 1, 3, count);
    cell.v_blue = load_some(args.v_rgb + 3 * pixel + 2, 3, count);
    cell.suffix = cell.v_red * load_some(args.rgb + 3 * pixel, 3, count) +
                  cell.v_green * load_some(args.rgb + 3 * pixel + 1, 3, count) +
                  cell.v_blue * load_some(args.rgb + 3 * pixel + 2, 3, count);
  }
  if (args.v_depth_sum != nullptr) {
    cell.v_depth = load_some(args.v_depth_sum + pixel, 1, count);
    cell.suffix = cell.suffix + cell.v_depth * load_some(args.depth_sum + pixel, 1, count);
  }
  if (args.v_alpha != nullptr) {
    const F8 left = constant<F8>(1.0f) - load_some(args.alpha + pixel, 1, count);
    cell.suffix = cell.suffix - left * load_some(args.v_alpha + pixel, 1, count);
  }
  return cell;
}

template <bool with_depth, bool absgrad>
void tile_vjp(const RasterBwd& args, int64_t index) {
  constexpr int slab_size = with_depth || absgrad ? kSlabSize : kPlainSlabSize;
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  const int32_t begin = args.lists.tile_starts[index], end = args.tile_ends[index];
  BackwardCell cells[kCells];
  if (begin < end) {
    for (int i = 0; i < kCells; ++i) cells[i] = read_cell(args, tile, i);
  }
  for (int32_t i = begin; i < args.lists.tile_starts[index + 1]; ++i) {
    float* row = args.slab + static_cast<int64_t>(args.lists.slots[i]) * slab_size;
    uint32_t cells_left = i < end ? args.masks[i] : 0;
    if (cells_left == 0) {
      std::memset(row, 0, slab_size * sizeof(float));
      continue;
    }
    fetch_ahead(splats, args.lists.instances, i, end);
    if (i + kAhead < end) {
      __builtin_prefetch(args.slab + static_cast<int64_t>(args.lists.slots[i + kAhead]) * slab_size,
                         1);
    }
    const Splat& s = splats[args.lists.instances[i]];
    const Collected sum =
        is_plain(s, args.max_alpha)
            ? splat_vjp<true, with_depth, absgrad>(s, tile, cells_left, args.max_alpha, cells)
            : splat_vjp<false, with_depth, absgrad>(s, tile, cells_left, args.max_alpha, cells);
    store8(row, sum_lanes_of_8(&sum.red));
    row[8] = sum_lanes(sum.qyy);
    if constexpr (slab_size == kPlainSlabSize) continue;
    row[9] = with_depth ? sum_lanes(sum.depth) : 0.0f;
    row[10] = absgrad ? sum_lanes(sum.abs_x) : 0.0f;
    row[11] = absgrad ? sum_lanes(sum.abs_y) : 0.0f;
  }
}

// Writes the cells of the next splats, and returns up to where. How many cells a splat has is not
// foreseen: each wrong guess is known as soon as the mask is, so masks are made before they are
// asked for.
SPLAT_LANES int32_t find_cells(const RasterFwd& args, const Splat* splats, const Tile& tile,
                               int32_t begin, int32_t end) {
  constexpr int32_t kGroup = 32;
  const int32_t until = end - begin < kGroup ? end : begin + kGroup;
  for (int32_t i = begin; i < until; ++i) {
    fetch_ahead(splats, args.lists.instances, i, end);
    args.masks[i] = cells_of<RowLanes>(splats[args.lists.instances[i]], tile);
  }
  return until;
}

}  // namespace

void raster_fwd_tile(const RasterFwd& args, int64_t index) {
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  ForwardTile state(tile);
  uint32_t live = cells_inside(tile);
  int32_t i = args.lists.tile_starts[index];
  const int32_t end = args.lists.tile_starts[index + 1];
  for (int32_t known = i; i < end && live != 0; ++i) {
    if (i == known) known = find_cells(args, splats, tile, i, end);
    const Splat& s = splats[args.lists.instances[i]];
    const RowTerms rows = rows_of<RowLanes>(s, tile);
    const uint32_t mask = args.masks[i] & live;
    args.masks[i] = mask;
    if (is_plain(s, args.max_alpha)) {
      live &= ~add_splat<true>(s, tile, rows, mask, args.max_alpha, state);
    } else {
      live &= ~add_splat<false>(s, tile, rows, mask, args.max_alpha, state);
    }
  }
  args.tile_ends[index] = i;
  for (int cell = 0; cell < kCells; ++cell) write_cell(args, tile, cell, state.cell(cell));
}

void raster_bwd_tile(const RasterBwd& args, int64_t index) {
  if (args.v_depth_sum != nullptr) {
    args.absgrad ? tile_vjp<true, true>(args, index) : tile_vjp<true, false>(args, index);
  } else {
    args.absgrad ? tile_vjp<false, true>(args, index) : tile_vjp<false, false>(args, index);
  }
}

}  // namespace splat::cpu::SPLAT_ISA
