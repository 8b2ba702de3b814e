// Kernels with the mistakes that the emulator must find: its own test.
#pragma once

#include <cstdint>
#include <string>

namespace faults {

// Runs the kernel with this mistake on 64 threads; `out` has a number for each.
// Throws what the emulator found.
void run(const std::string &fault, int32_t *out);

} // namespace faults
