#include "faults.h"

#include <stdexcept>

#include "cuda_runtime.h"

namespace faults {
namespace {

constexpr int kThreads = 64;

// Half of the threads do not come to the barrier.
void missing_barrier(int32_t *out) {
  if (threadIdx.x < kThreads / 2)
    __syncthreads();
  out[threadIdx.x] = 1;
}

// The lanes of a warp call different functions.
void divided_warp(int32_t *out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 2);
  } else {
    out[threadIdx.x] = static_cast<int32_t>(__ballot_sync(0xffffffffu, true));
  }
}

// Every thread reads what its neighbor has written, or not yet.
void missing_sync(int32_t *out) {
  __shared__ int32_t values[kThreads];
  values[threadIdx.x] = -1;
  __syncthreads();
  values[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
}

// The lanes below the middle of a warp take part in a function without the
// others.
void part_of_a_warp(int32_t *out) {
  const unsigned lower = 0xffffu;
  if (threadIdx.x % 32 < 16)
    out[threadIdx.x] = __shfl_xor_sync(lower, 1, 2);
}

// Counts in memory that nobody has set to 0.
void unwritten_shared(int32_t *out) {
  __shared__ int32_t count;
  atomicAdd(&count, 1);
  __syncthreads();
  out[threadIdx.x] = count;
}

} // namespace

void run(const std::string &fault, int32_t *out) {
  void (*kernel)(int32_t *) = fault == "missing barrier"    ? missing_barrier
                              : fault == "divided warp"     ? divided_warp
                              : fault == "missing sync"     ? missing_sync
                              : fault == "part of a warp"   ? part_of_a_warp
                              : fault == "unwritten shared" ? unwritten_shared
                                                            : nullptr;
  if (kernel == nullptr)
    throw std::runtime_error("no such fault: " + fault);
  emulator::launch(fault.c_str(), 1, kThreads, nullptr, [&] { kernel(out); });
}

} // namespace faults
