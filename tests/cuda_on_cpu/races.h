// Finds races in the emulated kernels: two threads that touch the same byte, at
// least one of them to write it, with nothing between them that orders memory.
//
// What orders memory is a barrier of the block and __syncwarp, and nothing
// else: shuffles and ballots make lanes wait for each other but promise nothing
// of what they have written. Blocks of a launch are never ordered. The kernels
// are compiled with -fsanitize=thread, whose calls are answered here instead of
// by its library: each access is compared with a vector clock of each thread
// (Flanagan and Freund 2009, FastTrack).
//
// Only the extension `races` is compiled so (SPLAT_RACES); in the others all of
// this is nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace races {

#if defined(SPLAT_RACES)

// How far each thread of a block was when it was last heard of.
using Clock = std::vector<uint32_t>;

// Forgets what earlier launches, and the block before in its shared memory,
// have touched.
void begin_launch(const char *kernel);
void begin_block(int64_t block, int num_threads);
// `thread` runs from now on; -1: the host. Its own stack is not looked at.
void run(int thread, const void *stack_begin, const void *stack_end);
// The running thread comes to a barrier that orders memory (`first`: as the
// first one), and goes on behind it.
void arrive(Clock &met, bool first);
void leave(const Clock &met);
// The running thread changes memory in one step.
void note_atomic(const void *address, size_t size);
// A sentence on the first race since the launch began; empty: none.
const std::string &found();

#else

struct Clock {};
inline void begin_launch(const char *) {}
inline void begin_block(int64_t, int) {}
inline void run(int, const void *, const void *) {}
inline void arrive(Clock &, bool) {}
inline void leave(const Clock &) {}
inline void note_atomic(const void *, size_t) {}
inline std::string found() { return {}; }

#endif

} // namespace races
