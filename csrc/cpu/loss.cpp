// The photometric loss in blocks. Sums are kept for each row of a block and added in a fixed order,
// so the value does not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

constexpr int64_t kBlockWidth = 160, kMinStrip = 32;  // px

// Pixels [y0, y1) x [x0, x1) that the mask counts.
int64_t num_counted(const ImageLoss& args, int64_t border) {
  const int64_t height = args.height - 2 * border, width = args.width - 2 * border;
  if (height <= 0 || width <= 0) return 0;
  if (args.mask == nullptr) return height * width;
  int64_t num = 0;
  for (int64_t y = border; y < args.height - border; ++y) {
    for (int64_t x = border; x < args.width - border; ++x)
      num += args.mask[y * args.width + x] != 0;
  }
  return num;
}

double sum_of(const std::vector<double>& rows) {
  double sum = 0;
  for (const double row : rows) sum += row;
  return sum;
}

}  // namespace

void image_loss(const ImageLoss& args, int num_threads) {
  const double channels = static_cast<double>(args.channels);
  const double l1_count = static_cast<double>(num_counted(args, 0)) * channels;
  const double ssim_count =
      static_cast<double>(num_counted(args, args.same_padding ? 0 : kSsimHalf)) * channels;
  const double l1_scale = l1_count > 0 ? args.l1_weight / l1_count : 0;
  const double ssim_scale = ssim_count > 0 ? args.ssim_weight / ssim_count : 0;
  // Blocks of columns are narrow enough for their scratch to stay in the second-level cache, and
  // lie where they lie whatever the number of threads; strips of rows give every thread some. A
  // strip filters ten rows above and ten below it once more than needed, so one thread has one.
  const int64_t num_columns = (args.width + kBlockWidth - 1) / kBlockWidth;
  const int64_t block_width = (args.width + num_columns - 1) / num_columns;
  const int64_t num_tasks = num_threads > 1 ? 4 * num_threads : 1;
  const int64_t strips = (num_tasks + num_columns - 1) / num_columns;
  const int64_t strip_height = std::max<int64_t>((args.height + strips - 1) / strips, kMinStrip);
  const int64_t num_strips = (args.height + strip_height - 1) / strip_height;
  std::vector<double> l1_sums(args.height * num_columns, 0.0);
  std::vector<double> ssim_sums(args.height * num_columns, 0.0);
  parallel_for(num_threads, num_strips * num_columns, [&](int64_t task) {
    const int64_t y = task / num_columns * strip_height, column = task % num_columns;
    const int64_t x = column * block_width, x_end = std::min(x + block_width, args.width);
    if (x >= x_end) return;
    std::vector<float> scratch(loss_scratch_size(args, x_end - x));
    lanes().loss_block(
        args, {y, std::min(y + strip_height, args.height), x, x_end, static_cast<float>(ssim_scale),
               static_cast<float>(l1_scale), scratch.data(), l1_sums.data() + column,
               ssim_sums.data() + column, num_columns});
  });
  *args.value = static_cast<float>(l1_scale * sum_of(l1_sums) + ssim_scale * sum_of(ssim_sums));
}

}  // namespace splat::cpu
