// Runs CUDA kernels on the CPU: the threads of a block are fibres, blocks come
// one after the other.
//
// It is stricter than a GPU. Every thread of a block must reach each barrier,
// every lane of a warp must call the same warp function and for all lanes,
// memory that a block shares is spoilt before it begins, and memory of a
// pretend device may be touched only by kernels (and copies) while that device
// is current; each breach ends in an error that names the kernel. With
// SPLATSTUDIO_EMULATOR_SEED set (or set_order_seed) blocks and threads run in
// random orders, to bring races to light.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
      : x(x), y(y), z(z) {}
};

namespace emulator {

constexpr int kNumDevices = 4;

struct Stream {
  int device;
};

// ---- devices

int current_device();
void set_current_device(int device);
Stream *default_stream(int device);
// Memory of the current device; null when it is exhausted.
void *allocate(size_t bytes);
// The device whose memory this is, -1 for ordinary memory.
int owner_of(const void *address);
// Copies between host and the devices; the current device does not matter.
void copy(void *to, const void *from, size_t bytes);

// How often the host had to wait for a device so far, and that it has to once
// more.
int64_t num_waits();
void count_wait();

// The next launch fails, as one whose code finds no room on a full device; and
// whether one just has.
void lack_memory();
bool lacked_memory();

// What was launched since recording began, a line each: the name, and of a
// kernel the blocks and the threads of each.
void record_launches(bool on);
void note_launch(const std::string &launched);
const std::string &recorded_launches();

// ---- kernels

void launch(const char *name, int64_t blocks, int threads, Stream *stream,
            const std::function<void()> &thread);
// Work of a library call (a sort): on the current device's memory, checked as a
// kernel is.
void run_on_device(const char *name, Stream *stream,
                   const std::function<void()> &work);

// Blocks and threads run in random orders of this seed from now on; -1: one
// after the other.
void set_order_seed(int64_t seed);

struct Indices {
  dim3 thread, block, block_dim, grid_dim;
};
const Indices &indices();

// All threads of the block wait for each other; returns the sum of their
// values.
int block_barrier(int value);

// What lane `source` of this warp passed to the same call. `source` outside
// 0..31 or below the shuffle's reach is the caller's concern. `function` names
// the call.
uint64_t warp_exchange(const char *function, uint64_t value, int source);
// All lanes of the warp wait for each other, and see what each has written.
void warp_barrier();
// Bit i: what lane i passed was not 0.
uint32_t warp_ballot(const char *function, bool value);
int lane();
// Throws where a warp function is not called for all lanes, which is all that
// is emulated.
void check_mask(const char *function, unsigned mask);

template <typename T> T shuffle(const char *function, T value, int source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(function, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

} // namespace emulator
