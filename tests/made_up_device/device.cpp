// Three devices that no machine has, for torch: "madeup:0" to "madeup:2", of the kind that torch
// leaves free.
//
// Their tensors lie in the host's memory, and every operator is the CPU's on the same memory; but
// torch knows them as another device's, so what it refuses on a GPU it refuses here, with real
// autograd, threads and indices. What a GPU does late is done late: a copy that need not be waited
// for is done when something waits for it and not before. Memory is counted and can be short: any
// allocation can be told to fail.
#include <ATen/EmptyTensor.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

constexpr int kDevices = 3;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kUnwritten = 0xCD;  // in memory that nobody has written to

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_stream[kDevices] = {0, 0, 0};

// ---- Memory: counted, and short where a test asks for it.

std::atomic<int64_t> live_bytes{0}, num_allocations{0}, failing_allocation{-1}, capacity{INT64_MAX};

struct Block {
  void* memory;
  int64_t bytes;
};

void release(void* block) {
  auto* held = static_cast<Block*>(block);
  live_bytes -= held->bytes;
  std::memset(held->memory, kUnwritten, held->bytes);
  std::free(held->memory);
  delete held;
}

void* fresh(size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(memory, kUnwritten, bytes);
  return memory;
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, device};
    if (num_allocations++ == failing_allocation ||
        live_bytes + static_cast<int64_t>(bytes) > capacity)
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the made-up device is out of memory");
    live_bytes += bytes;
    auto* block = new Block{fresh(bytes), static_cast<int64_t>(bytes)};
    return {block->memory, block, &release, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
DeviceMemory device_memory;
REGISTER_ALLOCATOR(kType, &device_memory);

std::mutex pinned_lock;
std::map<const char*, size_t> pinned;  // where it begins, and its bytes

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = fresh(bytes);
    std::lock_guard lock(pinned_lock);
    pinned[static_cast<char*>(memory)] = bytes;
    return {memory, memory, &PinnedMemory::unpin, c10::kCPU};
  }
  static void unpin(void* memory) {
    {
      std::lock_guard lock(pinned_lock);
      pinned.erase(static_cast<char*>(memory));
    }
    std::free(memory);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
PinnedMemory pinned_memory;

bool is_pinned(const void* pointer) {
  std::lock_guard lock(pinned_lock);
  const auto* place = static_cast<const char*>(pointer);
  auto after = pinned.upper_bound(place);
  return after != pinned.begin() &&
         place < std::prev(after)->first + std::max<size_t>(std::prev(after)->second, 1);
}

// ---- Streams: what is given to one is done in its order, and as late as what
// waits for it allows.

struct Queue {
  std::deque<std::function<void()>> work;
  int64_t given = 0, done = 0;
};
struct Event {
  c10::DeviceIndex device;
  c10::StreamId stream;
  int64_t upto;
  double at;
};
std::recursive_mutex queues_lock;
std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Queue> queues;
std::atomic<c10::StreamId> last_stream{0};
std::atomic<int64_t> num_late{0};  // copies that were done later than they were given

void give(c10::Stream stream, std::function<void()> work) {
  std::lock_guard lock(queues_lock);
  auto& queue = queues[{stream.device_index(), stream.id()}];
  queue.work.push_back(std::move(work));
  queue.given++;
}

void catch_up(c10::DeviceIndex device, c10::StreamId stream, int64_t upto) {
  std::lock_guard lock(queues_lock);
  auto& queue = queues[{device, stream}];
  while (queue.done < upto && !queue.work.empty()) {
    auto work = std::move(queue.work.front());
    queue.work.pop_front();
    queue.done++;
    work();
  }
}
void catch_up(c10::Stream stream) { catch_up(stream.device_index(), stream.id(), INT64_MAX); }
void catch_up_all(c10::DeviceIndex device) {
  std::lock_guard lock(queues_lock);
  for (auto& [key, queue] : queues)
    if (key.first == device) catch_up(key.first, key.second, INT64_MAX);
}
double milliseconds() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
c10::Stream stream_of(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, {kType, device}, current_stream[device]);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current_device;
    setDevice(device);
    return {kType, before};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kDevices, "there is no ", device);
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device.has_index() ? device.index() : current_device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = stream_of(stream.device_index());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    std::lock_guard lock(queues_lock);
    if (*event == nullptr) *event = new Event;
    const auto given = queues[{stream.device_index(), stream.id()}].given;
    *static_cast<Event*>(*event) = {stream.device_index(), stream.id(), given, milliseconds()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto waited = *static_cast<Event*>(event);
    give(stream, [waited] { catch_up(waited.device, waited.stream, waited.upto); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    // Who asks often enough sees it come.
    std::lock_guard lock(queues_lock);
    const auto& asked = *static_cast<Event*>(event);
    auto& queue = queues[{asked.device, asked.stream}];
    const bool come = queue.done >= asked.upto;
    if (!come) catch_up(asked.device, asked.stream, queue.done + 1);
    return come;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto& waited = *static_cast<Event*>(event);
    catch_up(waited.device, waited.stream, waited.upto);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* begun, void* ended, c10::DeviceIndex) const override {
    return static_cast<Event*>(ended)->at - static_cast<Event*>(begun)->at;
  }
  bool queryStream(const c10::Stream& stream) const override {
    std::lock_guard lock(queues_lock);
    return queues[{stream.device_index(), stream.id()}].work.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override { catch_up(stream); }
  void synchronizeDevice(c10::DeviceIndex device) const override { catch_up_all(device); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  at::DeviceIndex deviceCount() const override { return kDevices; }
  at::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(at::DeviceIndex device) const override { current_device = device; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* held = storage.unsafeGetStorageImpl();
    auto larger = device_memory.allocate(bytes);
    if (held->data() != nullptr)
      std::memcpy(larger.get(), held->data(), std::min<size_t>(held->nbytes(), bytes));
    held->set_data_ptr(std::move(larger));
    held->set_nbytes(bytes);
  }
};
const bool hooks_are_known = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// ---- Operators.

// The same memory as a tensor of the host.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  auto storage = tensor.storage();
  c10::DataPtr memory(storage.mutable_data(), c10::Device(c10::kCPU));
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), nullptr,
                    false);
  auto seen = at::detail::make_tensor<at::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return seen;
}

c10::Device whole(std::optional<at::Device> device) {
  return {kType, device && device->has_index() ? device->index() : current_device};
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout>, std::optional<at::Device> device,
                               std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only memory of the host can be pinned");
  const c10::DeviceGuard guard(whole(device));
  return at::detail::empty_generic(size, &device_memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(whole(device));
  return at::detail::empty_strided_generic(size, stride, &device_memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto device = (from.device().is_cpu() ? to : from).device().index();
  const auto stream = stream_of(device);
  const auto& host_side = from.device().is_cpu() ? from : to;
  const bool late =
      non_blocking && host_side.device().is_cpu() && is_pinned(host_side.storage().data());
  if (late) {
    num_late++;
    give(stream, [from = from.detach(), to = to.detach()] { on_host(to).copy_(on_host(from)); });
  } else {
    catch_up(stream);
    if (from.device() != to.device() && !to.device().is_cpu() && !from.device().is_cpu())
      catch_up(stream_of(to.device().index()));
    on_host(to).copy_(on_host(from));
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset) start = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), start);
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset.expect_int(),
                                      C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}
at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}
at::Scalar local_scalar(const at::Tensor& self) {
  catch_up(stream_of(self.device().index()));
  return at::_local_scalar_dense(on_host(self));
}

// What a stream works on is held by its queue.
void record_stream(at::Tensor&, c10::Stream) {}

// Returns the device of an operator's tensors; raises where CUDA would: two
// devices, or a tensor of the host that is no number. Indices may lie on the
// host, and what Adam remembers of late rows, which the host looks at alone.
std::optional<c10::Device> device_of(const c10::FunctionSchema& schema,
                                     c10::ArrayRef<c10::IValue> given) {
  const auto& name = schema.name();
  const bool indexes = name == "aten::index" || name.find("index_put") != std::string::npos;
  std::optional<c10::Device> device;
  std::string on_cpu;
  auto see = [&](const at::Tensor& tensor, const std::string& argument) {
    if (!tensor.defined()) return;
    if (tensor.device().is_cpu()) {
      const bool remembered = argument == "history" || argument == "steps_done";
      if (tensor.dim() > 0 && tensor.numel() > 0 && !remembered) on_cpu = argument;
      return;
    }
    TORCH_CHECK(!device || *device == tensor.device(), name, ": tensors of ", *device, " and ",
                tensor.device(), " (", argument, ")");
    device = tensor.device();
  };
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& argument = schema.arguments()[i].name();
    if (given[i].isTensor()) see(given[i].toTensor(), argument);
    if (given[i].isTensorList())
      for (const auto& tensor : given[i].toTensorVector()) see(tensor, argument);
    if (given[i].isOptionalTensorList() && !indexes)
      for (const auto& tensor : given[i].toOptionalTensorVector())
        if (tensor) see(*tensor, argument);
  }
  TORCH_CHECK(!device || on_cpu.empty(), name, ": ", on_cpu, " is on the CPU, other tensors on ",
              *device);
  return device;
}

// The same value with tensors of the host in the place of those of the devices.
c10::IValue on_host(const c10::IValue& value) {
  if (value.isTensor()) return on_host(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(on_host(tensor));
    return list;
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList()) {
    c10::List<c10::List<at::Tensor>> lists;
    for (const auto& inner : value.toListRef()) lists.push_back(on_host(inner).toTensorList());
    return lists;
  }
  return value;
}

// Between ranks: gloo carries what lies in the devices' memory, once all that was given is done.
void exchange(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  catch_up(stream_of(current_device));
  const auto num_given = op.schema().arguments().size();
  for (size_t i = stack->size() - num_given; i < stack->size(); ++i)
    (*stack)[i] = on_host((*stack)[i]);
  op.callBoxedForDispatchKey(c10::DispatchKey::CPU, *stack);
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto num_given = schema.arguments().size();
  const auto device = device_of(schema, torch::jit::last(*stack, num_given));
  const c10::OptionalDeviceGuard guard(device);
  if (device) catch_up(stream_of(device->index()));
  if (schema.name().rfind("splatstudio::", 0) != 0) {
    at::native::cpu_fallback(op, stack);
    return;
  }
  // Our own operators write into what they are given.
  for (size_t i = stack->size() - num_given; i < stack->size(); ++i)
    (*stack)[i] = on_host((*stack)[i]);
  op.callBoxedForDispatchKey(c10::DispatchKey::CPU, *stack);
  if (!device) return;
  auto returned = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    auto there = at::empty(tensor.sizes(), tensor.options().device(*device));
    on_host(there).copy_(tensor);
    return there;
  };
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = returned(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(returned(tensor));
      value = list;
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(c10d, PrivateUse1, m) {
  for (const char* name : {"allreduce_", "allgather_", "alltoall_base_", "broadcast_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&exchange>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("unfold", unfold);
  m.impl("record_stream", record_stream);
  m.impl("_local_scalar_dense", local_scalar);
}

// What the tests ask for, by ctypes.
extern "C" {
int made_up_current_device() { return current_device; }
void made_up_set_device(int device) { current_device = static_cast<c10::DeviceIndex>(device); }
void made_up_synchronize(int device) { catch_up_all(static_cast<c10::DeviceIndex>(device)); }
int64_t made_up_live_bytes() { return live_bytes; }
int64_t made_up_num_allocations() { return num_allocations; }
int64_t made_up_num_late() { return num_late; }
// The allocation after `number` others, counted from now, fails once; -1: none
// does.
void made_up_fail_allocation(int64_t number) {
  failing_allocation = number < 0 ? -1 : num_allocations + number;
}
void made_up_set_capacity(int64_t bytes) { capacity = bytes; }
}
