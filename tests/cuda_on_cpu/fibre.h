// A function with a stack of its own that can be left in the middle and gone on
// with later.
#pragma once

#include <cstddef>

namespace emulator {

class Fibre {
public:
  Fibre();
  ~Fibre();
  Fibre(const Fibre &) = delete;
  Fibre &operator=(const Fibre &) = delete;

  // Makes `function` what the next resume begins with; a function left in the
  // middle is forgotten.
  void start(void (*function)());
  // Runs until the function yields or ends.
  void resume();
  // Called by the function: back to who resumed it.
  void yield();
  const char *stack_begin() const { return stack_; }
  const char *stack_end() const;

private:
  friend void enter(Fibre *fibre);

  char *stack_;
  void (*function_)() = nullptr;
  void *own_ = nullptr; // saved stack pointers
  void *caller_ = nullptr;
  void *fake_stack_ = nullptr; // the address sanitizer's
  const void *caller_stack_ = nullptr;
  size_t caller_stack_size_ = 0;
};

} // namespace emulator
