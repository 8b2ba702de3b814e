// The inner loops of the viewer's modes, for each set of instructions (see lanes.h).
#pragma once

#include "../modes.h"

namespace splat::cpu {

#define SPLAT_DECLARE_MODES(isa)                               \
  namespace isa {                                              \
  void shapes(const Shapes& args, int64_t begin, int64_t end); \
  void median_tile(const RasterMedian& args, int64_t tile);    \
  void solid_tile(const RasterSolid& args, int64_t tile);      \
  void bytes(const ToBytes& args, int64_t begin, int64_t end); \
  }

SPLAT_DECLARE_MODES(portable)
#if defined(__x86_64__)
SPLAT_DECLARE_MODES(avx2)
SPLAT_DECLARE_MODES(avx512)
#endif
#undef SPLAT_DECLARE_MODES

}  // namespace splat::cpu
