#include "emulator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fibre.h"
#include "races.h"

// Where the linker puts what blocks share (`__shared__` in cuda_runtime.h).
extern "C" __attribute__((visibility("hidden"))) char __start_emulated_shared[];
extern "C" __attribute__((visibility("hidden"))) char __stop_emulated_shared[];

namespace emulator {
namespace {

constexpr int kWarp = 32;

// ---- devices

constexpr size_t kArena = size_t{1} << 30; // reserved, used page by page

struct Arena {
  char *begin = nullptr;
  size_t used = 0;
};

const char *running_kernel = nullptr; // for the message of a bad access

void report_bad_access(int, siginfo_t *info, void *) {
  const int owner = owner_of(info->si_addr);
  if (owner < 0) {
    std::signal(SIGSEGV, SIG_DFL);
    return;
  }
  char text[256];
  const int length = std::snprintf(
      text, sizeof(text),
      "emulator: %s touched memory of device %d while device %d is current\n",
      running_kernel == nullptr ? "the host" : running_kernel, owner,
      current_device());
  if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0)
    _exit(87);
  _exit(86);
}

struct Devices {
  Arena arenas[kNumDevices];
  Stream streams[kNumDevices];
  int current = 0;

  Devices() {
    for (int i = 0; i < kNumDevices; ++i) {
      void *memory = mmap(nullptr, kArena, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED)
        throw std::runtime_error("emulator: no room for a device");
      arenas[i].begin = static_cast<char *>(memory);
      streams[i].device = i;
    }
    struct sigaction action = {};
    action.sa_sigaction = report_bad_access;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
  }

  void open(int device, bool readable) {
    Arena &arena = arenas[device];
    if (arena.used == 0)
      return;
    if (mprotect(arena.begin, arena.used,
                 readable ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
      throw std::runtime_error("emulator: mprotect failed");
    }
  }
};

Devices &devices() {
  static Devices all;
  return all;
}

// While it lives the device's memory may be touched, by what is named.
class Access {
public:
  Access(const char *name, int device) : device_(device) {
    running_kernel = name;
    devices().open(device_, true);
  }
  ~Access() {
    devices().open(device_, false);
    running_kernel = nullptr;
  }

private:
  int device_;
};

void check_stream(const char *name, const Stream *stream) {
  if (stream == nullptr || stream->device == current_device())
    return;
  throw std::runtime_error(std::string("emulator: ") + name +
                           " was launched on a stream of device " +
                           std::to_string(stream->device) + " while device " +
                           std::to_string(current_device()) + " is current");
}

// ---- a block

// Threads wait until all have come. What they bring is kept for two rounds: a
// thread can be at most one round ahead of the slowest reader.
struct Barrier {
  int expected = 0, arrived = 0;
  int64_t round = 0;
  int64_t sums[2] = {};
  races::Clock met[2];
};

struct Warp {
  Barrier barrier;
  uint64_t values[2][kWarp] = {};
  const char *functions[2][kWarp] = {};
};

struct Thread {
  Fibre fibre;
  dim3 index;
  int warp = 0, lane = 0;
  int64_t warp_calls = 0;
  Barrier *waits_for = nullptr;
  int64_t waits_for_round = 0;
  bool finished = false;

  bool ready() const {
    return !finished &&
           (waits_for == nullptr || waits_for->round >= waits_for_round);
  }
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  Barrier barrier;
  const std::function<void()> *body = nullptr;
  Thread *running = nullptr;
  Indices indices;
  std::string error;
};

Block block; // one runs at a time

// `orders_memory`: what was written before is seen behind it.
int64_t arrive(Barrier &barrier, int value, bool orders_memory) {
  const int64_t round = barrier.round;
  if (orders_memory)
    races::arrive(barrier.met[round % 2], barrier.arrived == 0);
  if (barrier.arrived == 0)
    barrier.sums[round % 2] = 0;
  barrier.sums[round % 2] += value;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.round;
  } else {
    block.running->waits_for = &barrier;
    block.running->waits_for_round = round + 1;
    block.running->fibre.yield();
    block.running->waits_for = nullptr;
  }
  if (orders_memory)
    races::leave(barrier.met[round % 2]);
  return barrier.sums[round % 2];
}

void run_thread() {
  try {
    (*block.body)();
  } catch (const std::exception &error) {
    block.error = error.what();
  }
  block.running->finished = true;
}

void prepare(int64_t index, int num_threads) {
  // A number that is not written before it is read shall be seen: a NaN, or
  // far too large.
  std::memset(__start_emulated_shared, 0xff,
              __stop_emulated_shared - __start_emulated_shared);
  races::begin_block(index, num_threads);
  const int num_warps = (num_threads + kWarp - 1) / kWarp;
  block.warps.assign(num_warps, Warp());
  block.barrier = Barrier();
  block.barrier.expected = num_threads;
  block.indices.block = dim3(static_cast<unsigned>(index));
  while (static_cast<int>(block.threads.size()) < num_threads) {
    block.threads.push_back(std::make_unique<Thread>());
  }
  for (int i = 0; i < num_threads; ++i) {
    Thread &thread = *block.threads[i];
    thread.index = dim3(static_cast<unsigned>(i));
    thread.warp = i / kWarp;
    thread.lane = i % kWarp;
    thread.warp_calls = 0;
    thread.waits_for = nullptr;
    thread.finished = false;
    thread.fibre.start(run_thread);
    ++block.warps[thread.warp].barrier.expected;
  }
}

void run_block(const char *name, int64_t index, int num_threads,
               std::mt19937 *random) {
  prepare(index, num_threads);
  std::vector<int> order(num_threads);
  std::iota(order.begin(), order.end(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    if (random != nullptr)
      std::shuffle(order.begin(), order.end(), *random);
    for (const int i : order) {
      Thread &thread = *block.threads[i];
      if (!thread.ready())
        continue;
      moved = true;
      block.running = &thread;
      block.indices.thread = thread.index;
      races::run(i, thread.fibre.stack_begin(), thread.fibre.stack_end());
      thread.fibre.resume();
      races::run(-1, nullptr, nullptr);
      if (block.error.empty())
        block.error = races::found();
      if (!block.error.empty())
        throw std::runtime_error(block.error);
    }
  }
  for (int i = 0; i < num_threads; ++i) {
    if (block.threads[i]->finished)
      continue;
    throw std::runtime_error(
        std::string("emulator: ") + name + ": thread " + std::to_string(i) +
        " waits at a barrier that other threads do not reach");
  }
}

struct Order {
  bool random = false;
  std::mt19937 generator;

  Order() {
    const char *seed = std::getenv("SPLATSTUDIO_EMULATOR_SEED");
    if (seed != nullptr)
      set(std::atoll(seed));
  }
  void set(int64_t seed) {
    random = seed >= 0;
    generator.seed(static_cast<unsigned>(seed));
  }
};

Order order_of_threads;

std::mt19937 *random_order() {
  return order_of_threads.random ? &order_of_threads.generator : nullptr;
}

} // namespace

void set_order_seed(int64_t seed) { order_of_threads.set(seed); }

int current_device() { return devices().current; }

void set_current_device(int device) {
  if (device < 0 || device >= kNumDevices)
    throw std::runtime_error("emulator: no such device");
  devices().current = device;
}

Stream *default_stream(int device) { return &devices().streams[device]; }

void *allocate(size_t bytes) {
  Arena &arena = devices().arenas[devices().current];
  // Pages of their own, so that a kernel that writes past its end can be seen
  // by a neighbor's test.
  const size_t page = 4096, size = (bytes + page) / page * page;
  if (arena.used + size > kArena)
    return nullptr;
  void *memory = arena.begin + arena.used;
  arena.used += size;
  return memory;
}

int owner_of(const void *address) {
  const char *p = static_cast<const char *>(address);
  for (int i = 0; i < kNumDevices; ++i) {
    const Arena &arena = devices().arenas[i];
    if (p >= arena.begin && p < arena.begin + kArena)
      return i;
  }
  return -1;
}

void copy(void *to, const void *from, size_t bytes) {
  if (bytes == 0)
    return;
  const int source = owner_of(from), target = owner_of(to);
  if (source >= 0)
    devices().open(source, true);
  if (target >= 0)
    devices().open(target, true);
  std::memcpy(to, from, bytes);
  if (source >= 0)
    devices().open(source, false);
  if (target >= 0)
    devices().open(target, false);
}

void launch(const char *name, int64_t blocks, int threads, Stream *stream,
            const std::function<void()> &thread) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  check_stream(name, stream);
  note_launch(std::string(name) + " " + std::to_string(blocks) + " " +
              std::to_string(threads));
  const Access access(name, current_device());
  block.body = &thread;
  block.error.clear();
  races::begin_launch(name);
  block.indices.block_dim = dim3(static_cast<unsigned>(threads));
  block.indices.grid_dim = dim3(static_cast<unsigned>(blocks));
  std::mt19937 *random = random_order();
  std::vector<int64_t> order(random == nullptr ? 0 : blocks);
  if (random != nullptr) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), *random);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    run_block(name, random == nullptr ? i : order[i], threads, random);
  }
}

void run_on_device(const char *name, Stream *stream,
                   const std::function<void()> &work) {
  check_stream(name, stream);
  note_launch(name);
  const Access access(name, current_device());
  work();
}

const Indices &indices() {
  block.indices.thread = block.running->index;
  return block.indices;
}

int block_barrier(int value) {
  return static_cast<int>(arrive(block.barrier, value, true));
}

int lane() { return block.running->lane; }

void check_mask(const char *function, unsigned mask) {
  if (mask != 0xffffffffu) {
    throw std::runtime_error(std::string("emulator: ") + function +
                             " is not for all lanes of a warp");
  }
}

// Throws where lanes of a warp have come with different functions.
static void check_same(const char *theirs, const char *ours) {
  if (std::strcmp(theirs, ours) != 0)
    throw std::runtime_error(
        std::string("emulator: lanes of a warp disagree about ") + ours);
}

uint64_t warp_exchange(const char *function, uint64_t value, int source) {
  Thread &self = *block.running;
  Warp &warp = block.warps[self.warp];
  const int64_t turn = self.warp_calls++ % 2;
  warp.values[turn][self.lane] = value;
  warp.functions[turn][self.lane] = function;
  arrive(warp.barrier, 0, false);
  check_same(source >= warp.barrier.expected ? ""
                                             : warp.functions[turn][source],
             function);
  return warp.values[turn][source];
}

void warp_barrier() {
  Thread &self = *block.running;
  Warp &warp = block.warps[self.warp];
  const int64_t turn = self.warp_calls++ % 2;
  warp.functions[turn][self.lane] = "__syncwarp";
  arrive(warp.barrier, 0, true);
  for (int i = 0; i < warp.barrier.expected; ++i)
    check_same(warp.functions[turn][i], "__syncwarp");
}

uint32_t warp_ballot(const char *function, bool value) {
  Thread &self = *block.running;
  Warp &warp = block.warps[self.warp];
  const int64_t turn = self.warp_calls++ % 2;
  warp.values[turn][self.lane] = value ? 1 : 0;
  warp.functions[turn][self.lane] = function;
  arrive(warp.barrier, 0, false);
  uint32_t bits = 0;
  for (int i = 0; i < warp.barrier.expected; ++i) {
    check_same(warp.functions[turn][i], function);
    bits |= static_cast<uint32_t>(warp.values[turn][i]) << i;
  }
  return bits;
}

} // namespace emulator
