// Photos as floats, and smaller pictures: one thread for each number of them, which adds up in the
// order of the CPU.
#include "../area.h"
#include "launch.cuh"

namespace splat::cuda {
namespace {

template <typename Sum, typename In>
__device__ float mean_of(const AreaMeans& a, const In* image, int64_t i) {
  const int64_t c = i % a.channels, x = i / a.channels % a.columns, y = i / a.channels / a.columns;
  const int64_t left = area_begin(x, a.columns, a.width), right = area_end(x, a.columns, a.width);
  const int64_t top = area_begin(y, a.rows, a.height), bottom = area_end(y, a.rows, a.height);
  Sum sum = 0;
  for (int64_t column = left; column < right; ++column) {
    Sum of_column = 0;
    for (int64_t row = top; row < bottom; ++row) {
      of_column += image[(row * a.width + column) * a.channels + c];
    }
    sum += of_column;
  }
  return area_mean(sum, (right - left) * (bottom - top));
}

__global__ void __launch_bounds__(kThreads) area_means_kernel(AreaMeans args, int64_t num) {
  const int64_t i = global_index();
  if (i >= num) return;
  args.means[i] = args.bytes != nullptr ? mean_of<int64_t>(args, args.bytes, i)
                                        : mean_of<float>(args, args.floats, i);
}

}  // namespace

void area_means(const AreaMeans& args, void* stream) {
  const int64_t num = args.rows * args.columns * args.channels;
  launch("area_means", area_means_kernel, blocks_for(num), kThreads, stream, args, num);
}

}  // namespace splat::cuda
