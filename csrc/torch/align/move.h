// move.h: moves tensors to another device in place: the Python object, ties and hooks stay.
//
// move() does it because the program asked; settle() and follow() do it by themselves. settle() decides by the history
// in core/traffic.c. For copies on another device see crossing.h, for their gradients trips.h. A storage that is
// evicted keeps its tensor's device: see room.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "torch/align/values.h"
#include "torch/facts/compat.h"

namespace managed {

// Moves t itself and its .grad. Throws c10::Error if t is pinned, a view or no leaf.
void move(const at::Tensor& t, c10::Device to, const Cause& cause);

// Returns the accumulators that t had before it moved and that graphs still hold. A pass that is asked for gradients of
// t finds t in those graphs by them.
std::vector<NodePtr> earlier_accumulators(const at::Tensor& t);

// Moves t to `to`, where an operator needs it and no kept copy serves, if its traffic advises it and the move can be
// noticed only by t's device. Returns whether it moved. `through`: the view of t that the operator uses, if it is one.
bool settle(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through = {});

// Moves a result that is about to be written to where the operator's other operands are, if the move can be noticed
// only by its device. Returns whether it moved.
bool follow(const at::Tensor& t, c10::Device to, const Cause& cause);

} // namespace managed
