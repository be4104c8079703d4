// wrapped.cpp: see wrapped.h.
#include "torch/tensor/wrapped.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include "torch/facts/compat.h"
#include "torch/facts/key.h"

namespace managed {

at::Tensor innermost(const at::Tensor& t) {
  at::Tensor inner = t;
  while (inner.defined()) {
    if (is_grad_wrapper(inner)) inner = at::Tensor(wrapped_by(inner));
    else if (const auto* batched = at::functorch::maybeGetBatchedImpl(inner)) inner = at::Tensor(batched->value());
    else break;
  }
  return inner;
}

bool is_wrapped(const at::Tensor& t) {
  constexpr c10::DispatchKeySet wrappers({c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  return t.key_set().has_any(wrappers);
}

bool is_batched(const at::Tensor& t) { return is_wrapped(t) || t.key_set().has(c10::DispatchKey::Batched); }

bool has_wrapped_tangent(const at::Tensor& t) {
  const at::Tensor& tangent = t._fw_grad(/*level=*/0);
  return tangent.defined() && is_batched(tangent);
}

bool holds_managed(const at::Tensor& t) { return t.defined() && has_key(innermost(t).unsafeGetTensorImpl()); }

} // namespace managed
