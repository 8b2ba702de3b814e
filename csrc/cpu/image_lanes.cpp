// Rows of an image: the SSIM map and its gradient by separable filters, the L1 term, and Adam.
// Plain loops over contiguous floats that the compiler turns into vector code.
#include <cmath>
#include <cstring>

#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {
namespace {

constexpr int kWindow = 2 * kSsimHalf + 1;
constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;
// A Gaussian of sigma 1.5, normalised; symmetric, so half of it.
constexpr float kWeights[kSsimHalf + 1] = {1.028380084e-3f, 7.598758135e-3f, 3.600077213e-2f,
                                           1.093606895e-1f, 2.130055377e-1f, 2.660117249e-1f};

// out[i] = sum over the window of in[i + k * channels]; in has 10 * channels entries more than out.
void filter_row(const float* __restrict in, float* __restrict out, int64_t num, int64_t channels) {
  for (int64_t i = 0; i < num; ++i) {
    float sum = kWeights[kSsimHalf] * in[i + kSsimHalf * channels];
    for (int k = 0; k < kSsimHalf; ++k) {
      sum += kWeights[k] * (in[i + k * channels] + in[i + (kWindow - 1 - k) * channels]);
    }
    out[i] = sum;
  }
}

// The same down the columns; rows[k] is the k-th row of the window.
void filter_column(const float* const* rows, float* __restrict out, int64_t num) {
  const float *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3], *r4 = rows[4],
              *r5 = rows[5], *r6 = rows[6], *r7 = rows[7], *r8 = rows[8], *r9 = rows[9],
              *r10 = rows[10];
  for (int64_t i = 0; i < num; ++i) {
    out[i] = kWeights[5] * r5[i] + kWeights[4] * (r4[i] + r6[i]) + kWeights[3] * (r3[i] + r7[i]) +
             kWeights[2] * (r2[i] + r8[i]) + kWeights[1] * (r1[i] + r9[i]) +
             kWeights[0] * (r0[i] + r10[i]);
  }
}

// `maps` filtered maps of the last 11 rows, in a ring.
struct Ring {
  float* data;
  int maps;
  int64_t row;

  float* at(int map, int64_t y) const {
    return data + ((y + kWindow) % kWindow * maps + map) * row;
  }

  void column(int map, int64_t y, float* out, int64_t num) const {
    const float* rows[kWindow];
    for (int k = 0; k < kWindow; ++k) rows[k] = at(map, y - kSsimHalf + k);
    filter_column(rows, out, num);
  }
};

// Whether the pixels of row y count in the L1 term: 1 or 0 for every component.
void l1_weights(const ImageLoss& args, int64_t y, float* out) {
  for (int64_t x = 0; x < args.width; ++x) {
    const float counts = args.mask == nullptr || args.mask[y * args.width + x] != 0 ? 1.0f : 0.0f;
    for (int64_t c = 0; c < args.channels; ++c) out[x * args.channels + c] = counts;
  }
}

// Whether the windows centred in row y count.
void ssim_weights(const ImageLoss& args, int64_t y, float* out) {
  l1_weights(args, y, out);
  if (args.same_padding) return;
  const int64_t num = args.width * args.channels;
  const int64_t border = kSsimHalf * args.channels;
  if (y < kSsimHalf || y >= args.height - kSsimHalf || num < 2 * border) {
    std::memset(out, 0, num * sizeof(float));
    return;
  }
  std::memset(out, 0, border * sizeof(float));
  std::memset(out + num - border, 0, border * sizeof(float));
}

// Row y of the image, the target taken for it where the mask is 0.
void masked_row(const ImageLoss& args, int64_t y, const float* weights, float* __restrict out) {
  const int64_t num = args.width * args.channels;
  const float* image = args.image + y * num;
  const float* target = args.target + y * num;
  for (int64_t i = 0; i < num; ++i) out[i] = weights[i] != 0 ? image[i] : target[i];
}

// Filters the five products of row y along the row, into the ring.
void moments_of_row(const ImageLoss& args, int64_t y, float* padded, float* weights, Ring ring) {
  const int64_t num = args.width * args.channels, border = kSsimHalf * args.channels;
  const int64_t stride = num + 2 * border;
  if (y < 0 || y >= args.height) {
    for (int map = 0; map < 5; ++map) std::memset(ring.at(map, y), 0, num * sizeof(float));
    return;
  }
  float* x = padded + border;
  float* t = x + stride;
  l1_weights(args, y, weights);
  masked_row(args, y, weights, x);
  std::memcpy(t, args.target + y * num, num * sizeof(float));
  for (int64_t i = 0; i < num; ++i) {
    x[2 * stride + i] = x[i] * x[i];
    x[3 * stride + i] = t[i] * t[i];
    x[4 * stride + i] = x[i] * t[i];
  }
  for (int map = 0; map < 5; ++map) {
    filter_row(padded + map * stride, ring.at(map, y), num, args.channels);
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

// One row of the map from its moments: writes 1 - SSIM and the three partial derivatives.
void similarity_row(const float* __restrict moments, const float* __restrict weights, float scale,
                    int64_t num, int64_t map_size, float* __restrict loss,
                    float* __restrict partials) {
  const float *mean_x = moments, *mean_y = mean_x + num, *square_x = mean_y + num;
  const float *square_y = square_x + num, *product = square_y + num;
  for (int64_t i = 0; i < num; ++i) {
    const float mx = mean_x[i], my = mean_y[i];
    const float a1 = 2 * mx * my + kC1, a2 = 2 * (product[i] - mx * my) + kC2;
    const float b1 = mx * mx + my * my + kC1;
    const float b2 = (square_x[i] - mx * mx) + (square_y[i] - my * my) + kC2;
    const float inverse = 1.0f / (b1 * b2);
    const float value = a1 * a2 * inverse;
    loss[i] = weights[i] * (1.0f - value);
    const float w = weights[i] * scale;
    const float v_variance = -value * b1 * inverse;
    const float v_covariance = 2 * a1 * inverse;
    const float v_mean =
        2 * (my * a2 - mx * value * b2) * inverse - my * v_covariance - 2 * mx * v_variance;
    partials[i] = w * v_mean;
    partials[map_size + i] = w * 2 * v_variance;
    partials[2 * map_size + i] = w * v_covariance;
  }
}

void l1_gradient(const float* __restrict image, const float* __restrict target,
                 const float* __restrict weights, float scale, int64_t num,
                 float* __restrict grad) {
  for (int64_t i = 0; i < num; ++i) {
    const float sign = (image[i] > target[i] ? 1.0f : 0.0f) - (image[i] < target[i] ? 1.0f : 0.0f);
    grad[i] = weights[i] * scale * sign;
  }
}

// `sums` are the filtered partial derivatives with respect to the mean, the square, the product.
void add_ssim_gradient(const float* __restrict image, const float* __restrict target,
                       const float* __restrict weights, const float* __restrict sums, int64_t num,
                       float* __restrict grad) {
  for (int64_t i = 0; i < num; ++i) {
    const float v = sums[i] + image[i] * sums[num + i] + target[i] * sums[2 * num + i];
    grad[i] += weights[i] != 0 ? v : 0.0f;
  }
}

}  // namespace

void ssim_rows(const ImageLoss& args, const ImageRows& rows) {
  const int64_t num = args.width * args.channels;
  const int64_t stride = num + 2 * kSsimHalf * args.channels;
  float* padded = rows.scratch;
  const Ring ring = {padded + 5 * stride, 5, num};
  float* moments = ring.data + 5 * kWindow * num;
  float* weights = moments + 5 * num;
  std::memset(padded, 0, 5 * stride * sizeof(float));
  for (int64_t y = rows.begin - kSsimHalf; y < rows.end + kSsimHalf; ++y) {
    moments_of_row(args, y, padded, weights, ring);
    const int64_t center = y - kSsimHalf;
    if (center < rows.begin) continue;
    for (int map = 0; map < 5; ++map) ring.column(map, center, moments + map * num, num);
    ssim_weights(args, center, weights);
    float* loss = weights + num;
    similarity_row(moments, weights, -rows.ssim_scale, num, args.height * num, loss,
                   args.partials + center * num);
    rows.ssim_rows[center] = sum_of_row(loss, num);
  }
}

void grad_rows(const ImageLoss& args, const ImageRows& rows) {
  const int64_t num = args.width * args.channels, border = kSsimHalf * args.channels;
  const int64_t stride = num + 2 * border;
  const bool with_ssim = rows.ssim_scale > 0 && args.grad != nullptr;
  float* padded = rows.scratch;
  const Ring ring = {padded + 5 * stride, 3, num};
  float* sums = ring.data + 5 * kWindow * num;
  float* weights = sums + 5 * num;
  std::memset(padded, 0, stride * sizeof(float));
  const int64_t halo = with_ssim ? kSsimHalf : 0;
  for (int64_t y = rows.begin - halo; y < rows.end + halo; ++y) {
    for (int map = 0; map < 3 && with_ssim; ++map) {
      if (y < 0 || y >= args.height) {
        std::memset(ring.at(map, y), 0, num * sizeof(float));
        continue;
      }
      std::memcpy(padded + border, args.partials + (map * args.height + y) * num,
                  num * sizeof(float));
      filter_row(padded, ring.at(map, y), num, args.channels);
    }
    const int64_t center = y - halo;
    if (center < rows.begin) continue;
    l1_weights(args, center, weights);
    const float* image = args.image + center * num;
    const float* target = args.target + center * num;
    float* difference = weights + num;
    for (int64_t i = 0; i < num; ++i) {
      difference[i] = weights[i] != 0 ? std::fabs(image[i] - target[i]) : 0.0f;
    }
    rows.l1_rows[center] = sum_of_row(difference, num);
    if (args.grad == nullptr) continue;
    float* grad = args.grad + center * num;
    l1_gradient(image, target, weights, rows.l1_scale, num, grad);
    if (!with_ssim) continue;
    for (int map = 0; map < 3; ++map) ring.column(map, center, sums + map * num, num);
    add_ssim_gradient(image, target, weights, sums, num, grad);
  }
}

void adam(const Adam& args, int64_t begin, int64_t end) {
  const float beta1 = static_cast<float>(args.beta1), beta2 = static_cast<float>(args.beta2);
  const float rest1 = static_cast<float>(1.0 - args.beta1);
  const float rest2 = static_cast<float>(1.0 - args.beta2);
  const double step = static_cast<double>(args.step);
  const float rate = static_cast<float>(args.lr / (1.0 - std::pow(args.beta1, step)));
  const float root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, step)));
  const float eps = static_cast<float>(args.eps);
  float* __restrict param = args.param;
  const float* __restrict grad = args.grad;
  float* __restrict exp_avg = args.exp_avg;
  float* __restrict exp_avg_sq = args.exp_avg_sq;
  for (int64_t i = begin; i < end; ++i) {
    const float g = grad[i];
    const float m = beta1 * exp_avg[i] + rest1 * g;
    const float v = beta2 * exp_avg_sq[i] + rest2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] -= rate * m / (std::sqrt(v) * root + eps);
  }
}

}  // namespace splat::cpu::SPLAT_ISA
