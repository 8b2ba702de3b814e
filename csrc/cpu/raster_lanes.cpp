// One tile of 16 x 16 pixels, forward and backward: 32 cells of 8 pixels whose state stays in L1.
//
// Cell 2 * row + half holds pixels 8 * half .. 8 * half + 7 of that row. For each splat of the
// tile's list the ellipse's spans give a mask of cells; what is in it and still live is visited.
#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../blend.h"
#include "cells.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

struct ForwardCell {
  F8 transmittance, red, green, blue, depth;
};

// Adds a splat to one cell; returns whether any of its pixels is still unfinished.
SPLAT_LANES bool blend(const Splat& s, const Tile& tile, int index, float max_alpha,
                       ForwardCell& cell) {
  const F8 zero = constant<F8>(0.0f);
  const F8 sigma = sigma_at(s, offsets_of(s, tile, index));
  // Most cells that are left here are left before the exponential.
  const I8 close = (sigma <= constant<F8>(s.sigma_limit)) & (cell.transmittance > zero);
  if (lane_bits(close) == 0) return true;
  const Coverage<F8> c =
      cover(sigma, constant<F8>(s.opacity), constant<F8>(max_alpha), cell.transmittance);
  const F8 weight = select(c.added, c.alpha * cell.transmittance, zero);
  cell.red = multiply_add(weight, constant<F8>(s.red), cell.red);
  cell.green = multiply_add(weight, constant<F8>(s.green), cell.green);
  cell.blue = multiply_add(weight, constant<F8>(s.blue), cell.blue);
  cell.depth = multiply_add(weight, constant<F8>(s.depth), cell.depth);
  cell.transmittance = advance(c, cell.transmittance);
  return lane_bits(cell.transmittance > zero) != 0;
}

SPLAT_LANES void write_cell(const RasterFwd& args, const Tile& tile, int index,
                            const ForwardCell& cell) {
  const int count = pixels_inside(tile, index);
  const int64_t pixel = static_cast<int64_t>(tile.y0 + (index >> 1)) * args.grid.width + tile.x0 +
                        (index & 1) * kLanes;
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

template <bool absgrad>
SPLAT_LANES void blend_vjp(const Splat& s, const Tile& tile, int index, float max_alpha,
                           BackwardCell& cell, Collected& sum) {
  const F8 zero = constant<F8>(0.0f), one = constant<F8>(1.0f);
  const Offsets at = offsets_of(s, tile, index);
  const F8 sigma = sigma_at(s, at);
  const Coverage<F8> c =
      cover(sigma, constant<F8>(s.opacity), constant<F8>(max_alpha), cell.transmittance);
  const F8 weight = select(c.added, c.alpha * cell.transmittance, zero);
  sum.red = multiply_add(weight, cell.v_red, sum.red);
  sum.green = multiply_add(weight, cell.v_green, sum.green);
  sum.blue = multiply_add(weight, cell.v_blue, sum.blue);
  sum.depth = multiply_add(weight, cell.v_depth, sum.depth);
  F8 own = s.red * cell.v_red;
  own = multiply_add(constant<F8>(s.green), cell.v_green, own);
  own = multiply_add(constant<F8>(s.blue), cell.v_blue, own);
  own = multiply_add(constant<F8>(s.depth), cell.v_depth, own);
  cell.suffix = cell.suffix - weight * own;
  const F8 v_alpha = cell.transmittance * own - cell.suffix / (one - c.alpha);
  const F8 q = select(c.clamped, zero, select(c.added, -c.alpha * v_alpha, zero));
  const F8 qx = q * at.dx;
  sum.q = sum.q + q;
  sum.qx = sum.qx + qx;
  sum.qy = multiply_add(q, constant<F8>(at.dy), sum.qy);
  sum.qxx = multiply_add(qx, at.dx, sum.qxx);
  sum.qxy = multiply_add(qx, constant<F8>(at.dy), sum.qxy);
  sum.qyy = multiply_add(q, constant<F8>(at.dy * at.dy), sum.qyy);
  if constexpr (absgrad) {
    const F8 by = constant<F8>(s.b * at.dy), cy = constant<F8>(2.0f * s.half_c * at.dy);
    sum.abs_x = sum.abs_x + magnitude(q * (2.0f * s.half_a * at.dx + by));
    sum.abs_y = sum.abs_y + magnitude(q * (s.b * at.dx + cy));
  }
  cell.transmittance = advance(c, cell.transmittance);
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
  const int64_t pixel = static_cast<int64_t>(tile.y0 + (index >> 1)) * args.grid.width + tile.x0 +
                        (index & 1) * kLanes;
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

template <bool absgrad>
void tile_vjp(const RasterBwd& args, int64_t index) {
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  const int32_t begin = args.lists.tile_starts[index], end = args.tile_ends[index];
  BackwardCell cells[kCells];
  if (begin < end) {
    for (int i = 0; i < kCells; ++i) cells[i] = read_cell(args, tile, i);
  }
  for (int32_t i = begin; i < args.lists.tile_starts[index + 1]; ++i) {
    float* row = args.slab + static_cast<int64_t>(args.lists.slots[i]) * kSlabSize;
    uint32_t cells_left = i < end ? args.masks[i] : 0;
    if (cells_left == 0) {
      std::memset(row, 0, kSlabSize * sizeof(float));
      continue;
    }
    fetch_ahead(splats, args.lists.instances, i, end);
    if (i + kAhead < end) {
      __builtin_prefetch(args.slab + static_cast<int64_t>(args.lists.slots[i + kAhead]) * kSlabSize,
                         1);
    }
    const Splat& s = splats[args.lists.instances[i]];
    Collected sum;
    std::memset(&sum, 0, sizeof(sum));
    for (; cells_left != 0; cells_left &= cells_left - 1) {
      const int cell = __builtin_ctz(cells_left);
      blend_vjp<absgrad>(s, tile, cell, args.max_alpha, cells[cell], sum);
    }
    store8(row, sum_lanes_of_8(&sum.red));
    row[8] = sum_lanes(sum.qyy);
    row[9] = sum_lanes(sum.depth);
    row[10] = absgrad ? sum_lanes(sum.abs_x) : 0.0f;
    row[11] = absgrad ? sum_lanes(sum.abs_y) : 0.0f;
  }
}

}  // namespace

void raster_fwd_tile(const RasterFwd& args, int64_t index) {
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  const F8 zero = constant<F8>(0.0f);
  ForwardCell cells[kCells];
  for (int i = 0; i < kCells; ++i)
    cells[i] = {first_transmittance(tile, i), zero, zero, zero, zero};
  uint32_t live = cells_inside(tile);
  int32_t i = args.lists.tile_starts[index];
  const int32_t end = args.lists.tile_starts[index + 1];
  for (; i < end && live != 0; ++i) {
    fetch_ahead(splats, args.lists.instances, i, end);
    const Splat& s = splats[args.lists.instances[i]];
    const uint32_t mask = cells_of(s, tile) & live;
    args.masks[i] = mask;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      const int cell = __builtin_ctz(left);
      if (!blend(s, tile, cell, args.max_alpha, cells[cell])) live &= ~(1u << cell);
    }
  }
  args.tile_ends[index] = i;
  for (int cell = 0; cell < kCells; ++cell) write_cell(args, tile, cell, cells[cell]);
}

void raster_bwd_tile(const RasterBwd& args, int64_t index) {
  if (args.absgrad) {
    tile_vjp<true>(args, index);
  } else {
    tile_vjp<false>(args, index);
  }
}

}  // namespace splat::cpu::SPLAT_ISA
