// A splat as it lies in a GPU's memory: loaded and stored 16 bytes at a time.
#pragma once

#include "../cpu/splat.h"

namespace splat::cuda {

struct alignas(16) PackedSplat : cpu::Splat {};
static_assert(sizeof(PackedSplat) == sizeof(cpu::Splat), "the same rows");

}  // namespace splat::cuda
