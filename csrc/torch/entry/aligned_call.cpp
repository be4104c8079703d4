// aligned_call.cpp: see aligned_call.h.
#include "torch/entry/aligned_call.h"

namespace managed {

constinit thread_local const OpFacts* aligned_call __attribute__((tls_model("initial-exec"))) = nullptr;

void call_aligned(const c10::OperatorHandle& op, const OpFacts& f, torch::jit::Stack& stack) {
  struct Restore {
    const OpFacts* outer = aligned_call;
    ~Restore() { aligned_call = outer; }
  } restore;
  aligned_call = &f;
  op.callBoxed(&stack);
}

} // namespace managed
