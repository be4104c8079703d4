// functorch.h: tensors that torch.func has wrapped, and the hook above its transforms.
//
// All that depends on functorch is here; everybody else asks these questions and knows nothing of wrappers.
#pragma once
#include <ATen/core/Tensor.h>

#include "key.h"

namespace managed {

// The tensor inside all of functorch's wrappers; itself when it is none.
at::Tensor innermost(const at::Tensor& t);

bool is_wrapped(const at::Tensor& t);

// The same, or what torch.autograd.functional wraps with vectorize=True.
bool is_batched(const at::Tensor& t);

// Whether the tensor, or what functorch has wrapped in it, is managed.
bool holds_managed(const at::Tensor& t);

// A number whose tangent vmap has made several: what computes the tangent sees no number.
bool has_wrapped_tangent(const at::Tensor& t);

void register_above_functorch(); // called by mgd_torch_init

} // namespace managed
