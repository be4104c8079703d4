// aligned_call.h: calls an operator whose operands have been brought together, so that the hook lets it pass.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torch/facts/facts.h"

namespace managed {

// The operator whose operands this thread has just brought together, or null. callBoxed starts again at the top with
// the right key set and comes to the hook once more; the mark lets that one call pass without a second check.
extern constinit thread_local const OpFacts* aligned_call __attribute__((tls_model("initial-exec")));

// Calls op from the top with operands that need no second check. The results replace the arguments on the stack.
void call_aligned(const c10::OperatorHandle& op, const OpFacts& f, torch::jit::Stack& stack);

// Whether this is the call that call_aligned() has begun. Clears the mark, so it returns true once.
inline bool just_aligned(const OpFacts& f) {
  if (C10_LIKELY(aligned_call != &f)) return false;
  aligned_call = nullptr;
  return true;
}

} // namespace managed
