// Threads that wait for work, kept by the thread that calls.
#pragma once

#include <cstdint>

namespace splat::cpu {

using Task = void (*)(void* context, int64_t index);

// Calls task(context, i) once for every i in [0, num_tasks), from up to num_threads threads (this
// one among them), in no order that can be relied on; returns when all are done. The first
// exception that a task throws, in whichever thread, is thrown again here, once no task runs any
// more; the rest is not begun, a std::bad_alloc says so in a sentence. Nobody waits for a helper
// that has not begun: with more threads than cores it may come late. The helpers belong to the
// calling thread and stay for its next call: two callers (a training, and a viewer that renders
// meanwhile) never wait for each other.
void run_tasks(int num_threads, int64_t num_tasks, Task task, void* context);

// The same with anything that can be called.
template <typename Function>
void parallel_for(int num_threads, int64_t num_tasks, const Function& function) {
  run_tasks(
      num_threads, num_tasks,
      [](void* context, int64_t index) { (*static_cast<const Function*>(context))(index); },
      const_cast<void*>(static_cast<const void*>(&function)));
}

// Splits [0, num) into ranges of `grain` and calls function(begin, end) for each, in parallel.
template <typename Function>
void parallel_ranges(int num_threads, int64_t num, int64_t grain, const Function& function) {
  parallel_for(num_threads, (num + grain - 1) / grain, [&](int64_t i) {
    const int64_t begin = i * grain;
    function(begin, begin + grain < num ? begin + grain : num);
  });
}

// Asks the system at once for the pages of a large block that is about to be written whole: one
// page fault a page costs more than the page. Blocks below 32 MB glibc gives again, with their
// pages.
void fetch_pages(int num_threads, void* block, int64_t bytes);

}  // namespace splat::cpu
