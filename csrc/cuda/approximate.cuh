// Functions that a GPU has an instruction for, less exact by a unit or two in the last place than
// those of the language, which take ten to twenty.
#pragma once

#include <cmath>

#include "launch.cuh"

namespace splat::cuda {

// 2^x within 2 units in the last place, one instruction; below 2^-126 it is 0.
__device__ __forceinline__ float power_of_2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// 1 / x within 1 unit in the last place, one instruction; for x of 2^-126 to 2^126.
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// The square root within 1 unit in the last place, one instruction; of what is below 2^-126 it is
// 0.
__device__ __forceinline__ float square_root(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::sqrt(x);
#endif
}

}  // namespace splat::cuda
