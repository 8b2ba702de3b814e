#include "../area.h"

#include <algorithm>
#include <vector>

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kRowsATask = 16;

int64_t first_of(int64_t i, int64_t num, int64_t num_in) { return i * num_in / num; }

int64_t end_of(int64_t i, int64_t num, int64_t num_in) {
  return ((i + 1) * num_in + num - 1) / num;
}

// Rows are added up as wholes first: the compiler takes them in vectors.
void means_of_row(const AreaMeans& a, int64_t y, float* sums) {
  const int64_t length = a.width * a.channels;
  const int64_t top = first_of(y, a.rows, a.height), bottom = end_of(y, a.rows, a.height);
  std::copy_n(a.image + top * length, length, sums);
  for (int64_t row = top + 1; row < bottom; ++row) {
    const float* in = a.image + row * length;
    for (int64_t i = 0; i < length; ++i) sums[i] += in[i];
  }
  float* out = a.means + y * a.columns * a.channels;
  for (int64_t x = 0; x < a.columns; ++x) {
    const int64_t left = first_of(x, a.columns, a.width), right = end_of(x, a.columns, a.width);
    const float share = 1.0f / static_cast<float>((right - left) * (bottom - top));
    if (a.channels == 3) {  // the usual
      float sum[3] = {};
      for (const float* in = sums + 3 * left; in != sums + 3 * right; in += 3) {
        for (int c = 0; c < 3; ++c) sum[c] += in[c];
      }
      for (const float s : sum) *out++ = s * share;
      continue;
    }
    for (int64_t c = 0; c < a.channels; ++c) {
      float sum = 0.0f;
      for (int64_t i = left; i < right; ++i) sum += sums[i * a.channels + c];
      *out++ = sum * share;
    }
  }
}

}  // namespace

void area_means(const AreaMeans& args, int num_threads) {
  parallel_ranges(num_threads, args.rows, kRowsATask, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(args.width * args.channels);
    for (int64_t y = begin; y < end; ++y) means_of_row(args, y, sums.data());
  });
}

}  // namespace splat::cpu
