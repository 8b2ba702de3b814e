// The colors of a picture under affine maps that lie in a grid of place and brightness (Chen, Paris
// and Durand 2007; for radiance fields Wang et al. 2024), and the gradients of both.
#pragma once

#include <cstdint>

#include "linalg.h"

namespace splat {

constexpr int kMapNumbers = 12;  // of a 3 x 4 map, by rows: what it differs by from none
constexpr float kLumaRed = 0.299f, kLumaGreen = 0.587f, kLumaBlue = 0.114f;  // ITU-R BT.601

struct BilateralGrid {
  const float* rgb;       // [H, W, 3]
  const float* grid;      // [12, D, R, C]
  int64_t height, width;  // 1 or more, as are these:
  int64_t depth, rows, columns;
  float* colors;  // [H, W, 3]
};

struct BilateralGridGradient {
  BilateralGrid args;     // `colors` is not looked at
  const float* v_colors;  // [H, W, 3]
  float* v_rgb;           // [H, W, 3]
  float* v_grid;          // [12, D, R, C]
};

// Where something lies between two neighbors of a row of nodes; `part` is the share of the second.
struct Between {
  int64_t low, high;
  float part;
};

SPLAT_HD Between between_nodes(float place, int64_t num_nodes) {
  const int64_t last = num_nodes > 1 ? num_nodes - 2 : 0;
  const int64_t whole = static_cast<int64_t>(place);
  const int64_t low = whole < last ? whole : last;
  return {low, low + 1 < num_nodes ? low + 1 : low, place - static_cast<float>(low)};
}

// Pixel i of n along a side: the first and the last one lie at the first and the last node.
SPLAT_HD Between between_pixels(int64_t i, int64_t num_pixels, int64_t num_nodes) {
  const int64_t steps = num_pixels > 1 ? num_pixels - 1 : 1;
  return between_nodes(static_cast<float>(i * (num_nodes - 1)) / static_cast<float>(steps),
                       num_nodes);
}

SPLAT_HD float brightness_of(const float* rgb) {
  return kLumaRed * rgb[0] + kLumaGreen * rgb[1] + kLumaBlue * rgb[2];
}

// Dark, and what is no number, at the first node, bright at the last.
SPLAT_HD Between between_brightness(float brightness, int64_t num_nodes) {
  const float inside = brightness > 0.0f ? (brightness < 1.0f ? brightness : 1.0f) : 0.0f;
  return between_nodes(inside * static_cast<float>(num_nodes - 1), num_nodes);
}

// How much a node's place changes with a brightness: what lies at an end stays there.
SPLAT_HD float brightness_slope(float brightness, int64_t num_nodes) {
  return brightness > 0.0f && brightness < 1.0f ? static_cast<float>(num_nodes - 1) : 0.0f;
}

SPLAT_HD float mixed(float low, float high, float part) { return low + part * (high - low); }

SPLAT_HD void write_mapped(const float* map, const float* rgb, float* out) {
  for (int row = 0; row < 3; ++row) {
    const float* m = map + 4 * row;
    out[row] = rgb[row] + (m[0] * rgb[0] + m[1] * rgb[1] + m[2] * rgb[2] + m[3]);
  }
}

// The gradient of number c of a pixel's map.
SPLAT_HD float map_gradient(const float* v_color, const float* rgb, int c) {
  return c % 4 == 3 ? v_color[c / 4] : v_color[c / 4] * rgb[c % 4];
}

// The gradient of a pixel; `rise` is by what its map grows from one node of brightness to the next.
SPLAT_HD void write_color_gradient(const float* map, const float* rise, float slope,
                                   const float* rgb, const float* v_color, float* v_rgb) {
  float v_place = 0.0f;
  for (int row = 0; row < 3; ++row) {
    const float* m = rise + 4 * row;
    v_place += v_color[row] * (m[0] * rgb[0] + m[1] * rgb[1] + m[2] * rgb[2] + m[3]);
  }
  const float luma[3] = {kLumaRed, kLumaGreen, kLumaBlue};
  for (int column = 0; column < 3; ++column) {
    const float through =
        map[column] * v_color[0] + map[4 + column] * v_color[1] + map[8 + column] * v_color[2];
    v_rgb[column] = v_color[column] + through + slope * v_place * luma[column];
  }
}

namespace cpu {

void bilateral_grid(const BilateralGrid& args, int num_threads);
void bilateral_grid_bwd(const BilateralGridGradient& args, int num_threads);

}  // namespace cpu

namespace cuda {

void bilateral_grid(const BilateralGrid& args, void* stream);
int64_t bilateral_grid_scratch(const BilateralGrid& args);  // bytes, of the way back
void bilateral_grid_bwd(const BilateralGridGradient& args, void* scratch, void* stream);

}  // namespace cuda
}  // namespace splat
