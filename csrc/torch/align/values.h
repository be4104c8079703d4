// values.h: copies of a tensor's values on another device, without autograd, and the trace event of each copy.
//
// trips.h connects a copy to autograd; crossing.h decides which copies are kept and shared by later uses.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "core/core.h"
#include "torch/tensor/record.h"

namespace managed {

// The cause of a copy, as the trace records it.
struct Cause {
  const char* operator_name; // static lifetime
  enum mgd_event_kind kind;
  enum mgd_reason reason;
};

// Measures one copy, from the object's construction to done(), and writes it into the trace. Copies that operators of
// this thread make meanwhile are parts of it.
class Traced {
 public:
  Traced(const at::Tensor& t, c10::Device to, const Cause& cause);
  // Attributes the copy, which brings a gradient home, to the tensor of the crossing and to the line of the program
  // that caused the crossing. It does not count as a repeated copy, because the crossing has been counted.
  void answers(uint64_t object, uint32_t site);
  // Notes that the bytes were read on this device (an id of the machine), to which they had been evicted.
  void came_from(int device) { event_.from = static_cast<int16_t>(device); }
  void done(int64_t bytes);

 private:
  const at::Tensor* copied_;
  mgd_event event_{};
  const Recorded recorded_;
};

// The id under which the trace knows t; 0 if it has none.
uint64_t object_of(const at::Tensor& t);

// Whether autograd records operators on t now.
inline bool records(const at::Tensor& t) { return c10::GradMode::is_enabled() && t.requires_grad(); }

// Whether torch itself must make and record the copy of t: t is a wrapper, or has a tangent that has to cross too.
bool needs_torch(const at::Tensor& t);

// Whether the program is being recorded: by a CUDA graph, jit tracing, a TorchDispatchMode or functorch. Then each
// crossing is a real copy. A kept one would become a constant of the recording, and a graph would read it even after
// its source was written or its memory served other tensors.
bool is_recorded();

// Whether t has a dimension with several elements at one address (stride 0).
bool is_expanded(const at::Tensor& t);

// Returns t's values on `to`, without autograd, whatever the grad mode; *bytes is how many were copied. The caller
// marks the copy and calls trace.done(). Expanded tensors cross once and stay expanded. `takes_handle`: the copy's
// storage may get a handle, so all uses of it must go through the hook. Throws c10::OutOfMemoryError.
at::Tensor copy_values(const at::Tensor& t, c10::Device to, Traced& trace, int64_t* bytes, bool takes_handle);

// Does the same, but the copy is managed and traced.
at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle = true);

// Does the same for a tensor that only the hook's own code has, in a backward pass too. Only uses of the copy wait for
// it, and it does not count as a repeated copy.
at::Tensor send_values(const at::Tensor& t, c10::Device to, const Cause& cause);

// Returns a copy that torch makes and records, managed and traced.
at::Tensor cross_by_torch(const at::Tensor& t, c10::Device to, const Cause& cause);

// Returns a copy of the host tensor t on an accelerator; no thread waits for it. Undefined: torch must make the copy.
at::Tensor copy_from_host(const at::Tensor& t, c10::Device to);

} // namespace managed
