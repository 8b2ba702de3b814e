// Small vectors and matrices for the maths that the CPU and the CUDA kernels share.
//
// F is the scalar: float, or a pack of floats (one Gaussian a lane, see cpu/simd.h). What differs
// between the two stands here under one name: select, square_root, minimum, ...; everything else is
// written with operators. A pack's functions must be declared before these templates (vector types
// have no namespace that a template could search later), so cpu/simd.h is included first there.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define SPLAT_HD __host__ __device__ __forceinline__
#else
#define SPLAT_HD inline __attribute__((always_inline))
#endif

// Before a loop over an array of registers whose bounds are known only when the kernel runs: what
// is not unrolled indexes the array, which then lies in memory.
#if defined(__CUDACC__)
#define SPLAT_UNROLL _Pragma("unroll")
#else
#define SPLAT_UNROLL
#endif

namespace splat {

// Not std::numeric_limits: its functions are not for devices.
constexpr float kInfinity = __builtin_huge_valf();

template <typename F>
SPLAT_HD F constant(float value) {
  return value;
}

SPLAT_HD float select(bool condition, float yes, float no) { return condition ? yes : no; }
SPLAT_HD float square_root(float x) { return sqrtf(x); }
SPLAT_HD float natural_log(float x) { return logf(x); }
SPLAT_HD float angle_of(float y, float x) { return atan2f(y, x); }
SPLAT_HD float round_up(float x) { return ceilf(x); }
SPLAT_HD float magnitude(float x) { return fabsf(x); }
SPLAT_HD float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
SPLAT_HD float exp_negative(float x) { return expf(-x); }

// Comparisons of packs give a mask of lanes, of floats a bool; both know & and |.
template <typename F>
using Mask = decltype(F{} < F{});

template <typename F>
SPLAT_HD F minimum(F a, F b) {
  return select(a < b, a, b);
}

template <typename F>
SPLAT_HD F maximum(F a, F b) {
  return select(a > b, a, b);
}

// False for NaN and for both infinities.
template <typename F>
SPLAT_HD Mask<F> is_finite(F x) {
  return x - x == constant<F>(0.0f);
}

template <typename F>
struct Vec2 {
  F x, y;
};

template <typename F>
struct Vec3 {
  F x, y, z;
};

template <typename F>
struct Quat {
  F w, x, y, z;
};

template <typename F>
struct Mat3 {
  F m[3][3];
};

// Two rows: what remains of a 3 x 3 transformation after a projection.
template <typename F>
struct Mat23 {
  Vec3<F> row0, row1;
};

template <typename F>
SPLAT_HD Vec3<F> operator+(Vec3<F> a, Vec3<F> b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}

template <typename F>
SPLAT_HD Vec3<F> operator-(Vec3<F> a, Vec3<F> b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

template <typename F>
SPLAT_HD Vec3<F> operator*(F s, Vec3<F> a) {
  return {s * a.x, s * a.y, s * a.z};
}

template <typename F>
SPLAT_HD F dot(Vec3<F> a, Vec3<F> b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}

template <typename F>
SPLAT_HD Vec3<F> cross(Vec3<F> a, Vec3<F> b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

// a M, a as a row.
template <typename F, typename G>
SPLAT_HD Vec3<F> times(Vec3<F> a, const G (&m)[3][3]) {
  return {a.x * m[0][0] + a.y * m[1][0] + a.z * m[2][0],
          a.x * m[0][1] + a.y * m[1][1] + a.z * m[2][1],
          a.x * m[0][2] + a.y * m[1][2] + a.z * m[2][2]};
}

// M a, a as a column.
template <typename F, typename G>
SPLAT_HD Vec3<F> times(const G (&m)[3][3], Vec3<F> a) {
  return {m[0][0] * a.x + m[0][1] * a.y + m[0][2] * a.z,
          m[1][0] * a.x + m[1][1] * a.y + m[1][2] * a.z,
          m[2][0] * a.x + m[2][1] * a.y + m[2][2] * a.z};
}

// d/da of a / |a|, transposed and applied to v; `unit` is a / |a|.
template <typename F>
SPLAT_HD Vec3<F> normalize_vjp(Vec3<F> unit, F inverse_length, Vec3<F> v) {
  return inverse_length * (v - dot(unit, v) * unit);
}

// The rotation of a quaternion of any length but 0 (length 0 gives NaN, which culls).
template <typename F>
SPLAT_HD Mat3<F> rotation_of(Quat<F> quat) {
  const F one = constant<F>(1.0f);
  const F two = constant<F>(2.0f);
  const F inverse =
      one / square_root(quat.w * quat.w + quat.x * quat.x + quat.y * quat.y + quat.z * quat.z);
  const F w = quat.w * inverse, x = quat.x * inverse, y = quat.y * inverse, z = quat.z * inverse;
  return {{{one - two * (y * y + z * z), two * (x * y - w * z), two * (x * z + w * y)},
           {two * (x * y + w * z), one - two * (x * x + z * z), two * (y * z - w * x)},
           {two * (x * z - w * y), two * (y * z + w * x), one - two * (x * x + y * y)}}};
}

// The gradient with respect to a quaternion of any length, from `v`, the one of its rotation.
template <typename F>
SPLAT_HD Quat<F> rotation_of_vjp(Quat<F> quat, const Mat3<F>& v) {
  const F two = constant<F>(2.0f);
  const F inverse = constant<F>(1.0f) / square_root(quat.w * quat.w + quat.x * quat.x +
                                                    quat.y * quat.y + quat.z * quat.z);
  const F w = quat.w * inverse, x = quat.x * inverse, y = quat.y * inverse, z = quat.z * inverse;
  const auto& m = v.m;
  const F vw = two * (x * (m[2][1] - m[1][2]) + y * (m[0][2] - m[2][0]) + z * (m[1][0] - m[0][1]));
  const F vx = two * (y * (m[0][1] + m[1][0]) + z * (m[0][2] + m[2][0]) + w * (m[2][1] - m[1][2]) -
                      two * x * (m[1][1] + m[2][2]));
  const F vy = two * (x * (m[0][1] + m[1][0]) + z * (m[1][2] + m[2][1]) + w * (m[0][2] - m[2][0]) -
                      two * y * (m[0][0] + m[2][2]));
  const F vz = two * (x * (m[0][2] + m[2][0]) + y * (m[1][2] + m[2][1]) + w * (m[1][0] - m[0][1]) -
                      two * z * (m[0][0] + m[1][1]));
  const F along = w * vw + x * vx + y * vy + z * vz;
  return {inverse * (vw - along * w), inverse * (vx - along * x), inverse * (vy - along * y),
          inverse * (vz - along * z)};
}

}  // namespace splat
