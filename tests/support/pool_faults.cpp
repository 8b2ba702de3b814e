// Tasks that throw, from the caller and from helpers: what `run_tasks` promises
// of exceptions.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "cpu/pool.h"

namespace {

using splat::cpu::parallel_for;

void expect(bool holds, const char *what, int line) {
  if (holds)
    return;
  std::fprintf(stderr, "line %d: not so: %s\n", line, what);
  std::exit(1);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

// Every task is done once, whatever happened before.
void expect_whole(int num_threads) {
  constexpr int kTasks = 100;
  std::atomic<int> done[kTasks] = {};
  parallel_for(num_threads, kTasks, [&](int64_t i) { ++done[i]; });
  for (const std::atomic<int> &times : done)
    EXPECT(times == 1);
}

// As many tasks as threads, and none returns before all have begun: each runs
// in a thread of its own.
void throw_in(int num_threads, bool in_caller) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> begun{0}, running{0};
  std::string caught;
  try {
    parallel_for(num_threads, num_threads, [&](int64_t) {
      ++running;
      ++begun;
      while (begun < num_threads)
        std::this_thread::yield();
      const bool throws = (std::this_thread::get_id() == caller) == in_caller;
      --running;
      if (throws)
        throw std::runtime_error("as asked");
    });
  } catch (const std::runtime_error &error) {
    caught = error.what();
  }
  EXPECT(caught == "as asked");
  EXPECT(running == 0);
}

void run_out_of_memory(int num_threads) {
  std::string caught;
  std::atomic<int64_t> done{0};
  try {
    parallel_for(num_threads, 1'000'000, [&](int64_t) {
      ++done;
      throw std::bad_alloc();
    });
  } catch (const std::bad_alloc &error) {
    caught = error.what();
  }
  EXPECT(caught.find("need more memory than there is") != std::string::npos);
  EXPECT(done >= 1 && done <= num_threads);
}

} // namespace

int main() {
  for (int round = 0; round < 50; ++round) {
    for (const int num_threads : {2, 3, 8}) {
      throw_in(num_threads, false);
      expect_whole(num_threads);
      throw_in(num_threads, true);
      expect_whole(num_threads);
      run_out_of_memory(num_threads);
    }
    run_out_of_memory(1);
    expect_whole(1);
  }
  // So little to do that helpers come late, into the next call or the one after.
  for (int round = 0; round < 5000; ++round) {
    const int num_threads = 2 + round % 3;
    std::atomic<int> done[8] = {};
    parallel_for(num_threads, 2 + round % 7, [&](int64_t i) { ++done[i]; });
    for (int i = 0; i < 8; ++i)
      EXPECT(done[i] == (i < 2 + round % 7 ? 1 : 0));
  }
  // A thread that ends takes its own helpers along, also after a failure.
  std::thread([] { throw_in(4, false); }).join();
  std::puts("all as promised");
}
