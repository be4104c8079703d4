// values.h: copies of a tensor's values on another device, without autograd, and the trace event of each copy.
//
// What autograd hears of a copy is in trips.h; which copies are kept for the next use, and by which use, in crossing.h.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "core/core.h"
#include "torch/tensor/record.h"

namespace managed {

// What asks for a copy and why; ends up in the trace.
struct Cause {
  const char* operator_name; // static lifetime
  enum mgd_event_kind kind;
  enum mgd_reason reason;
};

// Measures one copy, from its construction to done(), and writes it into the trace. Copies that operators of this
// thread make meanwhile are parts of it.
class Traced {
 public:
  Traced(const at::Tensor& t, c10::Device to, const Cause& cause);
  // For the copy that brings a gradient home: it belongs to the tensor of the crossing and to the line of the program
  // that caused it. It does not count as a repeated copy, because the crossing has been counted.
  void answers(uint64_t object, uint32_t site);
  // The bytes were read on this device (an id of the machine), where they had gone for want of room.
  void came_from(int device) { event_.from = static_cast<int16_t>(device); }
  void done(int64_t bytes);

 private:
  const at::Tensor* copied_;
  mgd_event event_{};
  const Recorded recorded_;
};

// The id under which the trace knows t; 0 if it has none.
uint64_t object_of(const at::Tensor& t);

// Whether autograd records what is done with t now.
inline bool records(const at::Tensor& t) { return c10::GradMode::is_enabled() && t.requires_grad(); }

// Whether torch itself must make and record the copy of t: t is a wrapper, or has a tangent that has to cross too.
bool needs_torch(const at::Tensor& t);

// Whether the program is being recorded: by a CUDA graph, jit tracing, a TorchDispatchMode or functorch. Then each
// crossing is a real copy. A kept one would become a constant of the recording, and a graph would read it even after
// its source was written or its memory served other tensors.
bool is_recorded();

// Whether t has a dimension of several elements that are one in memory.
bool is_expanded(const at::Tensor& t);

// t's values on `to`, without autograd, whatever the grad mode; *bytes is how many were copied. The caller marks the
// copy and ends the trace. Expanded tensors cross once and stay expanded. `takes_handle`: the copy's storage may be one
// that can leave, so all uses of it go through the hook. Throws c10::OutOfMemoryError.
at::Tensor copy_values(const at::Tensor& t, c10::Device to, Traced& trace, int64_t* bytes, bool takes_handle);

// The same, managed and traced.
at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle = true);

// A copy that torch makes and records, managed and traced.
at::Tensor cross_by_torch(const at::Tensor& t, c10::Device to, const Cause& cause);

// A copy on an accelerator of what is on the host, for which no thread waits. Undefined: torch has to make it.
at::Tensor copy_from_host(const at::Tensor& t, c10::Device to);

} // namespace managed
