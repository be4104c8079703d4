// wrapped.h: handles tensors that torch.func or torch.autograd.functional has wrapped.
//
// All code that depends on the kinds of wrappers is here; other files call these functions.
#pragma once
#include <ATen/core/Tensor.h>

namespace managed {

// The tensor inside all of functorch's wrappers; t itself if it is none.
at::Tensor innermost(const at::Tensor& t);

// Whether t is a wrapper of functorch's.
bool is_wrapped(const at::Tensor& t);

// Whether t is such a wrapper, or one that torch.autograd.functional makes with vectorize=True.
bool is_batched(const at::Tensor& t);

// Whether the tensor, or what functorch has wrapped in it, is managed. False for an undefined tensor.
bool holds_managed(const at::Tensor& t);

// Whether t has a tangent that is batched (vmap): then t may be a number to an operator, but its tangent is none.
bool has_wrapped_tangent(const at::Tensor& t);

} // namespace managed
