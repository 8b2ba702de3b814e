// Eight floats as one value: the CPU's scalar type for the shared maths (see linalg.h).
//
// Written with the compilers' vector extensions, so that the same code becomes AVX2 or AVX-512 in
// one translation unit and whatever the portable target has in another. Include it before the
// maths.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define SPLAT_LANES inline __attribute__((always_inline))

namespace splat {

constexpr int kLanes = 8;
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));

template <typename F>
inline F constant(float value);

template <>
inline __attribute__((always_inline)) F8 constant<F8>(float value) {
  return F8{value, value, value, value, value, value, value, value};
}

SPLAT_LANES F8 load8(const float* p) {
  F8 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

SPLAT_LANES void store8(float* p, F8 x) { std::memcpy(p, &x, sizeof(x)); }

// Lane i is p[i * stride].
SPLAT_LANES F8 gather8(const float* p, int64_t stride) {
  return F8{p[0],          p[stride],     p[2 * stride], p[3 * stride],
            p[4 * stride], p[5 * stride], p[6 * stride], p[7 * stride]};
}

SPLAT_LANES F8 select(I8 mask, F8 yes, F8 no) { return mask ? yes : no; }

SPLAT_LANES F8 magnitude(F8 x) { return (F8)((I8)x & 0x7fffffff); }
SPLAT_LANES F8 negative_magnitude(F8 x) { return (F8)((U8)x | 0x80000000u); }

// x where the mask is set, 0 elsewhere (also for NaN).
SPLAT_LANES F8 keep(I8 mask, F8 x) { return (F8)((I8)x & mask); }

// One bit a lane, lane 0 lowest.
SPLAT_LANES uint32_t lane_bits(I8 mask) {
#if defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
#endif
}

// The second operand where one of the two is NaN, as the machine's instruction has it.
#if defined(__AVX2__)
SPLAT_LANES F8 minimum(F8 a, F8 b) { return (F8)_mm256_min_ps((__m256)a, (__m256)b); }
SPLAT_LANES F8 maximum(F8 a, F8 b) { return (F8)_mm256_max_ps((__m256)a, (__m256)b); }
#else
SPLAT_LANES F8 minimum(F8 a, F8 b) { return a < b ? a : b; }
SPLAT_LANES F8 maximum(F8 a, F8 b) { return a > b ? a : b; }
#endif

#if defined(__AVX2__)
SPLAT_LANES F8 square_root(F8 x) { return (F8)_mm256_sqrt_ps((__m256)x); }
SPLAT_LANES F8 round_up(F8 x) { return (F8)_mm256_ceil_ps((__m256)x); }
SPLAT_LANES F8 round_nearest(F8 x) {
  return (F8)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SPLAT_LANES I8 to_int(F8 x) { return (I8)_mm256_cvtps_epi32((__m256)x); }
SPLAT_LANES F8 multiply_add(F8 a, F8 b, F8 c) {
  return (F8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
SPLAT_LANES F8 square_root(F8 x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
SPLAT_LANES F8 round_up(F8 x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::ceil(x[i]);
  return x;
}
// Right for |x| < 2^22: the addition leaves no bits behind the point.
SPLAT_LANES F8 round_nearest(F8 x) {
  const F8 shift = constant<F8>(12582912.0f);
  return (x + shift) - shift;
}
SPLAT_LANES I8 to_int(F8 x) { return __builtin_convertvector(x, I8); }
SPLAT_LANES F8 multiply_add(F8 a, F8 b, F8 c) { return a * b + c; }
#endif

#if defined(__AVX512F__)
// Sixteen floats, for what gains by them; comparisons give a bit a lane.
constexpr int kWideLanes = 16;
typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef __mmask16 M16;

template <>
inline __attribute__((always_inline)) F16 constant<F16>(float value) {
  return (F16)_mm512_set1_ps(value);
}

SPLAT_LANES F16 load16(const float* p) { return (F16)_mm512_loadu_ps(p); }
SPLAT_LANES void store16(float* p, F16 x) { _mm512_storeu_ps(p, (__m512)x); }
SPLAT_LANES F16 multiply_add(F16 a, F16 b, F16 c) {
  return (F16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
SPLAT_LANES F16 square_root(F16 x) { return (F16)_mm512_sqrt_ps((__m512)x); }
SPLAT_LANES F16 minimum(F16 a, F16 b) { return (F16)_mm512_min_ps((__m512)a, (__m512)b); }
SPLAT_LANES F16 magnitude(F16 x) { return (F16)((I16)x & 0x7fffffff); }
SPLAT_LANES F16 negative_magnitude(F16 x) { return (F16)((U16)x | 0x80000000u); }
SPLAT_LANES F16 select(M16 mask, F16 yes, F16 no) {
  return (F16)_mm512_mask_mov_ps((__m512)no, mask, (__m512)yes);
}
SPLAT_LANES F16 keep(M16 mask, F16 x) { return (F16)_mm512_maskz_mov_ps(mask, (__m512)x); }
SPLAT_LANES uint32_t lane_bits(M16 mask) { return mask; }
SPLAT_LANES M16 at_least(F16 a, F16 b, M16 among) {
  return _mm512_mask_cmp_ps_mask(among, (__m512)a, (__m512)b, _CMP_GE_OQ);
}
SPLAT_LANES M16 at_most(F16 a, F16 b, M16 among) {
  return _mm512_mask_cmp_ps_mask(among, (__m512)a, (__m512)b, _CMP_LE_OQ);
}
SPLAT_LANES M16 above(F16 a, F16 b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }

SPLAT_LANES F8 low_half(F16 x) { return (F8)_mm512_castps512_ps256((__m512)x); }
SPLAT_LANES F8 high_half(F16 x) { return (F8)_mm512_extractf32x8_ps((__m512)x, 1); }
SPLAT_LANES F16 joined(F8 low, F8 high) {
  return (F16)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)low), (__m256)high, 1);
}
#endif

// Comparisons by name, for what is written for eight and for sixteen lanes; false but in `among`.
struct AllLanes {};
SPLAT_LANES I8 at_least(F8 a, F8 b, AllLanes) { return a >= b; }
SPLAT_LANES I8 at_least(F8 a, F8 b, I8 among) { return among & (a >= b); }
SPLAT_LANES I8 at_most(F8 a, F8 b, AllLanes) { return a <= b; }
SPLAT_LANES I8 at_most(F8 a, F8 b, I8 among) { return among & (a <= b); }
SPLAT_LANES I8 above(F8 a, F8 b) { return a > b; }

template <typename F>
using LaneMask = decltype(above(F{}, F{}));
template <typename F>
constexpr int kLanesOf = sizeof(F) / sizeof(float);

// x as it is, which the compiler fuses with no other operation.
SPLAT_LANES F8 rounded(F8 x) {
#if defined(__AVX2__)
  asm("" : "+x"(x));
#endif
  return x;
}

SPLAT_LANES F8 natural_log(F8 x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::log(x[i]);
  return x;
}

SPLAT_LANES F8 angle_of(F8 y, F8 x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::atan2(y[i], x[i]);
  return x;
}

// 2^f for f in [-0.5, 0.5], a minimax polynomial.
template <typename F>
SPLAT_LANES F power_of_2_near_0(F f) {
  F p = constant<F>(1.326472689e-3f);
  p = multiply_add(p, f, constant<F>(9.671512910e-3f));
  p = multiply_add(p, f, constant<F>(5.550733747e-2f));
  p = multiply_add(p, f, constant<F>(2.402224208e-1f));
  p = multiply_add(p, f, constant<F>(6.931469776e-1f));
  return multiply_add(p, f, constant<F>(1.0f));
}

// exp(-x) to 2e-7 relative for -87 < x < 87, above 87 a value below 1e-37; anything for x < -87
// and NaN.
// 2^t = 2^n 2^f, n the nearest whole number.
SPLAT_LANES F8 exp_negative(F8 x) {
  const F8 t = maximum(x * constant<F8>(-1.44269504f), constant<F8>(-125.0f));
  const F8 n = round_nearest(t);
  return (F8)((U8)power_of_2_near_0(t - n) + ((U8)to_int(n) << 23));
}

// 2^x to 2e-7 relative for -126 < x < 127, anything elsewhere. As exp_negative, but adding 1.5 *
// 2^23 both rounds to the nearest whole number and leaves that in the lowest bits.
template <typename F>
SPLAT_LANES F power_of_2(F x) {
  typedef uint32_t U __attribute__((vector_size(sizeof(F))));
  const F shift = constant<F>(12582912.0f);
  const F shifted = x + shift;
  const F f = x - (shifted - shift);
  return (F)((U)power_of_2_near_0(f) + ((U)shifted << 23));
}

SPLAT_LANES float sum_lanes(F8 x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

#if defined(__AVX2__)
// Lane i of the result is the sum of v[i]'s lanes.
SPLAT_LANES F8 sum_lanes_of_8(const F8* v) {
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]);
  const __m256 cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const __m256 ef = _mm256_hadd_ps((__m256)v[4], (__m256)v[5]);
  const __m256 gh = _mm256_hadd_ps((__m256)v[6], (__m256)v[7]);
  const __m256 abcd = _mm256_hadd_ps(ab, cd), efgh = _mm256_hadd_ps(ef, gh);
  const __m256 low = _mm256_permute2f128_ps(abcd, efgh, 0x20);
  const __m256 high = _mm256_permute2f128_ps(abcd, efgh, 0x31);
  return (F8)_mm256_add_ps(low, high);
}
#else
SPLAT_LANES F8 sum_lanes_of_8(const F8* v) {
  F8 sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = sum_lanes(v[i]);
  return sums;
}
#endif

// The columns of eight rows that lie one behind the other, from memory and back.
#if defined(__AVX2__)
SPLAT_LANES __m256 load_halves(const float* low, const float* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

SPLAT_LANES void store_halves(float* low, float* high, __m256 x) {
  _mm_storeu_ps(low, _mm256_castps256_ps128(x));
  _mm_storeu_ps(high, _mm256_extractf128_ps(x, 1));
}

SPLAT_LANES void load_columns_2(const float* p, F8* columns) {
  const __m256 a = load_halves(p, p + 8), b = load_halves(p + 4, p + 12);
  columns[0] = (F8)_mm256_shuffle_ps(a, b, 0x88);
  columns[1] = (F8)_mm256_shuffle_ps(a, b, 0xdd);
}

SPLAT_LANES void store_columns_2(float* p, F8 x, F8 y) {
  store_halves(p, p + 8, _mm256_unpacklo_ps((__m256)x, (__m256)y));
  store_halves(p + 4, p + 12, _mm256_unpackhi_ps((__m256)x, (__m256)y));
}

SPLAT_LANES void load_columns_3(const float* p, F8* columns) {
  const __m256 a = load_halves(p, p + 12), b = load_halves(p + 4, p + 16);
  const __m256 c = load_halves(p + 8, p + 20);
  const __m256 xy = _mm256_shuffle_ps(b, c, 0x9e), yz = _mm256_shuffle_ps(a, b, 0x49);
  columns[0] = (F8)_mm256_shuffle_ps(a, xy, 0x8c);
  columns[1] = (F8)_mm256_shuffle_ps(yz, xy, 0xd8);
  columns[2] = (F8)_mm256_shuffle_ps(yz, c, 0xcd);
}

SPLAT_LANES void store_columns_3(float* p, F8 x, F8 y, F8 z) {
  const __m256 xy = _mm256_shuffle_ps((__m256)x, (__m256)y, 0x88);
  const __m256 yz = _mm256_shuffle_ps((__m256)y, (__m256)z, 0xdd);
  const __m256 zx = _mm256_shuffle_ps((__m256)z, (__m256)x, 0xd8);
  store_halves(p, p + 12, _mm256_shuffle_ps(xy, zx, 0x88));
  store_halves(p + 4, p + 16, _mm256_shuffle_ps(yz, xy, 0xd8));
  store_halves(p + 8, p + 20, _mm256_shuffle_ps(zx, yz, 0xdd));
}

SPLAT_LANES void transpose_quarters(__m256* rows) {
  const __m256 a = _mm256_unpacklo_ps(rows[0], rows[1]), b = _mm256_unpackhi_ps(rows[0], rows[1]);
  const __m256 c = _mm256_unpacklo_ps(rows[2], rows[3]), d = _mm256_unpackhi_ps(rows[2], rows[3]);
  rows[0] = _mm256_shuffle_ps(a, c, 0x44);
  rows[1] = _mm256_shuffle_ps(a, c, 0xee);
  rows[2] = _mm256_shuffle_ps(b, d, 0x44);
  rows[3] = _mm256_shuffle_ps(b, d, 0xee);
}

SPLAT_LANES void load_columns_4(const float* p, F8* columns) {
  __m256 rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = load_halves(p + 4 * i, p + 4 * i + 16);
  transpose_quarters(rows);
  for (int i = 0; i < 4; ++i) columns[i] = (F8)rows[i];
}

SPLAT_LANES void store_columns_4(float* p, F8 w, F8 x, F8 y, F8 z) {
  __m256 rows[4] = {(__m256)w, (__m256)x, (__m256)y, (__m256)z};
  transpose_quarters(rows);
  for (int i = 0; i < 4; ++i) store_halves(p + 4 * i, p + 4 * i + 16, rows[i]);
}

// The same of eight columns, of rows that lie anywhere.
SPLAT_LANES void load_columns_8(const float* const* rows, int64_t at, F8* columns) {
  for (int half = 0; half < 8; half += 4) {
    __m256 quarters[4];
    for (int i = 0; i < 4; ++i) {
      quarters[i] = load_halves(rows[i] + at + half, rows[i + 4] + at + half);
    }
    transpose_quarters(quarters);
    for (int i = 0; i < 4; ++i) columns[half + i] = (F8)quarters[i];
  }
}

SPLAT_LANES void store_columns_8(float* const* rows, int64_t at, const F8* columns) {
  for (int half = 0; half < 8; half += 4) {
    __m256 quarters[4];
    for (int i = 0; i < 4; ++i) quarters[i] = (__m256)columns[half + i];
    transpose_quarters(quarters);
    for (int i = 0; i < 4; ++i) {
      store_halves(rows[i] + at + half, rows[i + 4] + at + half, quarters[i]);
    }
  }
}
#else
SPLAT_LANES void load_columns(const float* p, int num, F8* columns) {
  for (int k = 0; k < num; ++k) columns[k] = gather8(p + k, num);
}

SPLAT_LANES void store_column(float* p, int stride, F8 x) {
  for (int i = 0; i < kLanes; ++i) p[i * stride] = x[i];
}

SPLAT_LANES void load_columns_2(const float* p, F8* columns) { load_columns(p, 2, columns); }
SPLAT_LANES void load_columns_3(const float* p, F8* columns) { load_columns(p, 3, columns); }
SPLAT_LANES void load_columns_4(const float* p, F8* columns) { load_columns(p, 4, columns); }

SPLAT_LANES void store_columns_2(float* p, F8 x, F8 y) {
  store_column(p, 2, x);
  store_column(p + 1, 2, y);
}

SPLAT_LANES void store_columns_3(float* p, F8 x, F8 y, F8 z) {
  store_column(p, 3, x);
  store_column(p + 1, 3, y);
  store_column(p + 2, 3, z);
}

SPLAT_LANES void store_columns_4(float* p, F8 w, F8 x, F8 y, F8 z) {
  for (int i = 0; i < kLanes; ++i) {
    p[4 * i] = w[i];
    p[4 * i + 1] = x[i];
    p[4 * i + 2] = y[i];
    p[4 * i + 3] = z[i];
  }
}

SPLAT_LANES void load_columns_8(const float* const* rows, int64_t at, F8* columns) {
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < kLanes; ++i) columns[k][i] = rows[i][at + k];
  }
}

SPLAT_LANES void store_columns_8(float* const* rows, int64_t at, const F8* columns) {
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 8; ++k) rows[i][at + k] = columns[k][i];
  }
}
#endif

}  // namespace splat
