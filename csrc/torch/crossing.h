// crossing.h: copies of one tensor on another device, recorded by autograd, and how their gradients come back.
//
// Where a tensor is needed, and whether it should rather move, is decided by the caller and in move.h. Which copies are
// kept for the next use is replica.h's.
#pragma once
#include <ATen/core/Tensor.h>

#include "../core/core.h"
#include "compat.h"

namespace managed {

// Who asked for a crossing and why; ends up in the trace.
struct Cause {
  const char* operator_name; // static lifetime
  enum mgd_event_kind kind;
  enum mgd_reason reason;
};

// t's values on `to`, managed. With grad mode on, a gradient of the copy
// arrives at t on t's own device. Expanded tensors cross once and stay expanded.
// The copy is shared with all other uses of t there: nobody may write it. A leaf
// that is needed there alone may move instead; then the result is t itself.
at::Tensor cross(const at::Tensor& t, c10::Device to, const Cause& cause);

// The same as a copy of its own, for an operator that writes it or gives it out.
at::Tensor cross_alone(const at::Tensor& t, c10::Device to, const Cause& cause);

// The same without autograd, whatever the grad mode.
// `takes_handle`: the copy's storage may be one that can leave, so whoever uses it goes through the hook.
at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle = true);

// A copy on an accelerator of what is on the host, for which nobody waits. Undefined: torch has to make it.
at::Tensor copy_from_host(const at::Tensor& t, c10::Device to);

// Another tensor object over the same bytes, connected to t by autograd and not yet managed.
at::Tensor alias_of(const at::Tensor& t);

// Gradients that `end` sends to the accumulator of `leaf`, where `before` was, go on to where the leaf has moved.
void lead_home(const NodePtr& end, const at::Tensor& leaf, const at::Tensor& before);

} // namespace managed
