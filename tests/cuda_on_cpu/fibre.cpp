// x86-64 only: the switch saves the registers that a called function must keep.
#include "fibre.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SPLAT_START_SWITCH(save, stack, size)                                  \
  __sanitizer_start_switch_fiber(save, stack, size)
#define SPLAT_FINISH_SWITCH(saved, stack, size)                                \
  __sanitizer_finish_switch_fiber(saved, stack, size)
#else
#define SPLAT_START_SWITCH(save, stack, size)
#define SPLAT_FINISH_SWITCH(saved, stack, size)
#endif

extern "C" void splat_switch_stack(void **save, void *load);
extern "C" void splat_enter_fibre();

asm(R"(
.text
.globl splat_switch_stack
.hidden splat_switch_stack
splat_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.globl splat_enter_fibre
.hidden splat_enter_fibre
splat_enter_fibre:
  movq %rbx, %rdi
  callq splat_run_fibre
  ud2
)");

namespace emulator {
namespace {

constexpr size_t kStack = size_t{256} << 10;

} // namespace

Fibre::Fibre() {
  void *memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error("emulator: no room for a stack");
  stack_ = static_cast<char *>(memory);
}

Fibre::~Fibre() { munmap(stack_, kStack); }

const char *Fibre::stack_end() const { return stack_ + kStack; }

void Fibre::start(void (*function)()) {
  function_ = function;
  // As splat_switch_stack leaves a stack: six registers, then where to go on.
  // The call in splat_enter_fibre finds the stack aligned to 16 bytes.
  uint64_t *top = reinterpret_cast<uint64_t *>(stack_ + kStack) - 2;
  *--top = reinterpret_cast<uint64_t>(&splat_enter_fibre);
  *--top = 0;                                // rbp
  *--top = reinterpret_cast<uint64_t>(this); // rbx
  for (int i = 0; i < 4; ++i)
    *--top = 0; // r12 to r15
  own_ = top;
  fake_stack_ = nullptr;
}

void Fibre::resume() {
  void *fake_stack = nullptr;
  static_cast<void>(fake_stack);
  SPLAT_START_SWITCH(&fake_stack, stack_, kStack);
  splat_switch_stack(&caller_, own_);
  SPLAT_FINISH_SWITCH(fake_stack, nullptr, nullptr);
}

void Fibre::yield() {
  SPLAT_START_SWITCH(&fake_stack_, caller_stack_, caller_stack_size_);
  splat_switch_stack(&own_, caller_);
  SPLAT_FINISH_SWITCH(fake_stack_, &caller_stack_, &caller_stack_size_);
}

void enter(Fibre *fibre) {
  SPLAT_FINISH_SWITCH(nullptr, &fibre->caller_stack_,
                      &fibre->caller_stack_size_);
  fibre->function_();
  SPLAT_START_SWITCH(nullptr, fibre->caller_stack_, fibre->caller_stack_size_);
  splat_switch_stack(&fibre->own_, fibre->caller_);
  std::abort(); // an ended function is never resumed
}

} // namespace emulator

extern "C" __attribute__((visibility("hidden"), used)) void
splat_run_fibre(emulator::Fibre *fibre) {
  emulator::enter(fibre);
}
