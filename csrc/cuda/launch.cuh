// Starting a kernel and saying what failed. Nothing here knows torch: the binding has made the
// device current and passes its stream.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace splat::cuda {

constexpr int kThreads = 256;  // a block; also the pixels of a tile
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  int device = -1;
  cudaGetDevice(&device);
  // "CUDA error: out of memory" is how torch, too, tells of what its allocator knows nothing of.
  throw std::runtime_error(std::string(what) + " failed on cuda:" + std::to_string(device) +
                           ": CUDA error: " + cudaGetErrorString(error) +
                           "; an earlier kernel may be the cause, CUDA_LAUNCH_BLOCKING=1 in the "
                           "environment finds the one");
}

inline int64_t blocks_for(int64_t num, int threads = kThreads) {
  return (num + threads - 1) / threads;
}

// A kernel's own index over the whole grid.
__device__ __forceinline__ int64_t global_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
            void* stream, Arguments... arguments) {
  if (blocks == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
#if defined(__CUDACC__)
  kernel<<<dim3(static_cast<unsigned>(blocks)), dim3(threads), 0, queue>>>(
      static_cast<Parameters>(arguments)...);
#else
  emulator::launch(name, blocks, threads, queue,
                   [&] { kernel(static_cast<Parameters>(arguments)...); });
#endif
  check(cudaGetLastError(), name);
}

}  // namespace splat::cuda
