// A visible splat as the CPU's inner loops read it, and where its ellipse meets rows of pixels.
//
// With e = pixel - mean the pixels of alpha >= 1/255 are {a ex^2 + 2 b ex ey + c ey^2 <= k},
// k = 2 ln(255 opacity). On the line ey the ellipse spans ex = -slope ey -+ sqrt(w2 - v2 ey^2) with
// slope = b/a, w2 = k/a, v2 = (ac - b^2)/a^2.
#pragma once

#include <cstdint>

namespace splat::cpu {

struct Splat {
  float x, y;               // px
  float half_a, b, half_c;  // the conic, its diagonal halved
  float opacity;
  float red, green, blue, depth;
  float slope, w2, v2;
  float sigma_limit;         // k / 2: beyond it alpha < 1/255
  float radius_x, radius_y;  // px, the box around the ellipse
};
static_assert(sizeof(Splat) == 64, "one cache line");

// What rounding may move: k grows by this, so that no pixel that the blend rule takes is left out.
constexpr float kExtentMargin = 0.02f;
constexpr float kPixelMargin = 0.01f;  // px

}  // namespace splat::cpu
