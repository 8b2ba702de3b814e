// Camera models: where a camera-space point appears, the Jacobian there, and the gradients of both.
#pragma once

#include "linalg.h"

namespace splat {

enum class CameraModel : int { kPinhole = 0, kOrtho = 1, kFisheye = 2 };

struct Camera {
  float rotation[3][3];  // world to camera
  float translation[3];
  float position[3];            // the camera's center in the world
  float fx, fy, cx, cy;         // px; ortho: px a world unit, fisheye: px a radian
  float near_plane, far_plane;  // camera z, both exclusive
  int width, height;
  CameraModel model;
};

// The slopes x/z (or y/z) within which a pinhole is linearised as it is: 15 % outside the image.
// Farther out the Jacobian explodes; it is taken at the limit, and the limit passes no gradient.
struct SlopeLimits {
  float low, high;
};

SPLAT_HD SlopeLimits slope_limits(float focal, float center, int size) {
  const float margin = 0.15f * static_cast<float>(size) / focal;
  return {-(center / focal + margin), (static_cast<float>(size) - center) / focal + margin};
}

template <typename F>
struct ImagePoint {
  Vec2<F> mean;       // px
  Mat23<F> jacobian;  // d mean / d point
};

constexpr float kFisheyeEps = 1e-7f;  // keeps the optical axis away from 0 / 0

// The intermediate values of the equidistant fisheye, shared by value and gradient.
template <typename F>
struct FisheyeTerms {
  F rho, r, theta, jacobian_theta, x2, y2, s, q, a, b;
};

template <typename F>
SPLAT_HD FisheyeTerms<F> fisheye_terms(Vec3<F> p) {
  const F eps = constant<F>(kFisheyeEps);
  const F one = constant<F>(1.0f);
  FisheyeTerms<F> t;
  t.rho = square_root(p.x * p.x + p.y * p.y);
  t.r = t.rho + eps;
  t.theta = angle_of(t.r, p.z + eps);
  t.jacobian_theta = angle_of(t.r, p.z);
  t.x2 = p.x * p.x + eps;
  t.y2 = p.y * p.y;
  t.s = t.x2 + t.y2;
  t.q = one / (t.s + p.z * p.z);
  t.a = p.z * t.q / t.s;
  t.b = t.jacobian_theta / (t.r * t.s);
  return t;
}

template <CameraModel model, typename F>
SPLAT_HD ImagePoint<F> project_point(const Camera& camera, Vec3<F> p) {
  const F fx = constant<F>(camera.fx), fy = constant<F>(camera.fy);
  const F cx = constant<F>(camera.cx), cy = constant<F>(camera.cy);
  const F zero = constant<F>(0.0f);
  if constexpr (model == CameraModel::kOrtho) {
    return {{fx * p.x + cx, fy * p.y + cy}, {{fx, zero, zero}, {zero, fy, zero}}};
  } else if constexpr (model == CameraModel::kFisheye) {
    const FisheyeTerms<F> t = fisheye_terms(p);
    const F scale = t.theta / t.r;
    const F xy = p.x * p.y * (t.a - t.b);
    return {{fx * p.x * scale + cx, fy * p.y * scale + cy},
            {{fx * (t.x2 * t.a + t.y2 * t.b), fx * xy, -fx * p.x * t.q},
             {fy * xy, fy * (t.y2 * t.a + t.x2 * t.b), -fy * p.y * t.q}}};
  } else {
    const SlopeLimits lx = slope_limits(camera.fx, camera.cx, camera.width);
    const SlopeLimits ly = slope_limits(camera.fy, camera.cy, camera.height);
    const F inverse = constant<F>(1.0f) / p.z;
    const F u = maximum(minimum(p.x * inverse, constant<F>(lx.high)), constant<F>(lx.low));
    const F v = maximum(minimum(p.y * inverse, constant<F>(ly.high)), constant<F>(ly.low));
    return {{fx * p.x * inverse + cx, fy * p.y * inverse + cy},
            {{fx * inverse, zero, -fx * u * inverse}, {zero, fy * inverse, -fy * v * inverse}}};
  }
}

template <typename F>
SPLAT_HD Vec3<F> project_fisheye_vjp(const Camera& camera, Vec3<F> p, Vec2<F> v_mean, Mat23<F> v) {
  const F fx = constant<F>(camera.fx), fy = constant<F>(camera.fy);
  const F two = constant<F>(2.0f), zero = constant<F>(0.0f);
  const FisheyeTerms<F> t = fisheye_terms(p);
  const F gx = fx * v.row0.x, gy = fy * v.row1.y, gxy = fx * v.row0.y + fy * v.row1.x;
  const F gqx = fx * v.row0.z, gqy = fy * v.row1.z;
  const F xy = p.x * p.y;
  const F v_a = t.x2 * gx + t.y2 * gy + xy * gxy;
  const F v_b = t.y2 * gx + t.x2 * gy - xy * gxy;
  const F v_xy = (t.a - t.b) * gxy;
  const F v_q = v_a * p.z / t.s - p.x * gqx - p.y * gqy;
  const F v_s = -(v_a * t.a + v_b * t.b) / t.s - v_q * t.q * t.q;
  const F v_x2 = t.a * gx + t.b * gy + v_s;
  const F v_y2 = t.b * gx + t.a * gy + v_s;
  const F v_jacobian_theta = v_b / (t.r * t.s);
  const F hypotenuse2 = t.r * t.r + p.z * p.z;

  const F pull = (fx * p.x * v_mean.x + fy * p.y * v_mean.y) / t.r;  // gradient of theta
  const F z = p.z + constant<F>(kFisheyeEps);
  const F mean_hypotenuse2 = t.r * t.r + z * z;

  const F v_r = -v_b * t.b / t.r + v_jacobian_theta * p.z / hypotenuse2 - pull * t.theta / t.r +
                pull * z / mean_hypotenuse2;
  const F v_rho = select(t.rho > zero, v_r / t.rho, zero);
  const F scale = t.theta / t.r;
  return {fx * scale * v_mean.x + two * p.x * v_x2 + p.y * v_xy + p.x * v_rho - t.q * gqx,
          fy * scale * v_mean.y + two * p.y * v_y2 + p.x * v_xy + p.y * v_rho - t.q * gqy,
          v_a * t.q / t.s - two * p.z * t.q * t.q * v_q - v_jacobian_theta * t.r / hypotenuse2 -
              pull * t.r / mean_hypotenuse2};
}

// The gradient with respect to the point, from those of its image and of the Jacobian there.
template <CameraModel model, typename F>
SPLAT_HD Vec3<F> project_point_vjp(const Camera& camera, Vec3<F> p, Vec2<F> v_mean, Mat23<F> v) {
  const F fx = constant<F>(camera.fx), fy = constant<F>(camera.fy);
  const F zero = constant<F>(0.0f);
  if constexpr (model == CameraModel::kOrtho) {
    return {fx * v_mean.x, fy * v_mean.y, zero};
  } else if constexpr (model == CameraModel::kFisheye) {
    return project_fisheye_vjp(camera, p, v_mean, v);
  } else {
    const SlopeLimits lx = slope_limits(camera.fx, camera.cx, camera.width);
    const SlopeLimits ly = slope_limits(camera.fy, camera.cy, camera.height);
    const F inverse = constant<F>(1.0f) / p.z;
    const F x = p.x * inverse, y = p.y * inverse;
    const F u = maximum(minimum(x, constant<F>(lx.high)), constant<F>(lx.low));
    const F w = maximum(minimum(y, constant<F>(ly.high)), constant<F>(ly.low));
    const F v_u = select(u == x, -fx * v.row0.z * inverse, zero);
    const F v_w = select(w == y, -fy * v.row1.z * inverse, zero);
    // Everything is a function of the slopes and of 1/z.
    const F v_x = fx * v_mean.x + v_u, v_y = fy * v_mean.y + v_w;
    const F v_inverse = fx * (v.row0.x - u * v.row0.z) + fy * (v.row1.y - w * v.row1.z);
    return {v_x * inverse, v_y * inverse, -inverse * (x * v_x + y * v_y + inverse * v_inverse)};
  }
}

}  // namespace splat
