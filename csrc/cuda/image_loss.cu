// Mean |image - target| and mean SSIM with their gradient. A block makes 32 x 16 pixels of all
// channels; sums are kept a block and added in the order of the blocks, so the value is the same
// every time. A thread filters several pixels side by side, along a row four and along a column
// two: what one needs of the shared memory is nearly what they all need, and that is what limits
// the speed.
#include "../kernels.h"
#include "block_sum.cuh"
#include "launch.cuh"

namespace splat::cuda {
namespace {

constexpr int kWidth = 32, kHeight = 16;  // px of a block
constexpr int kHalf = 5, kTaps = 2 * kHalf + 1;
constexpr int kLoadWidth = kWidth + 2 * kHalf, kLoadHeight = kHeight + 2 * kHalf;
constexpr int kAlongRow = 4, kAlongColumn = 2;  // px that a thread filters
// Rows of the shared memory begin in banks of their own: the lanes of a warp never ask one bank
// twice.
constexpr int kLoadStride = kLoadWidth + 1, kRowStride = kWidth + 1;
constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;
static_assert(kWidth * kHeight == kAlongColumn * kThreads, "every pixel is a thread's");

// A Gaussian of sigma 1.5 over 11 pixels, normalized.
__device__ __forceinline__ float window_weight(int k) {
  constexpr float kWeights[kTaps] = {1.028380084e-3f, 7.598758135e-3f, 3.600077213e-2f,
                                     1.093606895e-1f, 2.130055377e-1f, 2.660117249e-1f,
                                     2.130055377e-1f, 1.093606895e-1f, 3.600077213e-2f,
                                     7.598758135e-3f, 1.028380084e-3f};
  return kWeights[k];
}

// What the first kernel finds out: how much a pixel of each term counts.
struct Scales {
  float l1, ssim;
};

struct Place {
  int64_t x, y;
  bool inside;
};

// `block` is the block's number in the whole image.
__device__ Place place_of(const ImageLoss& args, unsigned block, int dx, int dy) {
  // In 32 bits: a division in 64 is a hundred instructions.
  const unsigned blocks_x = static_cast<unsigned>((args.width + kWidth - 1) / kWidth);
  const int64_t x = static_cast<int64_t>(block % blocks_x) * kWidth + dx;
  const int64_t y = static_cast<int64_t>(block / blocks_x) * kHeight + dy;
  return {x, y, x >= 0 && y >= 0 && x < args.width && y < args.height};
}

// The pixels of a thread: one of kAlongColumn, below each other.
__device__ Place own_place(const ImageLoss& args, unsigned block, int number) {
  return place_of(args, block, threadIdx.x % kWidth, threadIdx.x / kWidth * kAlongColumn + number);
}

__device__ bool counts(const ImageLoss& args, const Place& p) {
  return p.inside && (args.mask == nullptr || args.mask[p.y * args.width + p.x] != 0);
}

// Whether the window around the pixel counts.
__device__ bool window_counts(const ImageLoss& args, const Place& p) {
  const int64_t border = args.same_padding ? 0 : kHalf;
  return counts(args, p) && p.x >= border && p.y >= border && p.x < args.width - border &&
         p.y < args.height - border;
}

__device__ int64_t component(const ImageLoss& args, const Place& p, int64_t channel) {
  return (p.y * args.width + p.x) * args.channels + channel;
}

// The maps between the kernels: three numbers of each component, of some rows of the image at a
// time. A row lies where the one `rows` above it has been.
struct Maps {
  float* values;
  int rows;
  int64_t size;  // of one

  // The channels lie one behind the other: so neighbors in a row are neighbors in the memory.
  __device__ int64_t at(const ImageLoss& args, const Place& p, int64_t channel) const {
    const int row = static_cast<int>(p.y) % rows;
    return (channel * rows + row) * args.width + p.x;
  }
};

// Counts what a mask leaves of both terms in a block's pixels.
__global__ void __launch_bounds__(kThreads)
    count_kernel(ImageLoss args, int64_t* pixels, int64_t* windows) {
  int own_pixels = 0, own_windows = 0;
  for (int number = 0; number < kAlongColumn; ++number) {
    const Place p = own_place(args, blockIdx.x, number);
    own_pixels += __syncthreads_count(counts(args, p) ? 1 : 0);
    own_windows += __syncthreads_count(window_counts(args, p) ? 1 : 0);
  }
  if (threadIdx.x != 0) return;
  pixels[blockIdx.x] = own_pixels;
  windows[blockIdx.x] = own_windows;
}

// One block: how many pixels and windows count, of which a mask's are counted by blocks.
__global__ void __launch_bounds__(kThreads)
    scales_kernel(ImageLoss args, const int64_t* block_pixels, const int64_t* block_windows,
                  int64_t num_blocks, Scales* out) {
  const int64_t border = args.same_padding ? 0 : 2 * kHalf;
  const int64_t inner_width = args.width - border, inner_height = args.height - border;
  int64_t pixels = args.width * args.height;
  int64_t windows = inner_width > 0 && inner_height > 0 ? inner_width * inner_height : 0;
  if (args.mask != nullptr) {
    int64_t own_pixels = 0, own_windows = 0;
    for (int64_t i = threadIdx.x; i < num_blocks; i += kThreads) {
      own_pixels += block_pixels[i];
      own_windows += block_windows[i];
    }
    pixels = block_sum(own_pixels);
    windows = block_sum(own_windows);
  }
  if (threadIdx.x != 0) return;
  const double channels = static_cast<double>(args.channels);
  out->l1 = pixels > 0 ? static_cast<float>(args.l1_weight / (pixels * channels)) : 0.0f;
  out->ssim = windows > 0 ? static_cast<float>(args.ssim_weight / (windows * channels)) : 0.0f;
}

// Filters along the rows: the block's rows and five above and below, `maps` values a pixel.
template <int maps, typename Load>
__device__ void filter_rows(float (&rows)[maps][kLoadHeight][kRowStride], const Load& load) {
  constexpr int kGroups = kWidth / kAlongRow;
  for (int i = threadIdx.x; i < kLoadHeight * kGroups; i += kThreads) {
    const int column = i % kGroups * kAlongRow, row = i / kGroups;
    float sums[kAlongRow][maps] = {};
    SPLAT_UNROLL
    for (int k = 0; k < kTaps + kAlongRow - 1; ++k) {
      float values[maps];
      load(column + k, row, values);
      SPLAT_UNROLL
      for (int c = 0; c < kAlongRow; ++c) {
        if (k < c || k - c >= kTaps) continue;
        for (int map = 0; map < maps; ++map) sums[c][map] += window_weight(k - c) * values[map];
      }
    }
    for (int c = 0; c < kAlongRow; ++c) {
      for (int map = 0; map < maps; ++map) rows[map][row][column + c] = sums[c][map];
    }
  }
}

template <int maps>
__device__ void filter_columns(const float (&rows)[maps][kLoadHeight][kRowStride],
                               float (&out)[kAlongColumn][maps]) {
  const int column = threadIdx.x % kWidth, row = threadIdx.x / kWidth * kAlongColumn;
  SPLAT_UNROLL
  for (int map = 0; map < maps; ++map) {
    float sums[kAlongColumn] = {};
    SPLAT_UNROLL
    for (int k = 0; k < kTaps + kAlongColumn - 1; ++k) {
      const float value = rows[map][row + k][column];
      SPLAT_UNROLL
      for (int c = 0; c < kAlongColumn; ++c) {
        if (k >= c && k - c < kTaps) sums[c] += window_weight(k - c) * value;
      }
    }
    for (int c = 0; c < kAlongColumn; ++c) out[c][map] = sums[c];
  }
}

// Image and target with a border of five pixels; outside the mask the image equals the target.
__device__ void load_block(const ImageLoss& args, unsigned block, int64_t channel,
                           float (&image)[kLoadHeight][kLoadStride],
                           float (&target)[kLoadHeight][kLoadStride]) {
  for (int i = threadIdx.x; i < kLoadHeight * kLoadWidth; i += kThreads) {
    const int column = i % kLoadWidth, row = i / kLoadWidth;
    const Place p = place_of(args, block, column - kHalf, row - kHalf);
    const float t = p.inside ? args.target[component(args, p, channel)] : 0.0f;
    image[row][column] = counts(args, p) ? args.image[component(args, p, channel)] : t;
    target[row][column] = t;
  }
}

// One component of the map: returns 1 - SSIM and, where there are `partials`, writes there the
// derivatives with respect to the three filtered moments, times `weight`.
__device__ float similarity(const float (&moments)[5], float weight, int64_t map_size,
                            float* partials) {
  const float mx = moments[0], my = moments[1];
  const float a1 = 2 * mx * my + kC1, a2 = 2 * (moments[4] - mx * my) + kC2;
  const float b1 = mx * mx + my * my + kC1;
  const float b2 = (moments[2] - mx * mx) + (moments[3] - my * my) + kC2;
  const float inverse = 1.0f / (b1 * b2);
  const float value = a1 * a2 * inverse;
  if (partials == nullptr) return 1.0f - value;
  const float v_variance = -value * b1 * inverse;
  const float v_covariance = 2 * a1 * inverse;
  const float v_mean =
      2 * (my * a2 - mx * value * b2) * inverse - my * v_covariance - 2 * mx * v_variance;
  partials[0] = weight * v_mean;
  partials[map_size] = weight * 2 * v_variance;
  partials[2 * map_size] = weight * v_covariance;
  return 1.0f - value;
}

__global__ void __launch_bounds__(kThreads)
    ssim_kernel(ImageLoss args, const Scales* scales, Maps maps, double* sums,
                unsigned first_block) {
  __shared__ float image[kLoadHeight][kLoadStride], target[kLoadHeight][kLoadStride];
  __shared__ float rows[5][kLoadHeight][kRowStride];
  const unsigned block = first_block + blockIdx.x;
  double sum = 0.0;
  for (int64_t channel = 0; channel < args.channels; ++channel) {
    // What the channel before has left is read no more: its rows alone were, behind a barrier.
    load_block(args, block, channel, image, target);
    __syncthreads();
    filter_rows<5>(rows, [&](int column, int row, float (&values)[5]) {
      const float x = image[row][column], t = target[row][column];
      values[0] = x;
      values[1] = t;
      values[2] = x * x;
      values[3] = t * t;
      values[4] = x * t;
    });
    __syncthreads();
    float moments[kAlongColumn][5];
    filter_columns<5>(rows, moments);
    for (int number = 0; number < kAlongColumn; ++number) {
      const Place p = own_place(args, block, number);
      if (!p.inside) continue;
      const bool window = window_counts(args, p);
      float* partials = maps.values == nullptr ? nullptr : maps.values + maps.at(args, p, channel);
      const float loss =
          similarity(moments[number], window ? -scales->ssim : 0.0f, maps.size, partials);
      sum += window ? loss : 0.0f;
    }
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) sums[block] = total;
}

// The gradient of SSIM with respect to the three filtered moments, filtered back.
__device__ void filter_partials(const ImageLoss& args, const Maps& partials, unsigned block,
                                int64_t channel, float (&maps)[3][kLoadHeight][kLoadStride],
                                float (&rows)[3][kLoadHeight][kRowStride],
                                float (&filtered)[kAlongColumn][3]) {
  const int64_t map_size = partials.size;
  for (int i = threadIdx.x; i < kLoadHeight * kLoadWidth; i += kThreads) {
    const int column = i % kLoadWidth, row = i / kLoadWidth;
    const Place p = place_of(args, block, column - kHalf, row - kHalf);
    const float* values = p.inside ? partials.values + partials.at(args, p, channel) : nullptr;
    for (int map = 0; map < 3; ++map) {
      maps[map][row][column] = p.inside ? values[map * map_size] : 0.0f;
    }
  }
  __syncthreads();
  filter_rows<3>(rows, [&](int column, int row, float (&values)[3]) {
    for (int map = 0; map < 3; ++map) values[map] = maps[map][row][column];
  });
  __syncthreads();
  filter_columns<3>(rows, filtered);
}

__global__ void __launch_bounds__(kThreads)
    gradient_kernel(ImageLoss args, const Scales* scales, Maps partials, double* sums,
                    unsigned first_block) {
  __shared__ float maps[3][kLoadHeight][kLoadStride];
  __shared__ float rows[3][kLoadHeight][kRowStride];
  const bool with_ssim = partials.values != nullptr;
  const unsigned block = first_block + blockIdx.x;
  double sum = 0.0;
  for (int64_t channel = 0; channel < args.channels; ++channel) {
    float filtered[kAlongColumn][3] = {};
    if (with_ssim) filter_partials(args, partials, block, channel, maps, rows, filtered);
    for (int number = 0; number < kAlongColumn; ++number) {
      const Place p = own_place(args, block, number);
      if (!p.inside) continue;
      const bool counted = counts(args, p);
      const int64_t i = component(args, p, channel);
      const float x = args.image[i], t = args.target[i];
      sum += counted ? fabsf(x - t) : 0.0f;
      if (args.grad == nullptr) continue;
      const float sign = (x > t ? 1.0f : 0.0f) - (x < t ? 1.0f : 0.0f);
      const float* v = filtered[number];
      args.grad[i] = counted ? scales->l1 * sign + v[0] + x * v[1] + t * v[2] : 0.0f;
    }
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) sums[block] = total;
}

// One block: the blocks' sums in their order.
__global__ void __launch_bounds__(kThreads)
    value_kernel(ImageLoss args, const Scales* scales, const double* l1, const double* ssim,
                 int64_t num_blocks) {
  double l1_sum = 0.0, ssim_sum = 0.0;
  for (int64_t i = threadIdx.x; i < num_blocks; i += kThreads) {
    l1_sum += l1[i];
    if (ssim != nullptr) ssim_sum += ssim[i];
  }
  const double l1_total = block_sum(l1_sum), ssim_total = block_sum(ssim_sum);
  if (threadIdx.x != 0) return;
  const double l1_part = static_cast<double>(scales->l1) * l1_total;
  *args.value = static_cast<float>(l1_part + static_cast<double>(scales->ssim) * ssim_total);
}

// The image in rows of blocks.
struct BlockRows {
  int64_t blocks_x, num;

  int64_t num_blocks() const { return blocks_x * num; }
};

BlockRows block_rows(const ImageLoss& args) {
  return {(args.width + kWidth - 1) / kWidth, (args.height + kHeight - 1) / kHeight};
}

// So many blocks, enough for the largest GPU, are started together: the maps need not be those of
// the whole image. The emulation has fewer, so that small images have strips too.
#if !defined(SPLAT_STRIP_BLOCKS)
#define SPLAT_STRIP_BLOCKS 2048
#endif
constexpr int64_t kStrip = SPLAT_STRIP_BLOCKS;

bool has_maps(const ImageLoss& args) { return args.grad != nullptr && args.ssim_weight > 0; }

// Of the rows of blocks that are started together.
int64_t strip_rows(const ImageLoss& args) {
  const int64_t blocks_x = block_rows(args).blocks_x;
  return blocks_x > 0 ? (kStrip + blocks_x - 1) / blocks_x : 1;
}

// The gradient is a row of blocks behind the maps, of which it needs five rows above and below.
int64_t map_rows(const ImageLoss& args) {
  const int64_t rows = (strip_rows(args) + 2) * kHeight;
  return rows < args.height ? rows : args.height;
}

void in_strips(const ImageLoss& args, const Scales* scales, const Maps& maps, double* l1,
               double* ssim, Stream stream) {
  const BlockRows rows = block_rows(args);
  const auto start = [&](const char* name, const auto& kernel, double* sums, int64_t from,
                         int64_t to) {
    launch(name, kernel, (to - from) * rows.blocks_x, kThreads, stream, args, scales, maps, sums,
           from * rows.blocks_x);
  };
  const int64_t strip = maps.values == nullptr ? rows.num : strip_rows(args);
  for (int64_t begin = 0; begin < rows.num; begin += strip) {
    const bool last = rows.num - begin <= strip;
    const int64_t end = last ? rows.num : begin + strip;
    start("ssim", ssim_kernel, ssim, begin, end);
    start("loss_gradient", gradient_kernel, l1, begin == 0 ? 0 : begin - 1, last ? end : end - 1);
  }
}

}  // namespace

int64_t image_loss_scratch(const ImageLoss& args) {
  const int64_t numbers = has_maps(args) ? 3 * map_rows(args) * args.width * args.channels : 0;
  return static_cast<int64_t>(sizeof(double)) * (1 + 2 * block_rows(args).num_blocks()) +
         static_cast<int64_t>(sizeof(float)) * numbers;
}

void image_loss(const ImageLoss& args, void* scratch, Stream stream) {
  const int64_t blocks = block_rows(args).num_blocks();
  Scales* scales = static_cast<Scales*>(scratch);
  static_assert(sizeof(Scales) <= sizeof(double), "the scales have the place of one sum");
  double* l1 = static_cast<double*>(scratch) + 1;
  double* ssim = args.ssim_weight > 0 ? l1 + blocks : nullptr;
  const int64_t rows = map_rows(args);
  float* values = has_maps(args) ? reinterpret_cast<float*>(l1 + 2 * blocks) : nullptr;
  const Maps maps = {values, static_cast<int>(rows), rows * args.width * args.channels};
  // The counts lie where the blocks' sums come later.
  int64_t* pixels = reinterpret_cast<int64_t*>(l1);
  int64_t* windows = pixels + blocks;
  if (args.mask != nullptr) {
    launch("loss_counts", count_kernel, blocks, kThreads, stream, args, pixels, windows);
  }
  launch("loss_scales", scales_kernel, 1, kThreads, stream, args, pixels, windows, blocks, scales);
  if (ssim != nullptr) {
    in_strips(args, scales, maps, l1, ssim, stream);
  } else {
    launch("loss_gradient", gradient_kernel, blocks, kThreads, stream, args, scales, maps, l1, 0);
  }
  launch("loss_value", value_kernel, 1, kThreads, stream, args, scales, l1, ssim, blocks);
}

}  // namespace splat::cuda
