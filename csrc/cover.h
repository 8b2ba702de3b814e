// Which tiles an ellipse covers: those that hold the center of a pixel of alpha >= 1/255.
//
// With e = pixel - mean these pixels are {a ex^2 + 2 b ex ey + c ey^2 <= k}, k = 2 ln(255 opacity).
// On the line ey the ellipse spans ex = -slope ey -+ sqrt(w2 - v2 ey^2) with slope = b/a, w2 = k/a,
// v2 = (ac - b^2)/a^2; within a band of rows the span is widest at the ellipse's own extreme.
#pragma once

#include "cpu/splat.h"
#include "gaussian.h"
#include "kernels.h"

namespace splat {

SPLAT_HD bool is_visible(const ProjectedArrays& p, int64_t i) {
  const float sum = p.means2d[2 * i] + p.means2d[2 * i + 1] + p.conics[3 * i] +
                    p.conics[3 * i + 1] + p.conics[3 * i + 2] + p.depths[i] + p.opacities[i] +
                    p.colors[3 * i] + p.colors[3 * i + 1] + p.colors[3 * i + 2];
  return p.radii[2 * i] > 0 && p.radii[2 * i + 1] > 0 && p.opacities[i] >= kAlphaThreshold &&
         is_finite(sum);
}

// `determinant` returns a c - b b more exactly than floats alone would.
template <typename Determinant>
SPLAT_HD cpu::Splat pack_splat(const ProjectedArrays& p, int64_t i,
                               const Determinant& determinant) {
  const float a = p.conics[3 * i], b = p.conics[3 * i + 1], c = p.conics[3 * i + 2];
  const float opacity = p.opacities[i];
  const float extent = 2.0f * natural_log(opacity / kAlphaThreshold) + cpu::kExtentMargin;
  const auto det = determinant(a, b, c);
  using Real = decltype(determinant(a, b, c));
  cpu::Splat s = {};
  s.x = p.means2d[2 * i];
  s.y = p.means2d[2 * i + 1];
  s.half_a = 0.5f * a;
  s.b = b;
  s.half_c = 0.5f * c;
  s.opacity = opacity;
  s.red = p.colors[3 * i];
  s.green = p.colors[3 * i + 1];
  s.blue = p.colors[3 * i + 2];
  s.depth = p.depths[i];
  s.sigma_limit = 0.5f * extent;
  s.radius_x = static_cast<float>(p.radii[2 * i]);
  s.radius_y = static_cast<float>(p.radii[2 * i + 1]);
  if (det > static_cast<Real>(1e-6) * static_cast<Real>(a) * c && a > 0) {
    s.slope = b / a;
    s.w2 = extent / a;
    s.v2 = static_cast<float>(det / (static_cast<Real>(a) * a));
  } else {
    // Rounding has eaten the determinant (a needle of thousands of pixels): spans would be
    // arbitrary, so every row is taken whole, within the box.
    s.w2 = kInfinity;
  }
  return s;
}

SPLAT_HD float clamped(float x, float low, float high) { return minimum(maximum(x, low), high); }

struct TileRange {
  int begin, end;
};

// An ellipse's rows of tiles.
struct CoveredRows {
  TileRange rows;
  float half_height;  // px
  float extreme;      // the line on which the ellipse reaches farthest right, px from its center
};

template <typename Splat>
SPLAT_HD CoveredRows covered_rows(const Splat& s, const ImageGrid& grid) {
  const float height = static_cast<float>(grid.height);
  // NaN (0 / 0 of a whole-row splat) loses against the radius.
  const float half_height = minimum(square_root(s.w2 / s.v2) + cpu::kPixelMargin, s.radius_y);
  const float low = clamped(s.y - half_height - 0.5f, -1.0f, height);
  const float high = clamped(s.y + half_height - 0.5f, -1.0f, height - 1.0f);
  const int row_begin = static_cast<int>(maximum(round_up(low), 0.0f));
  const int row_end = static_cast<int>(floorf(high)) + 1;
  if (row_begin >= row_end) return {{0, 0}, 0.0f, 0.0f};
  const float extreme =
      s.v2 > 0 ? -s.slope * square_root(s.w2 / ((s.v2 + s.slope * s.slope) * s.v2)) : 0.0f;
  return {{row_begin / kTileSize, (row_end - 1) / kTileSize + 1}, half_height, extreme};
}

// The columns of tiles in row `ty`; empty where begin >= end.
template <typename Splat>
SPLAT_HD TileRange covered_columns(const Splat& s, const ImageGrid& grid,
                                   const CoveredRows& covered, int ty) {
  const float width = static_cast<float>(grid.width);
  const float row = static_cast<float>(ty * kTileSize);
  const float top = maximum(row + 0.5f - s.y, -covered.half_height);
  const float bottom = minimum(row + (kTileSize - 0.5f) - s.y, covered.half_height);
  const float at_right = clamped(covered.extreme, top, maximum(top, bottom));
  const float at_left = clamped(-covered.extreme, top, maximum(top, bottom));
  float right = s.radius_x, left = -s.radius_x;
  if (s.v2 > 0) {
    const float right2 = s.w2 - s.v2 * at_right * at_right;
    const float left2 = s.w2 - s.v2 * at_left * at_left;
    right =
        minimum(square_root(maximum(right2, 0.0f)) - s.slope * at_right + cpu::kPixelMargin, right);
    left =
        maximum(-square_root(maximum(left2, 0.0f)) - s.slope * at_left - cpu::kPixelMargin, left);
  }
  const float first = clamped(s.x + left - 0.5f, -1.0f, width);
  const float last = clamped(s.x + right - 0.5f, -1.0f, width - 1.0f);
  const int column_begin = static_cast<int>(maximum(round_up(first), 0.0f));
  const int column_last = static_cast<int>(floorf(last));
  if (column_begin > column_last) return {0, 0};
  return {column_begin / kTileSize, column_last / kTileSize + 1};
}

// Ascending with the depth, also below 0.
SPLAT_HD uint32_t depth_key(float depth) {
  union {
    float value;
    uint32_t bits;
  } pun = {depth};
  return (pun.bits & 0x80000000u) != 0 ? ~pun.bits : pun.bits | 0x80000000u;
}

// A wall that is seen squarely may be all of one depth, and keeps the order of the memory.
constexpr int kLongestTie = 32;

// Orders splats of one depth, `tied` [num], by their places in the picture: y, then x. A model is
// drawn alike in whatever order its rows lie, on one rank or on several. `mean_of` returns where
// the two coordinates of an item are.
template <typename Item, typename MeanOf>
SPLAT_HD void order_tied(Item* tied, int num, const MeanOf& mean_of) {
  for (int last = 1; last < num; ++last) {
    const Item moving = tied[last];
    const float* mean = mean_of(moving);
    int at = last;
    for (; at > 0; --at) {
      const float* before = mean_of(tied[at - 1]);
      if (!(mean[1] < before[1] || (mean[1] == before[1] && mean[0] < before[0]))) break;
      tied[at] = tied[at - 1];
    }
    tied[at] = moving;
  }
}

}  // namespace splat
