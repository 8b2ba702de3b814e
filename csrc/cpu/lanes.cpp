#include "lanes.h"

#include <cstdlib>
#include <cstring>

namespace splat::cpu {
namespace {

#define SPLAT_LANES_OF(isa)                                                                 \
  Lanes {                                                                                   \
    #isa, isa::project_fwd, isa::project_bwd, isa::walk_tiles, isa::raster_fwd_tile,        \
        isa::raster_bwd_tile, isa::loss_block, isa::adam, isa::adam_rows, isa::settle_rows, \
        isa::drop_out                                                                       \
  }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// Processors before those with VBMI slow their clock down for wide registers.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi");
}
#endif

Lanes choose() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("SPLATSTUDIO_CPU");
  const auto is_wanted = [&](const char* name) {
    return wanted != nullptr && std::strcmp(wanted, name) == 0;
  };
  if (is_wanted("portable")) return SPLAT_LANES_OF(portable);
  if (!is_wanted("avx2") && has_avx512()) return SPLAT_LANES_OF(avx512);
  if (has_avx2()) return SPLAT_LANES_OF(avx2);
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
