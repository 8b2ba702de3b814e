// A block of the photometric loss: the L1 term, the SSIM map by separable filters, and the
// gradient.
//
// One pass over the rows, from above to below. The filtered moments of the last rows and the
// filtered derivatives of the map lie in two rings that stay in the second-level cache; nothing
// else is kept. Rows in the scratch are filled up to whole vectors.
#include <cmath>
#include <cstring>

#include "lanes.h"
#include "simd.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;
// A Gaussian of sigma 1.5, normalized; symmetric, so half of it.
constexpr float kWeights[kSsimHalf + 1] = {1.028380084e-3f, 7.598758135e-3f, 3.600077213e-2f,
                                           1.093606895e-1f, 2.130055377e-1f, 2.660117249e-1f};
// Of the two images only these four means over the window are needed: x, y, x^2 + y^2, x y; and the
// derivatives of SSIM with respect to the first, the third and the fourth.

SPLAT_LANES F8 weight(int distance) { return constant<F8>(kWeights[kSsimHalf - distance]); }

// out[i] = sum over the window of in[i + k * channels]; in has 10 * channels entries more than out.
template <int kChannels>
void filter_row_of(const float* __restrict in, float* __restrict out, int64_t num,
                   int64_t channels) {
  if (kChannels > 0) channels = kChannels;
  for (int64_t i = 0; i < num; i += kLanes) {
    const float* center = in + i + kSsimHalf * channels;
    F8 sum = weight(0) * load8(center);
    for (int d = 1; d <= kSsimHalf; ++d) {
      sum =
          multiply_add(weight(d), load8(center - d * channels) + load8(center + d * channels), sum);
    }
    store8(out + i, sum);
  }
}

void filter_row(const float* in, float* out, int64_t num, int64_t channels) {
  channels == 3 ? filter_row_of<3>(in, out, num, channels)
                : filter_row_of<0>(in, out, num, channels);
}

// The last rows, in a ring; a row holds several maps one behind the other.
struct Ring {
  float* data;
  int64_t row;

  float* at(int64_t y) const { return data + (y + 4 * kRingRows) % kRingRows * row; }

  // The windows centered in rows y and y + 1, from within: their twelve rows are read once.
  void columns(int64_t y, float* __restrict first, float* __restrict second) const {
    const float* rows[kRingRows];
    for (int k = 0; k < kRingRows; ++k) rows[k] = at(y - kSsimHalf + k);
    for (int64_t i = 0; i < row; i += kLanes) {
      F8 above = load8(rows[kSsimHalf] + i), below = load8(rows[kSsimHalf + 1] + i);
      F8 sum = weight(0) * above, next = weight(0) * below;
      for (int d = 1; d <= kSsimHalf; ++d) {
        const F8 higher = load8(rows[kSsimHalf - d] + i);
        const F8 lower = load8(rows[kSsimHalf + 1 + d] + i);
        sum = multiply_add(weight(d), higher + below, sum);
        next = multiply_add(weight(d), above + lower, next);
        above = higher;
        below = lower;
      }
      store8(first + i, sum);
      store8(second + i, next);
    }
  }
};

// A block with its scratch. Positions are components: pixel times channels.
struct Block {
  const ImageLoss& args;
  const LossBlock& block;
  int64_t channels, width, num, halo;   // of the image's rows; of the block's; five pixels
  int64_t in_size, map_size, out_size;  // with two halos, with one, with none, in whole vectors
  float *products, *loss, *weights, *partials, *moments, *sums;
  Ring moment_ring, partial_ring;

  Block(const ImageLoss& args, const LossBlock& block) : args(args), block(block) {
    channels = args.channels;
    width = args.width * channels;
    num = (block.column_end - block.column_begin) * channels;
    halo = kSsimHalf * channels;
    in_size = whole_vectors(num + 4 * halo) + kLanes;
    map_size = whole_vectors(num + 2 * halo) + kLanes;
    out_size = whole_vectors(num);
    float* free = block.scratch;
    const auto take = [&](int64_t size) {
      float* taken = free;
      free += size;
      return taken;
    };
    products = take(kLossMoments * in_size);
    loss = take(map_size);
    weights = take(map_size);
    partials = take(kLossPartials * map_size);
    moments = take(2 * kLossMoments * map_size);
    sums = take(2 * kLossPartials * out_size);
    moment_ring = {take(kRingRows * kLossMoments * map_size), kLossMoments * map_size};
    partial_ring = {take(kRingRows * kLossPartials * out_size), kLossPartials * out_size};
  }

  // The first component of the block's rows, `margin` further left.
  int64_t left(int64_t margin) const { return block.column_begin * channels - margin; }

  void moments_of_row(int64_t y);
  void weights_of_row(int64_t y);
  void similarity_of_row(int64_t y, const float* moments, float* out);
  void gradient_of_row(int64_t y, const float* sums);
};

// Filters the products of row y along the row, into the ring. What lies outside the image stays 0.
void Block::moments_of_row(int64_t y) {
  float* out = moment_ring.at(y);
  if (y < 0 || y >= args.height) {
    std::memset(out, 0, sizeof(float) * moment_ring.row);
    return;
  }
  const int64_t from = left(2 * halo), wanted = num + 4 * halo;
  const int64_t begin = from < 0 ? -from : 0;
  const int64_t end = width - from < wanted ? width - from : wanted;
  float* __restrict x = products, * __restrict t = products + in_size;
  std::memcpy(x + begin, args.image + y * width + from + begin, sizeof(float) * (end - begin));
  std::memcpy(t + begin, args.target + y * width + from + begin, sizeof(float) * (end - begin));
  if (args.mask != nullptr) {
    const uint8_t* mask = args.mask + y * args.width;
    for (int64_t i = begin; i < end; ++i) {
      if (mask[(from + i) / channels] == 0) x[i] = t[i];
    }
  }
  float* __restrict squares = t + in_size, * __restrict product = squares + in_size;
  for (int64_t i = 0; i < in_size; ++i) {
    squares[i] = x[i] * x[i] + t[i] * t[i];
    product[i] = x[i] * t[i];
  }
  for (int map = 0; map < kLossMoments; ++map) {
    filter_row(products + map * in_size, out + map * map_size, num + 2 * halo, channels);
  }
}

// Whether the windows centered in row y count: 1 or 0 for every component, the halo's too.
void Block::weights_of_row(int64_t y) {
  const int64_t count = num + 2 * halo, from = left(halo);
  const int64_t border = args.same_padding ? 0 : kSsimHalf;
  const bool outside = y < border || y >= args.height - border;
  const int64_t low = border * channels - from, high = width - border * channels - from;
  const int64_t begin = low < 0 ? 0 : (low > count ? count : low);
  const int64_t end = outside || high < begin ? begin : (high > count ? count : high);
  for (int64_t i = 0; i < begin; ++i) weights[i] = 0.0f;
  for (int64_t i = begin; i < end; ++i) weights[i] = 1.0f;
  for (int64_t i = end; i < count; ++i) weights[i] = 0.0f;
  if (args.mask == nullptr) return;
  for (int64_t i = begin; i < end; ++i) {
    if (args.mask[y * args.width + (from + i) / channels] == 0) weights[i] = 0.0f;
  }
}

// The sum of a row in a fixed order, in eight parts so that it need not be added one by one.
double sum_of_row(const float* row, int64_t num) {
  double parts[8] = {};
  int64_t i = 0;
  for (; i + 8 <= num; i += 8) {
    for (int k = 0; k < 8; ++k) parts[k] += row[i + k];
  }
  for (; i < num; ++i) parts[0] += row[i];
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
         ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

// Writes 1 - SSIM and the three partial derivatives of a row; maps lie `stride` apart.
void similarity(const float* __restrict moments, const float* __restrict weights, float scale,
                int64_t num, int64_t stride, float* __restrict loss, float* __restrict partials) {
  const F8 one = constant<F8>(1.0f), two = constant<F8>(2.0f), scales = constant<F8>(scale);
  const F8 c1 = constant<F8>(kC1), c2 = constant<F8>(kC2);
  for (int64_t i = 0; i < num; i += kLanes) {
    const F8 mx = load8(moments + i), my = load8(moments + stride + i);
    const F8 squares = load8(moments + 2 * stride + i), product = load8(moments + 3 * stride + i);
    const F8 both = mx * mx + my * my;
    const F8 a1 = two * mx * my + c1, a2 = two * (product - mx * my) + c2;
    const F8 b1 = both + c1, b2 = (squares - both) + c2;
    const F8 inverse = one / (b1 * b2);
    const F8 value = a1 * a2 * inverse;
    const F8 counts = load8(weights + i), w = counts * scales;
    store8(loss + i, counts * (one - value));
    const F8 v_variance = -value * b1 * inverse;
    const F8 v_covariance = two * a1 * inverse;
    const F8 v_mean =
        two * (my * a2 - mx * value * b2) * inverse - my * v_covariance - two * mx * v_variance;
    store8(partials + i, w * v_mean);
    store8(partials + stride + i, w * two * v_variance);
    store8(partials + 2 * stride + i, w * v_covariance);
  }
}

// Adds row y of the map up and filters its derivatives along the row, into `out` (if not null).
void Block::similarity_of_row(int64_t y, const float* moments, float* out) {
  weights_of_row(y);
  similarity(moments, weights, -block.ssim_scale, num + 2 * halo, map_size, loss, partials);
  if (y >= block.row_begin && y < block.row_end) {
    block.ssim_sums[y * block.sum_stride] = sum_of_row(loss + halo, num);
  }
  for (int map = 0; map < kLossPartials && out != nullptr; ++map) {
    filter_row(partials + map * map_size, out + map * out_size, num, channels);
  }
}

void l1_row(const float* __restrict image, const float* __restrict target, float scale, int64_t num,
            float* __restrict difference, float* __restrict sign) {
  for (int64_t i = 0; i < num; ++i) {
    const float d = image[i] - target[i];
    difference[i] = std::fabs(d);
    sign[i] = scale * ((d > 0.0f ? 1.0f : 0.0f) - (d < 0.0f ? 1.0f : 0.0f));
  }
}

// `sums` are the filtered derivatives with respect to the mean, the squares, the product.
void add_ssim_gradient(const float* __restrict image, const float* __restrict target,
                       const float* __restrict sums, int64_t num, int64_t stride,
                       float* __restrict grad) {
  for (int64_t i = 0; i < num; ++i) {
    grad[i] += sums[i] + image[i] * sums[stride + i] + target[i] * sums[2 * stride + i];
  }
}

// Row y of the L1 term, and of the gradient; `sums` is null where SSIM has no part in it.
void Block::gradient_of_row(int64_t y, const float* sums) {
  const int64_t from = y * width + left(0);
  const float *image = args.image + from, *target = args.target + from;
  float *difference = loss, *grad = args.grad != nullptr ? args.grad + from : partials;
  l1_row(image, target, block.l1_scale, num, difference, grad);
  if (sums != nullptr) add_ssim_gradient(image, target, sums, num, out_size, grad);
  if (args.mask != nullptr) {
    const uint8_t* mask = args.mask + y * args.width + block.column_begin;
    for (int64_t i = 0; i < num; ++i) {
      if (mask[i / channels] == 0) difference[i] = grad[i] = 0.0f;
    }
  }
  block.l1_sums[y * block.sum_stride] = sum_of_row(difference, num);
}

}  // namespace

void loss_block(const ImageLoss& args, const LossBlock& block) {
  Block b(args, block);
  if (!(block.ssim_scale > 0)) {
    for (int64_t y = block.row_begin; y < block.row_end; ++y) b.gradient_of_row(y, nullptr);
    return;
  }
  const bool with_grad = args.grad != nullptr;
  const int64_t halo = with_grad ? kSsimHalf : 0;
  const int64_t first = block.row_begin - halo, last = block.row_end + halo;
  for (int64_t y = first - kSsimHalf; y < first + kSsimHalf; ++y) b.moments_of_row(y);
  // Two rows of the map at a time; a row too many at the end is looked at by nobody.
  for (int64_t y = first; y < last; y += 2) {
    b.moments_of_row(y + kSsimHalf);
    b.moments_of_row(y + kSsimHalf + 1);
    b.moment_ring.columns(y, b.moments, b.moments + b.moment_ring.row);
    for (int64_t k = 0; k < 2; ++k) {
      b.similarity_of_row(y + k, b.moments + k * b.moment_ring.row,
                          with_grad ? b.partial_ring.at(y + k) : nullptr);
    }
    const int64_t center = y - halo;  // the newest row whose window of derivatives is known
    if (center < block.row_begin) continue;
    if (with_grad) b.partial_ring.columns(center, b.sums, b.sums + b.partial_ring.row);
    for (int64_t k = 0; k < 2 && center + k < block.row_end; ++k) {
      b.gradient_of_row(center + k, with_grad ? b.sums + k * b.partial_ring.row : nullptr);
    }
  }
}

}  // namespace splat::cpu::SPLAT_ISA
