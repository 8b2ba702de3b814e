#include "pool.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace splat::cpu {
namespace {

// Python shows what() of a MemoryError.
struct OutOfMemory : std::bad_alloc {
  const char* what() const noexcept override {
    return "the kernels need more memory than there is: use fewer Gaussians or fewer pixels";
  }
};

struct Job {
  Task task = nullptr;
  void* context = nullptr;
  int64_t num_tasks = 0;
};

// A process of Windows is never copied. There a thread that ends holds the lock that every other
// one needs to end, so its helpers are not waited for; and who ends a process has ended them
// before.
#if defined(_WIN32)
constexpr bool kHelpersEndAlone = true;
int64_t this_process() { return 1; }
#else
constexpr bool kHelpersEndAlone = false;
int64_t this_process() { return getpid(); }
#endif

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) kHelpersEndAlone ? helper.detach() : helper.join();
    helpers_.clear();
  }

  void run(int num_helpers, const Job& job) {
    grow(num_helpers);
    num_helpers = std::min(num_helpers, static_cast<int>(helpers_.size()));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      next_.store(0, std::memory_order_relaxed);
      num_wanted_ = num_helpers;
    }
    for (int i = 0; i < num_helpers; ++i) wake_.notify_one();
    work(job);
    std::unique_lock<std::mutex> lock(mutex_);
    num_wanted_ = 0;  // who has not begun by now finds nothing left, and nobody waits for it
    done_.wait(lock, [this] { return num_working_ == 0; });
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  void grow(int num_helpers) {
    while (static_cast<int>(helpers_.size()) < num_helpers) {
      try {
        helpers_.emplace_back([pool = shared_from_this()] { pool->help(); });
      } catch (const std::system_error&) {
        return;  // the system allows no more threads: fewer do the same work
      }
    }
  }

  // The first exception of any thread is kept for the caller; tasks not yet begun are left out.
  void work(const Job& job) {
    try {
      for (;;) {
        const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= job.num_tasks) return;
        job.task(job.context, index);
      }
    } catch (...) {
      next_.store(job.num_tasks, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || num_wanted_ > 0; });
      if (stopping_) return;
      --num_wanted_;
      ++num_working_;
      const Job job = job_;
      lock.unlock();
      work(job);
      lock.lock();
      num_wanted_ = 0;  // nothing is left of this job; the next begins when nobody works
      if (--num_working_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> helpers_;
  std::atomic<int64_t> next_{0};
  Job job_;
  std::exception_ptr failure_;
  int num_wanted_ = 0;   // helpers that may still begin
  int num_working_ = 0;  // helpers that have begun: for them, and for no other, the caller waits
  bool stopping_ = false;
};

// A pool and the process that made it: after fork() the helpers exist only in the parent, so the
// child leaves the copy alone and makes its own.
struct OwnPool {
  std::shared_ptr<Pool> pool;
  int64_t process = 0;

  Pool& get() {
    if (!pool || process != this_process()) {
      leave_behind();
      pool = std::make_shared<Pool>();
      process = this_process();
    }
    return *pool;
  }

  ~OwnPool() {
    if (pool && process == this_process()) pool->stop();
    if (process != this_process()) leave_behind();
  }

 private:
  void leave_behind() {
    if (pool) [[maybe_unused]]
      const auto* forgotten = new std::shared_ptr<Pool>(std::move(pool));
  }
};

}  // namespace

void run_tasks(int num_threads, int64_t num_tasks, Task task, void* context) try {
  const int num_helpers = static_cast<int>(std::min<int64_t>(num_threads, num_tasks)) - 1;
  if (num_helpers <= 0) {
    for (int64_t i = 0; i < num_tasks; ++i) task(context, i);
    return;
  }
  thread_local OwnPool own;
  own.get().run(num_helpers, {task, context, num_tasks});
} catch (const std::bad_alloc&) {
  throw OutOfMemory();
}

void fetch_pages([[maybe_unused]] int num_threads, [[maybe_unused]] void* block,
                 [[maybe_unused]] int64_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  if (bytes < 32 << 20) return;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  const uintptr_t first = (address + page - 1) / page * page;
  const uintptr_t last = (address + static_cast<uintptr_t>(bytes)) / page * page;
  parallel_ranges(
      num_threads, static_cast<int64_t>(last - first), 4 << 20, [&](int64_t begin, int64_t end) {
        // Where the system cannot, pages come one by one as they are written.
        madvise(reinterpret_cast<void*>(first + begin), end - begin, MADV_POPULATE_WRITE);
      });
#endif
}

}  // namespace splat::cpu
