// hook.h: the chokepoint, which every operator call on a managed tensor passes: the kernel of the dispatch key that
// makes tensors managed.
//
// It compares devices, runs the operator, and marks the results. align.h aligns operands on different devices, hold.h
// restores bytes that are away. typed.cpp has unboxed versions for frequent operators; register.cpp registers both.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/facts/facts.h"
#include "torch/facts/key.h"

namespace managed {

// The keys below managed's key: a call goes on with these.
inline const c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

// Keys whose kernels call operators again on tensors of their own (casts, unwrapped batches): managed's key stays
// included, so that those calls come to the hook too.
inline const c10::DispatchKeySet kOpen =
    c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                         c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Batched, c10::DispatchKey::VmapMode,
                         c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                         c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Tracer}) |
    c10::autocast_dispatch_keyset;

// Whether the operators that a kernel calls come to the hook too. Operands on one device stay there inside a composite,
// and it is cheaper to mark its results than those of each of its steps. On an accelerator each step comes to the hook
// all the same, so that tensors saved for the backward pass can leave the device.
inline bool meets_hook_inside(const CallFacts& f, c10::DispatchKeySet ks, bool on_host) {
  return f.route > Route::Whole || ks.has_any(kOpen) || (f.route == Route::Whole && !on_host);
}
// Whether a call on an accelerator holds its operands' storages itself; false if its steps do.
inline bool holds_operands(const CallFacts& f) { return f.route == Route::Leaf || f.route == Route::Open; }
// Whether no byte of t is read. False for a lazy conjugate or negative, unless the results are views: torch resolves it
// first, even if only its shape is needed.
inline bool only_looked_at(const CallFacts& f, const at::Tensor& t) {
  constexpr c10::DispatchKeySet lazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return f.reads_shape_only && t.unsafeGetTensorImpl()->unsafe_storage() &&
      !(f.results_are_new && t.key_set().has_any(lazy));
}

// Makes a tensor managed that an operator has written: if it was plain, it now holds a managed operand's values.
void mark_written_slow(const at::Tensor& t);
inline void mark_written(const at::Tensor& t) {
  if (C10_UNLIKELY(!has_key(t.unsafeGetTensorImpl()) && t.defined())) mark_written_slow(t);
}

// Makes a result managed and gives its storage a handle, with two exceptions. A view shares its operand's storage,
// which gets no handle now if it got none when it was made. In a backward pass the result of an operator that copies
// between devices gets none, because the engine reads its pointer outside of any operator (InputBuffer::add).
void mark_result(const at::Tensor& t, const CallFacts& f);

// Handles one call with its arguments on the stack: aligns them, runs the operator below the key, marks the results.
void chokepoint(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f);
void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack); // looks up the facts
void from_top(const c10::OperatorHandle& op, c10::DispatchKeySet stale,
              torch::jit::Stack* stack); // calls op again, because a move has made the key set `stale`

// Only aligns, for the hook above functorch: if operands are apart, runs the call aligned and returns true. False: the
// caller goes on with the call.
bool align_call(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpFacts& f);
bool is_frozen(); // true: nothing may be copied in this thread (managed.frozen)

} // namespace managed
