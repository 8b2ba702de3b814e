// A Gaussian seen by a camera: the ellipse of its projection (EWA splatting, Zwicker et al. 2001),
// how far it reaches, and the gradients.
#pragma once

#include "linalg.h"

namespace splat {

constexpr float kEps2d = 0.3f;  // px^2, added to the covariance: nothing is thinner than a pixel
constexpr float kMinCompensation = 0.005f;        // lower bound of the antialiasing opacity factor
constexpr float kMaxExtent = 3.33f;               // standard deviations; exp(-3.33^2 / 2) < 1/255
constexpr float kAlphaThreshold = 1.0f / 255.0f;  // what adds less is invisible in 8 bits
constexpr float kLargestRadius = 1e9f;            // px, fits an int32

// The standard deviation of a stored logarithm: infinite above e^87, NaN for NaN.
template <typename F>
SPLAT_HD F scale_of(F logarithm) {
  const F largest = constant<F>(87.0f);
  return select(logarithm <= largest, exp_negative(-logarithm), logarithm * constant<F>(kInfinity));
}

// The opacity of a stored logit; NaN gives one that is too small to be seen.
template <typename F>
SPLAT_HD F opacity_of(F logit) {
  const F one = constant<F>(1.0f);
  return one / (one + exp_negative(maximum(logit, constant<F>(-87.0f))));
}

// The projection of a covariance S = M M^T, M = rotation * diag(scales), kept as the 2 x 3 matrix
// N with C = N N^T. det C is then the squared length of the cross product of N's rows: it does not
// cancel for needles as C_xx C_yy - C_xy^2 does.
template <typename F>
struct Ellipse {
  Mat23<F> axes;     // N
  F det_sharp, det;  // of C and of C + eps I
  F xx, xy, yy;      // C + eps I
  F a, b, c;         // its inverse [[a, b], [b, c]]
};

// `projection` is Jacobian * world-to-camera rotation, `rotation` the Gaussian's own.
template <typename F>
SPLAT_HD Ellipse<F> ellipse_of(Mat23<F> projection, const Mat3<F>& rotation, Vec3<F> scales) {
  const F eps = constant<F>(kEps2d);
  const Vec3<F> n0 = times(projection.row0, rotation.m), n1 = times(projection.row1, rotation.m);
  Ellipse<F> e;
  e.axes = {{n0.x * scales.x, n0.y * scales.y, n0.z * scales.z},
            {n1.x * scales.x, n1.y * scales.y, n1.z * scales.z}};
  const F xx = dot(e.axes.row0, e.axes.row0), yy = dot(e.axes.row1, e.axes.row1);
  const Vec3<F> normal = cross(e.axes.row0, e.axes.row1);
  e.det_sharp = dot(normal, normal);
  e.det = e.det_sharp + eps * (xx + yy) + eps * eps;
  e.xx = xx + eps;
  e.xy = dot(e.axes.row0, e.axes.row1);
  e.yy = yy + eps;
  const F inverse = constant<F>(1.0f) / e.det;
  e.a = e.yy * inverse;
  e.b = -e.xy * inverse;
  e.c = e.xx * inverse;
  return e;
}

// The opacity factor that keeps the sum over pixels when the blur widens a small splat.
template <typename F>
SPLAT_HD F compensation_of(const Ellipse<F>& e) {
  return square_root(
      maximum(e.det_sharp / e.det, constant<F>(kMinCompensation * kMinCompensation)));
}

template <typename F>
struct EllipseGradient {
  Mat23<F> projection;
  Mat3<F> rotation;
  Vec3<F> scales;
};

// The gradients of ellipse_of, from those of the conic (b counts once) and of the compensation.
template <typename F>
SPLAT_HD EllipseGradient<F> ellipse_of_vjp(const Ellipse<F>& e, Mat23<F> projection,
                                           const Mat3<F>& rotation, Vec3<F> scales, Vec3<F> v_conic,
                                           F v_compensation) {
  const F half = constant<F>(0.5f), two = constant<F>(2.0f), zero = constant<F>(0.0f);
  // -Q G Q with Q the conic and G its gradient as a symmetric matrix.
  const F vb = half * v_conic.y;
  const F qg00 = e.a * v_conic.x + e.b * vb, qg01 = e.a * vb + e.b * v_conic.z;
  const F qg10 = e.b * v_conic.x + e.c * vb, qg11 = e.b * vb + e.c * v_conic.z;
  F v_xx = -(qg00 * e.a + qg01 * e.b);
  const F v_xy = -two * (qg00 * e.b + qg01 * e.c);
  F v_yy = -(qg10 * e.b + qg11 * e.c);

  const F ratio = e.det_sharp / e.det;
  const F floor = constant<F>(kMinCompensation * kMinCompensation);
  const F v_ratio =
      select(ratio > floor, half * v_compensation / square_root(maximum(ratio, floor)), zero);
  const F v_det = -v_ratio * ratio / e.det;
  const F v_det_sharp = v_ratio / e.det + v_det;
  v_xx = v_xx + constant<F>(kEps2d) * v_det;
  v_yy = v_yy + constant<F>(kEps2d) * v_det;

  const Vec3<F> n0 = e.axes.row0, n1 = e.axes.row1;
  const Vec3<F> normal = cross(n0, n1);
  const Vec3<F> v_n0 = (two * v_xx) * n0 + v_xy * n1 + (two * v_det_sharp) * cross(n1, normal);
  const Vec3<F> v_n1 = (two * v_yy) * n1 + v_xy * n0 + (two * v_det_sharp) * cross(normal, n0);

  // N = P R diag(s); pr = P R.
  const Vec3<F> pr0 = times(projection.row0, rotation.m), pr1 = times(projection.row1, rotation.m);
  EllipseGradient<F> v;
  v.scales = {v_n0.x * pr0.x + v_n1.x * pr1.x, v_n0.y * pr0.y + v_n1.y * pr1.y,
              v_n0.z * pr0.z + v_n1.z * pr1.z};
  const Vec3<F> v_pr0 = {v_n0.x * scales.x, v_n0.y * scales.y, v_n0.z * scales.z};
  const Vec3<F> v_pr1 = {v_n1.x * scales.x, v_n1.y * scales.y, v_n1.z * scales.z};
  v.projection = {times(rotation.m, v_pr0), times(rotation.m, v_pr1)};
  const Vec3<F> r0 = projection.row0.x * v_pr0 + projection.row1.x * v_pr1;
  const Vec3<F> r1 = projection.row0.y * v_pr0 + projection.row1.y * v_pr1;
  const Vec3<F> r2 = projection.row0.z * v_pr0 + projection.row1.z * v_pr1;
  v.rotation = {{{r0.x, r0.y, r0.z}, {r1.x, r1.y, r1.z}, {r2.x, r2.y, r2.z}}};
  return v;
}

// Half the box that holds every pixel with alpha >= 1/255, px, whole numbers.
template <typename F>
SPLAT_HD Vec2<F> radii_of(const Ellipse<F>& e, F opacity) {
  const F ratio = opacity * constant<F>(1.0f / kAlphaThreshold);
  const F extent =
      minimum(square_root(constant<F>(2.0f) * natural_log(ratio)), constant<F>(kMaxExtent));
  const F largest = constant<F>(kLargestRadius);
  return {minimum(round_up(extent * square_root(e.xx)), largest),
          minimum(round_up(extent * square_root(e.yy)), largest)};
}

}  // namespace splat
