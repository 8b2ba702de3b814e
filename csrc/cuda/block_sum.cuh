// The sum over the threads of a block, in a fixed order.
#pragma once

#include "launch.cuh"

namespace splat::cuda {

// Every thread must call it, and has it.
template <typename T>
static __device__ T block_sum(T value) {
  __shared__ T values[kThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    __syncthreads();
  }
  return values[0];
}

}  // namespace splat::cuda
