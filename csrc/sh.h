// Real spherical harmonics of degree 0 to 3 (Condon-Shortley sign, order l * l + l + m, as in the
// usual f_dc / f_rest PLY files), and the gradient with respect to the direction.
#pragma once

#include "linalg.h"

namespace splat {

constexpr int kMaxCoefficients = 16;

SPLAT_HD int num_coefficients(int degree) { return (degree + 1) * (degree + 1); }

constexpr float kSh0 = 0.282094791773878f;
constexpr float kSh1 = 0.488602511902920f;
constexpr float kSh2a = 1.092548430592079f, kSh2b = 0.315391565252520f, kSh2c = 0.546274215296040f;
constexpr float kSh3a = 0.590043589926644f, kSh3b = 2.890611442640554f, kSh3c = 0.457045799464466f;
constexpr float kSh3d = 0.373176332590115f, kSh3e = 1.445305721320277f;

// Writes num_coefficients(degree) values for the unit direction d.
template <typename F>
SPLAT_HD void sh_basis(int degree, Vec3<F> d, F* basis) {
  const auto k = [](float value) { return constant<F>(value); };
  const F x = d.x, y = d.y, z = d.z;
  basis[0] = k(kSh0);
  if (degree < 1) return;
  basis[1] = k(-kSh1) * y;
  basis[2] = k(kSh1) * z;
  basis[3] = k(-kSh1) * x;
  if (degree < 2) return;
  const F xx = x * x, yy = y * y, zz = z * z;
  basis[4] = k(kSh2a) * x * y;
  basis[5] = k(-kSh2a) * y * z;
  basis[6] = k(kSh2b) * (k(3.0f) * zz - k(1.0f));
  basis[7] = k(-kSh2a) * x * z;
  basis[8] = k(kSh2c) * (xx - yy);
  if (degree < 3) return;
  basis[9] = k(-kSh3a) * y * (k(3.0f) * xx - yy);
  basis[10] = k(kSh3b) * x * y * z;
  basis[11] = k(-kSh3c) * y * (k(5.0f) * zz - k(1.0f));
  basis[12] = k(kSh3d) * z * (k(5.0f) * zz - k(3.0f));
  basis[13] = k(-kSh3c) * x * (k(5.0f) * zz - k(1.0f));
  basis[14] = k(kSh3e) * z * (xx - yy);
  basis[15] = k(-kSh3a) * x * (xx - k(3.0f) * yy);
}

// The gradient with respect to d (before its normalization), from v, the one of the basis.
template <typename F>
SPLAT_HD Vec3<F> sh_basis_vjp(int degree, Vec3<F> d, const F* v) {
  const auto k = [](float value) { return constant<F>(value); };
  const F x = d.x, y = d.y, z = d.z;
  Vec3<F> g = {k(0.0f), k(0.0f), k(0.0f)};
  if (degree < 1) return g;
  g = {k(-kSh1) * v[3], k(-kSh1) * v[1], k(kSh1) * v[2]};
  if (degree < 2) return g;
  g = g + Vec3<F>{k(kSh2a) * (y * v[4] - z * v[7]) + k(2.0f * kSh2c) * x * v[8],
                  k(kSh2a) * (x * v[4] - z * v[5]) - k(2.0f * kSh2c) * y * v[8],
                  k(-kSh2a) * (y * v[5] + x * v[7]) + k(6.0f * kSh2b) * z * v[6]};
  if (degree < 3) return g;
  const F xx = x * x, yy = y * y, zz = z * z;
  const F five_zz = k(5.0f) * zz - k(1.0f);
  return g +
         Vec3<F>{k(-6.0f * kSh3a) * x * y * v[9] + k(kSh3b) * y * z * v[10] -
                     k(kSh3c) * five_zz * v[13] + k(2.0f * kSh3e) * x * z * v[14] -
                     k(3.0f * kSh3a) * (xx - yy) * v[15],
                 k(-3.0f * kSh3a) * (xx - yy) * v[9] + k(kSh3b) * x * z * v[10] -
                     k(kSh3c) * five_zz * v[11] - k(2.0f * kSh3e) * y * z * v[14] +
                     k(6.0f * kSh3a) * x * y * v[15],
                 k(kSh3b) * x * y * v[10] - k(10.0f * kSh3c) * z * (y * v[11] + x * v[13]) +
                     k(kSh3d) * (k(15.0f) * zz - k(3.0f)) * v[12] + k(kSh3e) * (xx - yy) * v[14]};
}

}  // namespace splat
