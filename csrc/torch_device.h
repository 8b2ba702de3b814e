// Where a tensor lives, and how a call comes to run there. The emulation of CUDA has a file of the
// same name, so it is included with angle brackets.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels.h"

#if defined(SPLAT_CUDA)
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace splat::binding {

constexpr int32_t kCpu = -1;

// The index of a tensor's GPU; kCpu.
inline int32_t device_of(const torch::stable::Tensor& t) {
  return t.is_cpu() ? kCpu : t.get_device_index();
}

inline torch::stable::Tensor empty_on(int32_t device, const std::vector<int64_t>& sizes,
                                      torch::headeronly::ScalarType type) {
  if (device == kCpu) return torch::stable::empty(sizes, type);
  return torch::stable::empty(sizes, type, std::nullopt,
                              torch::stable::Device(torch::headeronly::DeviceType::CUDA, device));
}

#if defined(SPLAT_CUDA)
// While it lives the device is current; kernels go to the stream on which torch works there.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) : guard_(device) {
    splat::cuda::make_current(device);
    // STABLE_TORCH_ERROR_CODE_CHECK is not in torch 2.11, the oldest that we build with.
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream_));
  }
  void* stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};
#endif

}  // namespace splat::binding
