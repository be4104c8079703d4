// record.h: the one way of an event into the core's trace, with the line of the program that it belongs to.
//
// Warnings begin here too and are said later by the binding. Nothing is counted here: the core does that.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "core/core.h"

namespace managed {

// The line of the user's program that this thread runs, or the backward
// operator where there is no such line; 0 when unknown. Takes no lock but the core's and no GIL.
uint32_t call_site();

std::string readable(int64_t bytes); // "12.5 MiB"

// Writes an event with its call site, unless it names one already. `copied` is
// the tensor whose copy it is: too many copies of it in one step are warned of, later,
// where a warning can be said. Never throws.
void record(mgd_event& event, const at::Tensor* copied = nullptr) noexcept;

// A RuntimeWarning about the line that this thread runs, said where one can be. Throws std::bad_alloc.
void warn_later(const char* text);

// While one lives, this thread's copies are part of what somebody else records.
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
