// Smaller pictures, whose pixels are means of areas.
#pragma once

#include <cstdint>

namespace splat {

// Pixel i of n along a side of N is the mean of the pixels [floor(i N / n), ceil((i + 1) N / n)):
// neighbors share the pixels that lie in both.
struct AreaMeans {
  const float* image;               // [H, W, C]
  int64_t height, width, channels;  // of it
  int64_t rows, columns;            // of the smaller picture, 1 or more
  float* means;                     // [rows, columns, C]
};

namespace cpu {

void area_means(const AreaMeans& args, int num_threads);

}  // namespace cpu
}  // namespace splat
