// Whether a step's gate lets it change anything: asked by each kernel that does.
#pragma once

#include "../gate.h"
#include "../linalg.h"
#include "launch.cuh"

namespace splat::cuda {

__device__ __forceinline__ bool is_open(const StepGate& gate) {
  if (gate.num_instances == nullptr) return true;
  return *gate.num_instances <= gate.room && is_finite(*gate.loss);
}

}  // namespace splat::cuda
