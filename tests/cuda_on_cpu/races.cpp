#include "races.h"

#if defined(SPLAT_RACES)

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>

namespace races {
namespace {

struct Access {
  int thread;
  uint32_t time; // of the thread, by its own clock
  bool atomic;
  const void *code;
};

// What is known of one byte. The reads are those since it was last written.
struct Cell {
  int64_t write_block = -1, read_block = -1;
  bool read_by_other_block = false;
  Access write = {};
  std::vector<Access> reads;
};

// What a block shares is static memory of this extension; most of it lies where
// the linker was told to put it, not that of templates.
constexpr uintptr_t kPage = 4096;
struct Page {
  bool shared;
  Cell cells[kPage];
};

bool is_static(uintptr_t address) {
  Dl_info own = {}, other = {};
  dladdr(reinterpret_cast<const void *>(&is_static), &own);
  return dladdr(reinterpret_cast<const void *>(address), &other) != 0 &&
         other.dli_fbase == own.dli_fbase;
}

class Memory {
public:
  Page &page_of(uintptr_t address) {
    const uintptr_t number = address / kPage;
    if (last_ == nullptr || number != last_number_) {
      std::unique_ptr<Page> &page = pages_[number];
      if (page == nullptr) {
        page = std::make_unique<Page>();
        page->shared = is_static(address);
      }
      last_ = page.get();
      last_number_ = number;
    }
    return *last_;
  }
  void clear() {
    pages_.clear();
    last_ = nullptr;
  }
  void clear_shared() {
    for (auto page = pages_.begin(); page != pages_.end();)
      page = page->second->shared ? pages_.erase(page) : std::next(page);
    last_ = nullptr;
  }

private:
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  Page *last_ = nullptr;
  uintptr_t last_number_ = 0;
};

struct State {
  const char *kernel = "";
  std::string found;
  Memory memory;
  int64_t block = 0;
  std::vector<Clock> clocks; // of each thread of the block
  int running = -1;
  uintptr_t stack_begin = 0, stack_end = 0;
};

State state;

// As addr2line takes it: the offset within this extension.
std::string place(const void *code) {
  Dl_info info = {};
  dladdr(code, &info);
  char text[32];
  std::snprintf(text, sizeof(text), "+0x%zx",
                static_cast<size_t>(static_cast<const char *>(code) -
                                    static_cast<const char *>(info.dli_fbase)));
  return text;
}

void report(const char *now, const Access &self, const char *before,
            const Access &other, bool same_block, uintptr_t address) {
  if (!state.found.empty())
    return;
  const std::string whose =
      same_block ? "thread " + std::to_string(other.thread) : "another block";
  state.found = std::string("emulator: race in ") + state.kernel + ": thread " +
                std::to_string(self.thread) + " of block " +
                std::to_string(state.block) + " " + now + " " +
                (state.memory.page_of(address).shared ? "shared" : "global") +
                " memory that " + whose + " " + before +
                " with nothing between that orders memory (addr2line: " +
                place(self.code) + ", " + place(other.code) + ")";
}

// Whether the running thread knows of all that another one had done until then.
bool is_before(const Access &other) {
  return other.time <= state.clocks[state.running][other.thread];
}

void compare(const char *now, const Access &self, const char *before,
             const Access &other, int64_t block, uintptr_t address) {
  const bool same_block = block == state.block;
  if (self.atomic && other.atomic)
    return;
  if (same_block && (other.thread == self.thread || is_before(other)))
    return;
  report(now, self, before, other, same_block, address);
}

void note_read(Cell &cell, const Access &self, uintptr_t address) {
  if (cell.write_block >= 0)
    compare("reads", self, "wrote", cell.write, cell.write_block, address);
  if (cell.read_block != state.block) {
    cell.read_by_other_block |= cell.read_block >= 0 && !cell.reads.empty();
    cell.reads.clear();
    cell.read_block = state.block;
  }
  const auto same = std::find_if(
      cell.reads.rbegin(), cell.reads.rend(),
      [&](const Access &read) { return read.thread == self.thread; });
  if (same == cell.reads.rend())
    cell.reads.push_back(self);
  else
    *same = self;
}

void note_write(Cell &cell, const Access &self, uintptr_t address) {
  if (cell.write_block >= 0)
    compare(self.atomic ? "adds to" : "writes", self, "wrote", cell.write,
            cell.write_block, address);
  for (const Access &read : cell.reads)
    compare(self.atomic ? "adds to" : "writes", self, "read", read,
            cell.read_block, address);
  if (cell.read_by_other_block)
    report("writes", self, "read", self, false, address);
  // A write in one step does not make up for a plain one of the same thread
  // just before.
  const bool again = cell.write_block == state.block &&
                     cell.write.thread == self.thread &&
                     cell.write.time == self.time && !cell.write.atomic;
  cell.write_block = state.block;
  cell.write = self;
  cell.write.atomic = self.atomic && !again;
  cell.reads.clear();
}

void note(const void *memory, size_t size, bool writes, bool atomic,
          const void *code) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  if (state.running < 0 ||
      (begin >= state.stack_begin && begin < state.stack_end))
    return;
  const Access self = {
      state.running, state.clocks[state.running][state.running], atomic, code};
  for (uintptr_t address = begin; address < begin + size; ++address) {
    Cell &cell = state.memory.page_of(address).cells[address % kPage];
    if (writes)
      note_write(cell, self, address);
    else
      note_read(cell, self, address);
  }
}

} // namespace

void begin_launch(const char *kernel) {
  state.kernel = kernel;
  state.found.clear();
  state.memory.clear();
}

void begin_block(int64_t block, int num_threads) {
  state.block = block;
  state.memory.clear_shared();
  state.clocks.assign(num_threads, Clock(num_threads, 0));
  for (int i = 0; i < num_threads; ++i)
    state.clocks[i][i] = 1;
}

void run(int thread, const void *stack_begin, const void *stack_end) {
  state.running = thread;
  state.stack_begin = reinterpret_cast<uintptr_t>(stack_begin);
  state.stack_end = reinterpret_cast<uintptr_t>(stack_end);
}

void arrive(Clock &met, bool first) {
  const Clock &own = state.clocks[state.running];
  if (first)
    met.assign(own.size(), 0);
  for (size_t i = 0; i < own.size(); ++i)
    met[i] = std::max(met[i], own[i]);
}

void leave(const Clock &met) {
  Clock &own = state.clocks[state.running];
  own = met;
  ++own[state.running];
}

void note_atomic(const void *address, size_t size) {
  note(address, size, true, true, __builtin_return_address(0));
}

const std::string &found() { return state.found; }

} // namespace races

// What the compiler calls before each access of the kernels.
#define SPLAT_ACCESS(name, size, writes)                                       \
  extern "C" __attribute__((visibility("hidden"))) void __tsan_##name(         \
      const void *memory) {                                                    \
    races::note(memory, size, writes, false, __builtin_return_address(0));     \
  }
#define SPLAT_ACCESSES(size)                                                   \
  SPLAT_ACCESS(read##size, size, false)                                        \
  SPLAT_ACCESS(write##size, size, true)                                        \
  SPLAT_ACCESS(unaligned_read##size, size, false)                              \
  SPLAT_ACCESS(unaligned_write##size, size, true)
SPLAT_ACCESSES(1)
SPLAT_ACCESSES(2)
SPLAT_ACCESSES(4)
SPLAT_ACCESSES(8)
SPLAT_ACCESSES(16)

#define SPLAT_HIDDEN extern "C" __attribute__((visibility("hidden")))
SPLAT_HIDDEN void __tsan_read_range(const void *memory, size_t size) {
  races::note(memory, size, false, false, __builtin_return_address(0));
}
SPLAT_HIDDEN void __tsan_write_range(const void *memory, size_t size) {
  races::note(memory, size, true, false, __builtin_return_address(0));
}
SPLAT_HIDDEN void __tsan_init() {}
SPLAT_HIDDEN void __tsan_func_entry(const void *) {}
SPLAT_HIDDEN void __tsan_func_exit() {}
SPLAT_HIDDEN void __tsan_vptr_read(const void *) {}
SPLAT_HIDDEN void __tsan_vptr_update(void **, void *) {}

#endif
