#include "../area.h"

#include <vector>

#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kRowsATask = 16;

// Rows are added up as wholes first: the compiler takes them in vectors. Of an area there are more
// pixels than of a column, and a Total holds them.
template <typename Total, typename In, typename Sum>
void means_of_row(const AreaMeans& a, const In* image, int64_t y, Sum* sums) {
  const int64_t length = a.width * a.channels;
  const int64_t top = area_begin(y, a.rows, a.height), bottom = area_end(y, a.rows, a.height);
  const In* first = image + top * length;
  for (int64_t i = 0; i < length; ++i) sums[i] = first[i];
  for (int64_t row = top + 1; row < bottom; ++row) {
    const In* in = image + row * length;
    for (int64_t i = 0; i < length; ++i) sums[i] += in[i];
  }
  float* out = a.means + y * a.columns * a.channels;
  if (a.columns == a.width) {
    for (int64_t i = 0; i < length; ++i) {
      out[i] = area_mean(static_cast<Total>(sums[i]), bottom - top);
    }
    return;
  }
  for (int64_t x = 0; x < a.columns; ++x) {
    const int64_t left = area_begin(x, a.columns, a.width);
    const int64_t right = area_end(x, a.columns, a.width), num = (right - left) * (bottom - top);
    if (a.channels == 3) {  // the usual
      Total sum[3] = {};
      for (const Sum* in = sums + 3 * left; in != sums + 3 * right; in += 3) {
        for (int c = 0; c < 3; ++c) sum[c] += in[c];
      }
      for (const Total s : sum) *out++ = area_mean(s, num);
      continue;
    }
    for (int64_t c = 0; c < a.channels; ++c) {
      Total sum = 0;
      for (int64_t i = left; i < right; ++i) sum += sums[i * a.channels + c];
      *out++ = area_mean(sum, num);
    }
  }
}

template <typename Sum, typename Total, typename In>
void means_of(const AreaMeans& args, const In* image, int num_threads) {
  parallel_ranges(num_threads, args.rows, kRowsATask, [&](int64_t begin, int64_t end) {
    std::vector<Sum> sums(args.width * args.channels);
    for (int64_t y = begin; y < end; ++y) means_of_row<Total>(args, image, y, sums.data());
  });
}

}  // namespace

void area_means(const AreaMeans& args, int num_threads) {
  if (args.bytes != nullptr) {
    means_of<int32_t, int64_t>(args, args.bytes, num_threads);
  } else {
    means_of<float, float>(args, args.floats, num_threads);
  }
}

}  // namespace splat::cpu
