// The device of this library's own CUDA runtime, which is linked statically beside torch's.
#include "../kernels.h"
#include "launch.cuh"

namespace splat::cuda {

void make_current(int32_t device) { check(cudaSetDevice(device), "cudaSetDevice"); }

}  // namespace splat::cuda
