// Photos as floats, and smaller pictures, whose pixels are means of areas.
#pragma once

#include <cstdint>

#include "linalg.h"

namespace splat {

// Pixel i of n along a side of N is the mean of the pixels [floor(i N / n), ceil((i + 1) N / n)):
// neighbors share the pixels that lie in both.
struct AreaMeans {
  const float* floats;              // [H, W, C], or null
  const uint8_t* bytes;             // [H, W, C], or null; 255 becomes 1
  int64_t height, width, channels;  // of it
  int64_t rows, columns;            // of the smaller picture, 1 or more
  float* means;                     // [rows, columns, C]
};

SPLAT_HD int64_t area_begin(int64_t i, int64_t num, int64_t num_in) { return i * num_in / num; }

SPLAT_HD int64_t area_end(int64_t i, int64_t num, int64_t num_in) {
  return ((i + 1) * num_in + num - 1) / num;
}

// Of so many pixels. Bytes add up without rounding; the mean of up to 65,793 is rounded once.
SPLAT_HD float area_mean(float sum, int64_t num) { return sum * (1.0f / static_cast<float>(num)); }
SPLAT_HD float area_mean(int64_t sum, int64_t num) {
  return static_cast<float>(sum) / static_cast<float>(255 * num);
}

namespace cpu {

void area_means(const AreaMeans& args, int num_threads);

}  // namespace cpu

namespace cuda {

void area_means(const AreaMeans& args, void* stream);

}  // namespace cuda
}  // namespace splat
