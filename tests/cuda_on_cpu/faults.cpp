#include "faults.h"

#include <map>
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

// What a lane's neighbor reads is ordered by `wait` alone.
template <typename Wait>
void read_neighbor(int32_t *out, int distance, const Wait &wait) {
  __shared__ int32_t neighbors[kThreads];
  neighbors[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  wait();
  out[threadIdx.x] = neighbors[(threadIdx.x + distance) % kThreads];
}

// Lanes wait for each other in a shuffle, which promises nothing of memory.
void shuffle_as_barrier(int32_t *out) {
  read_neighbor(out, 0, [] { __syncwarp(); });
  read_neighbor(out, threadIdx.x % 32 == 31 ? -1 : 1,
                [] { __shfl_xor_sync(0xffffffffu, 1, 2); });
}

void ordered_warp(int32_t *out) {
  read_neighbor(out, threadIdx.x % 32 == 31 ? -1 : 1, [] { __syncwarp(); });
}

// A neighbor in another warp.
void warp_for_block(int32_t *out) {
  read_neighbor(out, 32, [] { __syncwarp(); });
}

void ordered_block(int32_t *out) {
  read_neighbor(out, 32, [] { __syncthreads(); });
}

// All blocks write to the same place.
void blocks_in_one_place(int32_t *out) {
  out[threadIdx.x] = static_cast<int32_t>(blockIdx.x);
}

void added_in_one_step(int32_t *out) { atomicAdd(out, 1); }

// Half of the threads look at a sum to which the others add.
void look_at_a_sum(int32_t *out) {
  if (threadIdx.x % 2 == 0)
    atomicAdd(out, 1);
  else
    out[threadIdx.x] = out[0];
}

// Counts in memory that nobody has set to 0.
void unwritten_shared(int32_t *out) {
  __shared__ int32_t count;
  atomicAdd(&count, 1);
  __syncthreads();
  out[threadIdx.x] = count;
}

using Kernel = void (*)(int32_t *);
const std::map<std::string, Kernel> kernels = {
    {"missing barrier", missing_barrier},
    {"divided warp", divided_warp},
    {"missing sync", missing_sync},
    {"part of a warp", part_of_a_warp},
    {"unwritten shared", unwritten_shared},
    {"shuffle as barrier", shuffle_as_barrier},
    {"ordered warp", ordered_warp},
    {"warp for block", warp_for_block},
    {"ordered block", ordered_block},
    {"blocks in one place", blocks_in_one_place},
    {"added in one step", added_in_one_step},
    {"look at a sum", look_at_a_sum},
};

} // namespace

void run(const std::string &fault, int32_t *out) {
  const auto found = kernels.find(fault);
  if (found == kernels.end())
    throw std::runtime_error("no such fault: " + fault);
  const Kernel kernel = found->second;
  const int64_t blocks =
      kernel == blocks_in_one_place || kernel == added_in_one_step ? 2 : 1;
  emulator::launch(fault.c_str(), blocks, kThreads, nullptr,
                   [&] { kernel(out); });
}

} // namespace faults
