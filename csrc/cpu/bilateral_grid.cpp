#include "../bilateral_grid.h"

#include <algorithm>
#include <vector>

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kRowsATask = 8;

// The maps of one row of pixels: [D, C, 12], what the rows of the grid above and below it come to.
void write_row_maps(const BilateralGrid& a, int64_t y, float* maps) {
  const Between row = between_pixels(y, a.height, a.rows);
  for (int64_t c = 0; c < kMapNumbers; ++c) {
    for (int64_t z = 0; z < a.depth; ++z) {
      const float* plane = a.grid + (c * a.depth + z) * a.rows * a.columns;
      const float *low = plane + row.low * a.columns, *high = plane + row.high * a.columns;
      for (int64_t x = 0; x < a.columns; ++x) {
        maps[(z * a.columns + x) * kMapNumbers + c] = mixed(low[x], high[x], row.part);
      }
    }
  }
}

// The four nodes around a pixel of a row, as places in [D, C, 12]: darker and brighter, before and
// behind it.
struct Nodes {
  int64_t dark_low, dark_high, bright_low, bright_high;
  float across, upward;  // the shares of those behind, and of the brighter ones

  Nodes(const BilateralGrid& a, const Between& column, const Between& level)
      : dark_low((level.low * a.columns + column.low) * kMapNumbers),
        dark_high((level.low * a.columns + column.high) * kMapNumbers),
        bright_low((level.high * a.columns + column.low) * kMapNumbers),
        bright_high((level.high * a.columns + column.high) * kMapNumbers),
        across(column.part),
        upward(level.part) {}
};

// A pixel's map, and by what it grows with the brightness.
inline void read_map(const float* maps, const Nodes& at, float* map, float* rise) {
  if (at.bright_high == at.dark_low) {  // one map for the whole picture
    std::copy_n(maps, kMapNumbers, map);
    std::fill_n(rise, kMapNumbers, 0.0f);
    return;
  }
  const float *dark_low = maps + at.dark_low, *dark_high = maps + at.dark_high;
  const float *bright_low = maps + at.bright_low, *bright_high = maps + at.bright_high;
  for (int c = 0; c < kMapNumbers; ++c) {
    const float dark = mixed(dark_low[c], dark_high[c], at.across);
    rise[c] = mixed(bright_low[c], bright_high[c], at.across) - dark;
    map[c] = dark + at.upward * rise[c];
  }
}

// Adds a pixel's share to the gradients of its row's maps.
inline void add_map_gradient(const Nodes& at, const float* v_color, const float* rgb,
                             float* v_maps) {
  float v_map[kMapNumbers];
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) v_map[4 * row + column] = v_color[row] * rgb[column];
    v_map[4 * row + 3] = v_color[row];
  }
  const auto add = [&](int64_t node, float share) {
    float* v = v_maps + node;
    for (int c = 0; c < kMapNumbers; ++c) v[c] += share * v_map[c];
  };
  // Of one brightness, or one column, the second is the first, and has no share.
  const bool has_bright = at.bright_low != at.dark_low, has_high = at.dark_high != at.dark_low;
  add(at.dark_low, (1.0f - at.upward) * (1.0f - at.across));
  if (has_high) add(at.dark_high, (1.0f - at.upward) * at.across);
  if (has_bright) add(at.bright_low, at.upward * (1.0f - at.across));
  if (has_bright && has_high) add(at.bright_high, at.upward * at.across);
}

std::vector<Between> columns_between(const BilateralGrid& a) {
  std::vector<Between> columns(a.width);
  for (int64_t x = 0; x < a.width; ++x) columns[x] = between_pixels(x, a.width, a.columns);
  return columns;
}

// v_grid from the gradients [H, D, C, 12] of all rows' maps, each number in the order of the rows.
void gather_rows(const BilateralGridGradient& args, const std::vector<float>& v_maps,
                 int num_threads) {
  const BilateralGrid& a = args.args;
  const int64_t row_size = a.depth * a.columns * kMapNumbers;
  parallel_for(num_threads, a.depth * a.columns, [&](int64_t node) {
    std::vector<double> sums(a.rows * kMapNumbers);
    for (int64_t y = 0; y < a.height; ++y) {
      const Between row = between_pixels(y, a.height, a.rows);
      const float* v = v_maps.data() + y * row_size + node * kMapNumbers;
      for (int c = 0; c < kMapNumbers; ++c) {
        sums[row.low * kMapNumbers + c] += static_cast<double>(1.0f - row.part) * v[c];
        sums[row.high * kMapNumbers + c] += static_cast<double>(row.part) * v[c];
      }
    }
    const int64_t z = node / a.columns, x = node % a.columns;
    for (int64_t r = 0; r < a.rows; ++r) {
      for (int64_t c = 0; c < kMapNumbers; ++c) {
        args.v_grid[((c * a.depth + z) * a.rows + r) * a.columns + x] =
            static_cast<float>(sums[r * kMapNumbers + c]);
      }
    }
  });
}

}  // namespace

void bilateral_grid(const BilateralGrid& args, int num_threads) {
  const std::vector<Between> columns = columns_between(args);
  parallel_ranges(num_threads, args.height, kRowsATask, [&](int64_t begin, int64_t end) {
    std::vector<float> maps(args.depth * args.columns * kMapNumbers);
    for (int64_t y = begin; y < end; ++y) {
      write_row_maps(args, y, maps.data());
      for (int64_t x = 0; x < args.width; ++x) {
        const float* rgb = args.rgb + 3 * (y * args.width + x);
        const Between level = between_brightness(brightness_of(rgb), args.depth);
        float map[kMapNumbers], rise[kMapNumbers];
        read_map(maps.data(), Nodes(args, columns[x], level), map, rise);
        write_mapped(map, rgb, args.colors + 3 * (y * args.width + x));
      }
    }
  });
}

void bilateral_grid_bwd(const BilateralGridGradient& args, int num_threads) {
  const BilateralGrid& a = args.args;
  const std::vector<Between> columns = columns_between(a);
  const int64_t row_size = a.depth * a.columns * kMapNumbers;
  std::vector<float> v_maps(a.height * row_size);
  parallel_ranges(num_threads, a.height, kRowsATask, [&](int64_t begin, int64_t end) {
    std::vector<float> maps(row_size);
    for (int64_t y = begin; y < end; ++y) {
      write_row_maps(a, y, maps.data());
      for (int64_t x = 0; x < a.width; ++x) {
        const int64_t at = 3 * (y * a.width + x);
        const float *rgb = a.rgb + at, *v_color = args.v_colors + at;
        const float brightness = brightness_of(rgb);
        const Nodes nodes(a, columns[x], between_brightness(brightness, a.depth));
        float map[kMapNumbers], rise[kMapNumbers];
        read_map(maps.data(), nodes, map, rise);
        write_color_gradient(map, rise, brightness_slope(brightness, a.depth), rgb, v_color,
                             args.v_rgb + at);
        add_map_gradient(nodes, v_color, rgb, v_maps.data() + y * row_size);
      }
    }
  });
  gather_rows(args, v_maps, num_threads);
}

}  // namespace splat::cpu
