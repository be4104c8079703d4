// record.h: writes the hook's events into the core's trace, with the line of the program that they belong to.
//
// Warnings are queued here too; the binding emits them later. Nothing is counted here: the core does that.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "core/growth.h"

namespace managed {

// The id of the line of the user's program that this thread runs, or of the backward node if no line runs; 0 if
// unknown. Takes no lock but the core's and no GIL.
uint32_t call_site();

std::string readable(int64_t bytes); // "12.5 MiB"

// Writes an event, with the call site unless it has one already. `copied`: the tensor that the event copied, or null;
// too many copies of it in one step queue a warning. Never throws.
void record(mgd_event& event, const at::Tensor* copied = nullptr) noexcept;

// Ends a step for growth.c, and queues its warning if it is due. Never throws.
void end_step(enum mgd_growth_end end) noexcept;

// Asks the binding to report calls of modules as steps from now on; call it when bytes leave for the host.
void watch_calls();

// Queues a RuntimeWarning about the line that this thread runs. Throws std::bad_alloc.
void warn_later(const char* text);

// While such an object lives, copies of this thread are part of an event that its owner records.
class Recorded {
 public:
  Recorded() { depth_++; }
  ~Recorded() { depth_--; }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  static bool is_on() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

} // namespace managed
