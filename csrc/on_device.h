// What the operators of the CUDA backend begin with (ops_cuda*.cpp).
#pragma once

#include "binding.h"

namespace splat::binding {

// The device guard of a call, from one of its tensors: its device is current while it lives, and
// all others must lie there.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& t) : before_(required_device()), guard_(device_of(t)) {
    required_device() = device_of(t);
  }
  ~OnDevice() { required_device() = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* stream() const { return guard_.stream(); }

 private:
  int32_t before_;
  DeviceGuard guard_;
};

}  // namespace splat::binding
