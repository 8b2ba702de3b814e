// Who is left out of a step, and the logits of the others, eight at a time.
#include <cstring>

#include "simd.h"
// simd.h stands before the shared maths (see linalg.h).
#include "../dropout.h"
#include "lanes.h"

namespace splat::cpu::SPLAT_ISA {

void drop_out(const DropOut& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t num = end - i < kLanes ? end - i : kLanes;
    F8 logits = constant<F8>(0.0f);
    std::memcpy(&logits, args.opacities + i, num * sizeof(float));
    F8 shown = raised_logit(logits, args.gain);
    for (int64_t k = 0; k < num; ++k) {
      if (is_left_out(args, i + k)) shown[k] = kLeftOut;
    }
    std::memcpy(args.shown + i, &shown, num * sizeof(float));
  }
}

}  // namespace splat::cpu::SPLAT_ISA
