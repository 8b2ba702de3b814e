// What the operators of the CUDA backend begin with (ops_cuda*.cpp).
#pragma once

#include <cstdint>

#include "binding.h"

namespace splat::binding {

// The device guard of a call, from one of its tensors: its device is current while it lives, and
// all others must lie there.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& t)
      : before_(required_device()), size_before_(splat_size()), guard_(device_of(t)) {
    required_device() = device_of(t);
    splat_size() = cuda::kPackedSize;
  }
  ~OnDevice() {
    required_device() = before_;
    splat_size() = size_before_;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* stream() const { return guard_.stream(); }

 private:
  int32_t before_;
  int64_t size_before_;
  DeviceGuard guard_;
};

// For tensors whose rows the kernels read 16 bytes at a time: a slice of one may begin anywhere.
inline void check_aligned(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0, name,
                  " must begin at a multiple of 16 bytes");
}

}  // namespace splat::binding
