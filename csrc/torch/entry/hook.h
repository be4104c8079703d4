// hook.h: the chokepoint, which every operator call on a managed tensor passes: the kernel of the dispatch key that
// makes tensors managed.
//
// It compares devices, lets the operator run, and marks what comes out. What to do when operands stand apart is
// align.h's, what to do when bytes are away is hold.h's. Unboxed forms of the same for frequent operators are in
// typed.cpp; both are registered by register.cpp.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/facts/facts.h"
#include "torch/facts/key.h"

namespace managed {

// The keys below ours: where a call goes on.
inline const c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

// Keys whose kernels call operators again on tensors of their own (casts,
// unwrapped batches): the key stays on, so that those calls come here too.
inline const c10::DispatchKeySet kOpen =
    c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                         c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Batched, c10::DispatchKey::VmapMode,
                         c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                         c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Tracer}) |
    c10::autocast_dispatch_keyset;

// Whether the operators that a kernel calls meet the hook too. Operands that stand together stay together inside a
// composite, and it is cheaper to mark its results than those of each of its steps.
// On an accelerator each step comes here all the same, so that what it keeps for the backward pass can leave the
// device.
inline bool meets_hook_inside(const CallFacts& f, c10::DispatchKeySet ks, bool on_host) {
  return f.route > Route::Whole || ks.has_any(kOpen) || (f.route == Route::Whole && !on_host);
}
// Whether a call on an accelerator holds its operands' storages itself: not where its steps do.
inline bool holds_operands(const CallFacts& f) { return f.route == Route::Leaf || f.route == Route::Open; }
// No byte of t is read: but torch resolves a lazy conjugate or negative, views aside, before it looks at its shape.
inline bool only_looked_at(const CallFacts& f, const at::Tensor& t) {
  constexpr c10::DispatchKeySet lazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return f.reads_shape_only && t.unsafeGetTensorImpl()->unsafe_storage() &&
      !(f.results_are_new && t.key_set().has_any(lazy));
}

// Makes a tensor managed that an operator has written: a plain one now holds what a managed operand gave it.
void mark_written_slow(const at::Tensor& t);
inline void mark_written(const at::Tensor& t) {
  if (C10_UNLIKELY(!has_key(t.unsafeGetTensorImpl()) && t.defined())) mark_written_slow(t);
}

// Makes a result managed and gives its storage a handle, with two exceptions. A view has its operand's storage: if that
// got no handle when it was made, it gets none now. In a backward pass the result of an operator that crosses devices
// gets none either: the engine reads its pointer outside any operator (InputBuffer::add).
void mark_result(const at::Tensor& t, const CallFacts& f);

// One call, arguments on the stack: aligned, run below the key, results marked.
void chokepoint(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f);
void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack); // looks the facts up
void from_top(const c10::OperatorHandle& op, c10::DispatchKeySet stale,
              torch::jit::Stack* stack); // when the keys name a device that was left meanwhile

// Alignment alone, for a hook above others: runs the call aligned; false when its operands are together and it may go
// on.
bool align_call(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpFacts& f);
bool is_frozen(); // nothing may be copied in this thread

} // namespace managed
