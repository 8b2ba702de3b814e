// What the tests want to know of the host: how often it waited, what it
// launched.
#include "emulator.h"

namespace emulator {
namespace {

int64_t waits = 0;
bool memory_lacks = false;
bool recording = false;
std::string launches;

} // namespace

int64_t num_waits() { return waits; }
void count_wait() { ++waits; }

void lack_memory() { memory_lacks = true; }

bool lacked_memory() {
  const bool lacked = memory_lacks;
  memory_lacks = false;
  return lacked;
}

void record_launches(bool on) {
  recording = on;
  if (on)
    launches.clear();
}

void note_launch(const std::string &launched) {
  if (recording)
    launches += launched + "\n";
}

const std::string &recorded_launches() { return launches; }

} // namespace emulator
