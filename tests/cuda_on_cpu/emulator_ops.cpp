// What the tests ask of the pretend devices.
#include <torch/csrc/stable/library.h>

#include <string>

#include "binding.h"
#include "emulator.h"
#include "faults.h"

namespace {

using namespace splat::binding; // NOLINT

Sizes sizes_of(const Tensor &t) {
  Sizes sizes;
  for (int64_t i = 0; i < t.dim(); ++i)
    sizes.push_back(t.size(i));
  return sizes;
}

size_t bytes_of(const Tensor &t) {
  return static_cast<size_t>(t.numel()) * t.element_size();
}

Tensor to_device(const Tensor &t, int64_t device) {
  const int before = emulator::current_device();
  emulator::set_current_device(static_cast<int>(device));
  const Tensor copy =
      empty_on(static_cast<int32_t>(device), sizes_of(t), t.scalar_type());
  emulator::set_current_device(before);
  emulator::copy(copy.data_ptr(), t.data_ptr(), bytes_of(t));
  return copy;
}

Tensor to_host(const Tensor &t) {
  const Tensor copy = torch::stable::empty(sizes_of(t), t.scalar_type());
  emulator::copy(copy.data_ptr(), t.data_ptr(), bytes_of(t));
  return copy;
}

int64_t device_index(const Tensor &t) { return device_of(t); }

void set_current_device(int64_t device) {
  emulator::set_current_device(static_cast<int>(device));
}

int64_t current_device() { return emulator::current_device(); }

void set_order_seed(int64_t seed) { emulator::set_order_seed(seed); }

int64_t num_waits() { return emulator::num_waits(); }

void lack_memory() { emulator::lack_memory(); }

void record_launches(bool on) { emulator::record_launches(on); }

std::string recorded_launches() { return emulator::recorded_launches(); }

int64_t loss_scratch(const Tensor &image) {
  splat::ImageLoss args = {};
  args.height = image.size(0);
  args.width = image.size(1);
  args.channels = image.size(2);
  args.ssim_weight = 1.0f;
  args.grad = static_cast<float *>(image.data_ptr());
  return splat::cuda::image_loss_scratch(args);
}

Tensor faulty(const std::string &fault) {
  const Tensor out = torch::stable::empty({64}, ScalarType::Int);
  faults::run(fault, static_cast<int32_t *>(out.data_ptr()));
  return out;
}

std::string instruction_set() { return "CUDA, emulated"; }

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(splatstudio, m) {
  m.def("to_device(Tensor t, int device) -> Tensor");
  m.def("to_host(Tensor t) -> Tensor");
  m.def("device_index(Tensor t) -> int");
  m.def("set_current_device(int device) -> ()");
  m.def("current_device() -> int");
  m.def("set_order_seed(int seed) -> ()");
  m.def("num_waits() -> int");
  m.def("lack_memory() -> ()");
  m.def("record_launches(bool on) -> ()");
  m.def("recorded_launches() -> str");
  m.def("loss_scratch(Tensor image) -> int");
  m.def("faulty(str fault) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&instruction_set));
  m.impl("to_device", TORCH_BOX(&to_device));
  m.impl("to_host", TORCH_BOX(&to_host));
  m.impl("device_index", TORCH_BOX(&device_index));
  m.impl("set_current_device", TORCH_BOX(&set_current_device));
  m.impl("current_device", TORCH_BOX(&current_device));
  m.impl("set_order_seed", TORCH_BOX(&set_order_seed));
  m.impl("num_waits", TORCH_BOX(&num_waits));
  m.impl("lack_memory", TORCH_BOX(&lack_memory));
  m.impl("record_launches", TORCH_BOX(&record_launches));
  m.impl("recorded_launches", TORCH_BOX(&recorded_launches));
  m.impl("loss_scratch", TORCH_BOX(&loss_scratch));
  m.impl("faulty", TORCH_BOX(&faulty));
}
