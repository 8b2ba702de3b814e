// The blend rule: how much of a pixel one splat covers, and when the pixel is finished.
#pragma once

#include "gaussian.h"
#include "linalg.h"

namespace splat {

constexpr float kTransmittanceStop = 1e-4f;  // no splat may leave less than this

// Half the squared distance from the splat's center in standard deviations; (dx, dy) = center -
// pixel, (half_a, b, half_c) the conic with its diagonal halved. Forward and backward must agree to
// the bit on who is visible, so both call this, with fused steps spelled out.
template <typename F>
SPLAT_HD F falloff(F half_a, F b, F half_c, F dx, F dy) {
  return multiply_add(multiply_add(half_a, dx, b * dy), dx, half_c * dy * dy);
}

template <typename F>
struct Coverage {
  F gaussian;  // exp(-sigma)
  F alpha;     // min(max_alpha, opacity * gaussian)
  F next;      // transmittance behind this splat, had it been added
  Mask<F> visible, added, clamped;
};

// `transmittance` is negative for a finished pixel: then nothing is added any more.
template <typename F>
SPLAT_HD Coverage<F> cover(F sigma, F opacity, F max_alpha, F transmittance) {
  Coverage<F> s;
  s.gaussian = exp_negative(sigma);
  const F raw = opacity * s.gaussian;
  s.clamped = raw > max_alpha;
  s.alpha = minimum(raw, max_alpha);
  s.next = transmittance - transmittance * s.alpha;
  s.visible = (sigma >= constant<F>(0.0f)) & (s.alpha >= constant<F>(kAlphaThreshold));
  s.added = s.visible & (s.next > constant<F>(kTransmittanceStop));
  return s;
}

// The transmittance after the splat. The first splat that would go below the stop is left out and
// finishes the pixel: its sign turns, its value stays for the output.
template <typename F>
SPLAT_HD F advance(const Coverage<F>& s, F transmittance) {
  return select(s.added, s.next, select(s.visible, -magnitude(transmittance), transmittance));
}

}  // namespace splat
