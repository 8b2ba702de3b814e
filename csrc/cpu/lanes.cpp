#include "lanes.h"

#include <cstdlib>
#include <cstring>

namespace splat::cpu {
namespace {

#define SPLAT_LANES_OF(isa)                                                                \
  Lanes {                                                                                  \
    #isa, isa::project_fwd, isa::project_bwd, isa::walk_tiles, isa::raster_fwd_tile,       \
        isa::raster_bwd_tile, isa::loss_block, isa::adam, isa::adam_rows, isa::settle_rows \
  }

Lanes choose() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("SPLATSTUDIO_CPU");
  const bool portable_wanted = wanted != nullptr && std::strcmp(wanted, "portable") == 0;
  if (!portable_wanted && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return SPLAT_LANES_OF(avx2);
  }
#endif
  return SPLAT_LANES_OF(portable);
}

}  // namespace

const Lanes& lanes() {
  static const Lanes chosen = choose();
  return chosen;
}

const char* instruction_set() { return lanes().name; }

}  // namespace splat::cpu
