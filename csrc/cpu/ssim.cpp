// The photometric loss in strips of rows. Sums are kept a row and added in the order of the rows,
// so the value does not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "lanes.h"
#include "pool.h"

namespace splat::cpu {
namespace {

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
  std::vector<double> l1_rows(args.height, 0.0), ssim_rows(args.height, 0.0);
  // A strip filters five rows above and five below it once more than needed.
  const int64_t grain = std::clamp<int64_t>(args.height / (4 * num_threads), 16, 64);
  const auto in_strips = [&](void (*rows)(const ImageLoss&, const ImageRows&)) {
    parallel_ranges(num_threads, args.height, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(image_scratch_size(args));
      rows(args, {begin, end, static_cast<float>(ssim_scale), static_cast<float>(l1_scale),
                  scratch.data(), l1_rows.data(), ssim_rows.data()});
    });
  };
  if (ssim_scale > 0) in_strips(lanes().ssim_rows);
  if (args.grad != nullptr || l1_scale > 0) in_strips(lanes().grad_rows);
  *args.value = l1_scale * sum_of(l1_rows) + ssim_scale * sum_of(ssim_rows);
}

}  // namespace splat::cpu
