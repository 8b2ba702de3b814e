// Steps that are queued on a GPU before anybody knows whether they may be made.
#pragma once

#include <cstdint>

namespace splat {

// What says on a GPU whether a step may change anything, so that the host need not know before it
// queues the step: its picture had room for all instances, and its loss is a number.
struct StepGate {
  const int64_t* num_instances;  // null: it may
  int64_t room;
  const float* loss;
};

}  // namespace splat
