// The viewer's modes: normals and surfaces of eight Gaussians at a time, then tiles of pixels of
// which the median depth, the number of splats, or the nearest solid surface is wanted.
#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../surface.h"
#include "cells.h"
#include "modes_lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

// Up to eight Gaussians; lanes beyond `count` repeat the last one and are never stored.
SPLAT_LANES F8 load_column(const float* p, int64_t begin, int count, int stride, int column) {
  F8 x;
  for (int i = 0; i < kLanes; ++i) {
    x[i] = p[(begin + (i < count ? i : count - 1)) * stride + column];
  }
  return x;
}

SPLAT_LANES Vec3<F8> load3(const float* p, int64_t begin, int count) {
  return {load_column(p, begin, count, 3, 0), load_column(p, begin, count, 3, 1),
          load_column(p, begin, count, 3, 2)};
}

template <CameraModel model>
SPLAT_LANES void shapes_of(const Shapes& args, int64_t begin, int count) {
  const GaussianArrays& g = args.gaussians;
  GaussianValues<F8> values = {};
  values.mean = load3(g.means, begin, count);
  values.scales = load3(g.scales, begin, count);
  if (args.settings.raw) {
    values.scales = {scale_of(values.scales.x), scale_of(values.scales.y),
                     scale_of(values.scales.z)};
  }
  values.quat = {load_column(g.quats, begin, count, 4, 0), load_column(g.quats, begin, count, 4, 1),
                 load_column(g.quats, begin, count, 4, 2),
                 load_column(g.quats, begin, count, 4, 3)};
  const Shape<F8> shape = shape_of<model>(args.settings.camera, values);
  for (int i = 0; i < count; ++i) {
    const int64_t at = begin + i;
    const bool shown = args.radii[2 * at] > 0 && args.radii[2 * at + 1] > 0 && shape.good[i] != 0;
    float* n = args.normals + 3 * at;
    float* s = args.surfaces + kSurfaceSize * at;
    n[0] = shown ? shape.normal.x[i] : 0.0f;
    n[1] = shown ? shape.normal.y[i] : 0.0f;
    n[2] = shown ? shape.normal.z[i] : 0.0f;
    s[0] = shown ? shape.ux[i] : 0.0f;
    s[1] = shown ? shape.uy[i] : 0.0f;
    s[2] = shown ? shape.thickness[i] : 0.0f;
    s[3] = shown ? shape.pixels[i] : 0.0f;
  }
}

SPLAT_LANES int64_t first_pixel(const ImageGrid& grid, const Tile& tile, int cell) {
  return static_cast<int64_t>(tile.y0 + cell % kTileSize) * grid.width + tile.x0 +
         cell / kTileSize * kLanes;
}

struct MedianCell {
  F8 transmittance, depth, count;  // counts are whole numbers below 2^24
};

// Adds a splat to the cells in `mask` and returns those that it has finished.
SPLAT_LANES uint32_t add_splat(const Splat& s, const Tile& tile, const RowTerms& rows,
                               uint32_t mask, float max_alpha, MedianCell* cells) {
  const F8 zero = constant<F8>(0.0f), half_left = constant<F8>(0.5f);
  uint32_t finished = 0;
  for (int half = 0; half < 2; ++half) {
    const ColumnTerms columns = columns_of(s, tile, half);
    for (uint32_t left = rows_in_half(mask, half); left != 0; left &= left - 1) {
      const int row = __builtin_ctz(left), index = half * kTileSize + row;
      MedianCell& cell = cells[index];
      const Blended r = blend_cell<false>(columns, rows, row, max_alpha, cell.transmittance);
      const I8 added = r.weight > zero;
      const I8 crossing = added & (cell.transmittance >= half_left) & (r.next < half_left);
      cell.depth = select(crossing, constant<F8>(s.depth), cell.depth);
      cell.count = cell.count + select(added, constant<F8>(1.0f), zero);
      cell.transmittance = advance(r, cell.transmittance);
      if (lane_bits(r.alive) == 0) finished |= 1u << index;
    }
  }
  return finished;
}

struct SolidCell {
  F8 depth, red, green, blue;
};

// Puts a splat's surface where it is the nearest so far.
SPLAT_LANES void cover_solid(const Splat& s, const float* surface, F8 dx, F8 dy, SolidCell& cell) {
  const F8 sigma =
      falloff(constant<F8>(s.half_a), constant<F8>(s.b), constant<F8>(s.half_c), dx, dy);
  const F8 limit = constant<F8>(s.sigma_limit - 0.5f * kExtentMargin);
  const I8 inside = sigma <= limit;
  if (lane_bits(inside) == 0) return;
  const Front<F8> front = front_of(s, surface, limit, sigma, dx, dy);
  const I8 nearer = inside & (front.depth < cell.depth);
  cell.depth = select(nearer, front.depth, cell.depth);
  cell.red = select(nearer, s.red * front.light, cell.red);
  cell.green = select(nearer, s.green * front.light, cell.green);
  cell.blue = select(nearer, s.blue * front.light, cell.blue);
}

SPLAT_LANES F8 farthest() { return constant<F8>(std::numeric_limits<float>::infinity()); }

SPLAT_LANES void write_solid(const RasterSolid& args, const Tile& tile, int index,
                             const SolidCell& cell) {
  const int64_t pixel = first_pixel(args.grid, tile, index);
  for (int i = 0; i < pixels_inside(tile, index); ++i) {
    args.rgb[3 * (pixel + i)] = cell.red[i];
    args.rgb[3 * (pixel + i) + 1] = cell.green[i];
    args.rgb[3 * (pixel + i) + 2] = cell.blue[i];
    args.depth[pixel + i] = cell.depth[i] < farthest()[i] ? cell.depth[i] : 0.0f;
  }
}

}  // namespace

void shapes(const Shapes& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int count = end - i < kLanes ? static_cast<int>(end - i) : kLanes;
    switch (args.settings.camera.model) {
      case CameraModel::kPinhole:
        shapes_of<CameraModel::kPinhole>(args, i, count);
        break;
      case CameraModel::kOrtho:
        shapes_of<CameraModel::kOrtho>(args, i, count);
        break;
      case CameraModel::kFisheye:
        shapes_of<CameraModel::kFisheye>(args, i, count);
        break;
    }
  }
}

void median_tile(const RasterMedian& args, int64_t index) {
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  const F8 zero = constant<F8>(0.0f);
  MedianCell cells[kCells];
  for (int i = 0; i < kCells; ++i) cells[i] = {first_transmittance(tile, i), zero, zero};
  uint32_t live = cells_inside(tile);
  const int32_t end = args.lists.tile_starts[index + 1];
  for (int32_t i = args.lists.tile_starts[index]; i < end && live != 0; ++i) {
    fetch_ahead(splats, args.lists.instances, i, end);
    const Splat& s = splats[args.lists.instances[i]];
    const RowTerms rows = rows_of<F8>(s, tile);
    live &= ~add_splat(s, tile, rows, cells_of<F8>(s, tile) & live, args.max_alpha, cells);
  }
  for (int cell = 0; cell < kCells; ++cell) {
    const int64_t pixel = first_pixel(args.grid, tile, cell);
    for (int i = 0; i < pixels_inside(tile, cell); ++i) {
      args.depth[pixel + i] = cells[cell].depth[i];
      args.count[pixel + i] = static_cast<int32_t>(cells[cell].count[i]);
    }
  }
}

void solid_tile(const RasterSolid& args, int64_t index) {
  const Tile tile = tile_at(args.grid, index);
  const Splat* splats = reinterpret_cast<const Splat*>(args.splats.splats);
  const float* bg = args.background;
  SolidCell cells[kCells];
  for (SolidCell& cell : cells) {
    cell = {farthest(), constant<F8>(bg[0]), constant<F8>(bg[1]), constant<F8>(bg[2])};
  }
  const uint32_t inside = cells_inside(tile);
  const int32_t end = args.lists.tile_starts[index + 1];
  for (int32_t i = args.lists.tile_starts[index]; i < end; ++i) {
    fetch_ahead(splats, args.lists.instances, i, end);
    const Splat& s = splats[args.lists.instances[i]];
    const float* surface =
        args.surfaces +
        kSurfaceSize * static_cast<int64_t>(args.splats.order[args.lists.instances[i]]);
    const RowTerms rows = rows_of<F8>(s, tile);
    for (uint32_t left = cells_of<F8>(s, tile) & inside; left != 0; left &= left - 1) {
      const int cell = __builtin_ctz(left);
      const F8 dx = columns_of(s, tile, cell / kTileSize).dx;
      cover_solid(s, surface, dx, constant<F8>(rows.dy[cell % kTileSize]), cells[cell]);
    }
  }
  for (int cell = 0; cell < kCells; ++cell) write_solid(args, tile, cell, cells[cell]);
}

void bytes(const ToBytes& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) args.bytes[i] = byte_of(args.values[i]);
}

}  // namespace splat::cpu::SPLAT_ISA
