// How wrong the drawn depths are at points whose place is known, and the gradient of that with
// respect to the picture. What counts is 1/depth: an error far away is as wide in a photo.
#pragma once

#include <cstdint>

#include "linalg.h"

namespace splat {

constexpr float kSurfaceAlpha = 0.5f;  // where less is drawn there is no surface yet to be judged
constexpr float kLeastDepthSum = 1e-10f;  // below that of anything drawn

struct DepthError {
  const float *alpha, *depth_sum;  // [H, W]
  const uint8_t* mask;             // [H, W] 0 or 1: what counts, or null: all
  const float* points;             // [M, 3] in the world
  int64_t num;
  double rotation[3][3], translation[3];  // world to camera
  double fx, fy, cx, cy;
  int width, height;
  double unit;     // what an error of 1 / scene unit is worth
  int64_t* codes;  // [M] -1: does not count; else 3 * pixel + 0, 1, 2: drawn farther, right, nearer
  float* error;    // [] the mean over the points that count
  float* share;    // [] what each of them adds for an error of 1 / scene unit
};

struct DepthErrorGradient {
  const float *alpha, *depth_sum;  // [H, W]
  const int64_t* codes;            // [M] as of DepthError
  int64_t num, num_pixels;
  const float *share, *v_error;  // []
  float *v_alpha, *v_depth_sum;  // [H, W], every number is written
  uint8_t* first;                // [M] scratch: whether a point is the first one of its pixel
};

struct DepthErrorSum {
  double wrong;
  int64_t counted;
};

SPLAT_HD DepthErrorSum operator+(DepthErrorSum a, DepthErrorSum b) {
  return {a.wrong + b.wrong, a.counted + b.counted};
}

// The pixel of a point; -1: the camera does not show it.
SPLAT_HD int64_t pixel_of(const DepthError& args, const double* p) {
  if (!(p[2] > 0.0)) return -1;
  const double u = floor(args.fx * p[0] / p[2] + args.cx);
  const double v = floor(args.fy * p[1] / p[2] + args.cy);
  if (!(u >= 0.0 && u < args.width && v >= 0.0 && v < args.height)) return -1;
  return static_cast<int64_t>(v) * args.width + static_cast<int64_t>(u);
}

SPLAT_HD float depth_sum_of(const float* depth_sum, int64_t pixel) {
  const float sum = depth_sum[pixel];
  return sum < kLeastDepthSum ? kLeastDepthSum : sum;
}

// What a point says, and its code.
SPLAT_HD DepthErrorSum depth_error_of(const DepthError& args, int64_t i) {
  const float* x = args.points + 3 * i;
  double p[3];
  for (int row = 0; row < 3; ++row) {
    const double* r = args.rotation[row];
    p[row] = r[0] * x[0] + r[1] * x[1] + r[2] * x[2] + args.translation[row];
  }
  const int64_t pixel = pixel_of(args, p);
  args.codes[i] = -1;
  if (pixel < 0 || (args.mask != nullptr && args.mask[pixel] == 0)) return {0.0, 0};
  const float alpha = args.alpha[pixel];
  if (!(alpha > kSurfaceAlpha)) return {0.0, 0};
  const double drawn = static_cast<double>(alpha) / depth_sum_of(args.depth_sum, pixel);
  const double nearer = drawn - 1.0 / p[2];
  args.codes[i] = 3 * pixel + (nearer > 0.0 ? 2 : nearer < 0.0 ? 0 : 1);
  return {nearer < 0.0 ? -nearer : nearer, 1};
}

SPLAT_HD void write_depth_error(const DepthError& args, DepthErrorSum sum) {
  const double share = args.unit / static_cast<double>(sum.counted > 1 ? sum.counted : 1);
  *args.error = static_cast<float>(sum.wrong * share);
  *args.share = static_cast<float>(share);
}

// The way back in two passes over the points, between which all have to be ready. The points of a
// pixel differ in nothing but their side: whole numbers, whose sum is the same in any order.
SPLAT_HD float side_of(int64_t code) { return static_cast<float>(code % 3 - 1); }

// The second, for one point of each pixel that the first has drawn: from the sum of sides there.
SPLAT_HD void write_depth_gradients(const DepthErrorGradient& args, int64_t i) {
  if (args.codes[i] < 0 || args.first[i] == 0) return;
  const int64_t pixel = args.codes[i] / 3;
  const float inverse = 1.0f / depth_sum_of(args.depth_sum, pixel);
  const float v_inverse = args.v_alpha[pixel] * *args.share * *args.v_error;
  args.v_alpha[pixel] = v_inverse * inverse;
  args.v_depth_sum[pixel] = -v_inverse * args.alpha[pixel] * inverse * inverse;
}

namespace cpu {

void depth_error(const DepthError& args, int num_threads);
void depth_error_bwd(const DepthErrorGradient& args, int num_threads);

}  // namespace cpu

namespace cuda {

int64_t depth_error_scratch(int64_t num);  // bytes
void depth_error(const DepthError& args, void* scratch, void* stream);
void depth_error_bwd(const DepthErrorGradient& args, void* stream);

}  // namespace cuda
}  // namespace splat
