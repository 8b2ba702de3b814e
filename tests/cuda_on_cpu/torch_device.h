// Pretend devices for the binding of the CUDA kernels: the device of a tensor
// is where its memory lies. Torch's ordinary tensors count as the CPU's;
// kernels may use them too, so that the tests of the operators run unchanged.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "emulator.h"

namespace splat::binding {

constexpr int32_t kCpu = -1;

int32_t &required_device();

// A tensor without memory is wherever it is wanted.
inline int32_t device_of(const torch::stable::Tensor &t) {
  return t.numel() == 0 ? required_device() : emulator::owner_of(t.data_ptr());
}

inline torch::stable::Tensor empty_on(int32_t device,
                                      const std::vector<int64_t> &sizes,
                                      torch::headeronly::ScalarType type) {
  if (device == kCpu) {
    torch::stable::Tensor t = torch::stable::empty(sizes, type);
    // What a kernel forgets to write shall be seen.
    if (t.numel() > 0)
      std::memset(t.data_ptr(), 0x7f, t.numel() * t.element_size());
    return t;
  }
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t num = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = num;
    num *= sizes[i];
  }
  const size_t element = torch::stable::empty({0}, type).element_size();
  void *memory = emulator::allocate(static_cast<size_t>(num) * element);
  STD_TORCH_CHECK(memory != nullptr, "emulator: a device is full");
  return torch::stable::from_blob(
      memory, sizes, strides,
      torch::stable::Device(torch::headeronly::DeviceType::CPU), type);
}

class DeviceGuard {
public:
  explicit DeviceGuard(int32_t device)
      : before_(emulator::current_device()),
        device_(device == kCpu ? 0 : device) {
#if !defined(SPLAT_EMULATE_NO_GUARD)
    emulator::set_current_device(device_);
#endif
  }
  ~DeviceGuard() { emulator::set_current_device(before_); }
  void *stream() const { return emulator::default_stream(device_); }

private:
  int before_, device_;
};

} // namespace splat::binding
