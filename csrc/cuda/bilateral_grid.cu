// The colors under a bilateral grid: forward, and for the gradient of colors, one thread for each
// pixel. The gradient of the grid is added up in two steps, each in a fixed order: the pixels of a
// row between two columns of the grid, one block each; then, for each number of the grid, these.
#include "../bilateral_grid.h"
#include "block_sum.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

__host__ __device__ int64_t num_cells(const BilateralGrid& a) {
  return a.columns > 1 ? a.columns - 1 : 1;
}

// What a block adds up: the nodes before and behind its pixels, of all brightnesses.
__host__ __device__ int64_t sums_of_cell(const BilateralGrid& a) {
  return a.depth * 2 * kMapNumbers;
}

struct Pixel {
  Between row, column, level;
  float brightness;
};

__device__ Pixel pixel_at(const BilateralGrid& a, int64_t i) {
  const float brightness = brightness_of(a.rgb + 3 * i);
  return {between_pixels(i / a.width, a.height, a.rows),
          between_pixels(i % a.width, a.width, a.columns), between_brightness(brightness, a.depth),
          brightness};
}

__device__ float number_at(const BilateralGrid& a, const Pixel& p, int c, int64_t level) {
  const float* plane = a.grid + (c * a.depth + level) * a.rows * a.columns;
  const float *low = plane + p.row.low * a.columns, *high = plane + p.row.high * a.columns;
  return mixed(mixed(low[p.column.low], high[p.column.low], p.row.part),
               mixed(low[p.column.high], high[p.column.high], p.row.part), p.column.part);
}

__device__ void read_map(const BilateralGrid& a, const Pixel& p, float* map, float* rise) {
  SPLAT_UNROLL for (int c = 0; c < kMapNumbers; ++c) {
    const float dark = number_at(a, p, c, p.level.low);
    rise[c] = number_at(a, p, c, p.level.high) - dark;
    map[c] = dark + p.level.part * rise[c];
  }
}

__global__ void __launch_bounds__(kThreads) bilateral_grid_kernel(BilateralGrid args) {
  const int64_t i = global_index();
  if (i >= args.height * args.width) return;
  float map[kMapNumbers], rise[kMapNumbers];
  read_map(args, pixel_at(args, i), map, rise);
  write_mapped(map, args.rgb + 3 * i, args.colors + 3 * i);
}

__global__ void __launch_bounds__(kThreads)
    bilateral_grid_colors_kernel(BilateralGridGradient args) {
  const int64_t i = global_index();
  const BilateralGrid& a = args.args;
  if (i >= a.height * a.width) return;
  const Pixel p = pixel_at(a, i);
  float map[kMapNumbers], rise[kMapNumbers];
  read_map(a, p, map, rise);
  write_color_gradient(map, rise, brightness_slope(p.brightness, a.depth), a.rgb + 3 * i,
                       args.v_colors + 3 * i, args.v_rgb + 3 * i);
}

// Number `sum` of a cell, [D, 2, 12], over every `stride`-th pixel of a row from `x` to before
// `end` that lies there.
__device__ float sum_of_pixels(const BilateralGridGradient& args, int64_t y, int64_t cell,
                               int64_t sum, int64_t x, int64_t end, int64_t stride) {
  const BilateralGrid& a = args.args;
  const int64_t z = sum / (2 * kMapNumbers);
  const bool behind = sum / kMapNumbers % 2 == 1;
  const int c = static_cast<int>(sum % kMapNumbers);
  float total = 0.0f;
  for (; x < end; x += stride) {
    const Between column = between_pixels(x, a.width, a.columns);
    if (column.low != cell) continue;
    const int64_t at = 3 * (y * a.width + x);
    const Between level = between_brightness(brightness_of(a.rgb + at), a.depth);
    float share = behind ? column.part : 1.0f - column.part;
    // Of a single brightness both nodes are the same one, and the share of the second is 0.
    share *= level.low == z ? 1.0f - level.part : level.high == z ? level.part : 0.0f;
    total += share * map_gradient(args.v_colors + at, a.rgb + at, c);
  }
  return total;
}

__global__ void __launch_bounds__(kThreads)
    bilateral_grid_rows_kernel(BilateralGridGradient args, float* parts) {
  __shared__ float totals[kThreads];
  const BilateralGrid& a = args.args;
  const int64_t cells = num_cells(a), num_sums = sums_of_cell(a);
  const int64_t y = blockIdx.x / cells, cell = blockIdx.x % cells;
  // A pixel more at each end than can lie there: what is rounded decides.
  const int64_t steps = a.columns > 1 ? a.columns - 1 : 1;
  const int64_t first = cell * (a.width - 1) / steps - 1;
  const int64_t last = (cell + 1) * (a.width - 1) / steps + 2;
  const int64_t begin = first > 0 ? first : 0, end = last < a.width ? last : a.width;
  const int64_t groups = num_sums < kThreads ? kThreads / num_sums : 1;
  const int64_t group = threadIdx.x / num_sums;
  for (int64_t from = 0; from < num_sums; from += kThreads) {
    const int64_t sum = groups > 1 ? threadIdx.x % num_sums : from + threadIdx.x;
    const bool works = sum < num_sums && (groups == 1 || group < groups);
    const int64_t mine = groups > 1 ? group : 0;
    totals[threadIdx.x] =
        works ? sum_of_pixels(args, y, cell, sum, begin + mine, end, groups) : 0.0f;
    __syncthreads();
    if (works && mine == 0) {
      float total = 0.0f;
      for (int64_t g = 0; g < groups; ++g) total += totals[threadIdx.x + g * num_sums];
      parts[blockIdx.x * num_sums + sum] = total;
    }
    __syncthreads();
  }
}

// One block for each number of the grid.
__global__ void __launch_bounds__(kThreads)
    bilateral_grid_total_kernel(BilateralGridGradient args, const float* parts) {
  const BilateralGrid& a = args.args;
  const int64_t i = blockIdx.x, x = i % a.columns, row = i / a.columns % a.rows;
  const int64_t z = i / (a.columns * a.rows) % a.depth, c = i / (a.columns * a.rows * a.depth);
  const int64_t cells = num_cells(a), num_sums = sums_of_cell(a);
  double total = 0.0;
  for (int64_t y = threadIdx.x; y < a.height; y += kThreads) {
    const Between place = between_pixels(y, a.height, a.rows);
    // A single row is both neighbors.
    const float share =
        (place.low == row ? 1.0f - place.part : 0.0f) + (place.high == row ? place.part : 0.0f);
    if (share == 0.0f) continue;
    const float* of_row = parts + y * cells * num_sums + z * 2 * kMapNumbers + c;
    double of_node = 0.0;
    if (x < cells) of_node += of_row[x * num_sums];
    if (x > 0) of_node += of_row[(x - 1) * num_sums + kMapNumbers];
    total += share * of_node;
  }
  total = block_sum(total);
  if (threadIdx.x == 0) args.v_grid[i] = static_cast<float>(total);
}

}  // namespace

void bilateral_grid(const BilateralGrid& args, void* stream) {
  launch("bilateral_grid", bilateral_grid_kernel, blocks_for(args.height * args.width), kThreads,
         stream, args);
}

int64_t bilateral_grid_scratch(const BilateralGrid& args) {
  return static_cast<int64_t>(sizeof(float)) * args.height * num_cells(args) * sums_of_cell(args);
}

void bilateral_grid_bwd(const BilateralGridGradient& args, void* scratch, void* stream) {
  const BilateralGrid& a = args.args;
  auto* parts = static_cast<float*>(scratch);
  launch("bilateral_grid_colors", bilateral_grid_colors_kernel, blocks_for(a.height * a.width),
         kThreads, stream, args);
  launch("bilateral_grid_rows", bilateral_grid_rows_kernel, a.height * num_cells(a), kThreads,
         stream, args, parts);
  launch("bilateral_grid_total", bilateral_grid_total_kernel,
         kMapNumbers * a.depth * a.rows * a.columns, kThreads, stream, args, parts);
}

}  // namespace splat::cuda
