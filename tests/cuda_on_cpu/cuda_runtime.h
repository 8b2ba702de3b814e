// The part of CUDA's language and runtime that csrc/cuda uses, on the emulator.
#pragma once

#include <cmath>

#include "emulator.h"
#include "races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
// One block runs at a time, so what its threads share may be static. It lies
// together, for the emulator to spoil what the block before has left there.
#define __shared__ static __attribute__((section("emulated_shared")))

#define threadIdx (emulator::indices().thread)
#define blockIdx (emulator::indices().block)
#define blockDim (emulator::indices().block_dim)
#define gridDim (emulator::indices().grid_dim)

using cudaStream_t = emulator::Stream *;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};

inline const char *cudaGetErrorString(cudaError_t) { return "out of memory"; }
inline cudaError_t cudaGetLastError() { // of all else launch throws instead
  return emulator::lacked_memory() ? cudaErrorMemoryAllocation : cudaSuccess;
}

inline cudaError_t cudaGetDevice(int *device) {
  *device = emulator::current_device();
  return cudaSuccess;
}

inline cudaError_t cudaSetDevice(int device) {
  emulator::set_current_device(device);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   cudaMemcpyKind kind, cudaStream_t) {
  // To memory that is not pinned, as all of the host's here, a copy waits.
  if (kind != cudaMemcpyDeviceToDevice)
    emulator::count_wait();
  emulator::copy(to, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulator::count_wait();
  return cudaSuccess;
}

inline void __syncthreads() { emulator::block_barrier(0); }
inline int __syncthreads_count(int value) {
  return emulator::block_barrier(value != 0 ? 1 : 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::check_mask("__syncwarp", mask);
  emulator::warp_barrier();
}

template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  emulator::check_mask("__shfl_up_sync", mask);
  const int lane = emulator::lane(), source = lane - static_cast<int>(delta);
  return emulator::shuffle("__shfl_up_sync", value, source < 0 ? lane : source);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  emulator::check_mask("__shfl_down_sync", mask);
  const int lane = emulator::lane(), source = lane + static_cast<int>(delta);
  return emulator::shuffle("__shfl_down_sync", value,
                           source > 31 ? lane : source);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
  emulator::check_mask("__shfl_xor_sync", mask);
  return emulator::shuffle("__shfl_xor_sync", value, emulator::lane() ^ bits);
}

template <typename T> T __shfl_sync(unsigned mask, T value, int source) {
  emulator::check_mask("__shfl_sync", mask);
  return emulator::shuffle("__shfl_sync", value, source & 31);
}

inline unsigned __ballot_sync(unsigned mask, bool value) {
  emulator::check_mask("__ballot_sync", mask);
  return emulator::warp_ballot("__ballot_sync", value);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// Threads of one block never run at once, so plain arithmetic is atomic here.
#define SPLAT_ATOMIC __attribute__((noinline, no_sanitize("thread")))
template <typename T> SPLAT_ATOMIC T atomicAdd(T *address, T value) {
  races::note_atomic(address, sizeof(T));
  const T before = *address;
  *address = before + value;
  return before;
}

template <typename T> SPLAT_ATOMIC T atomicMax(T *address, T value) {
  races::note_atomic(address, sizeof(T));
  const T before = *address;
  if (value > before)
    *address = value;
  return before;
}
