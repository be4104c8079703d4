// move.h: tensors that change their device in place: Python's object, ties and hooks stay.
//
// move(): the program asked for it. settle() and follow(): the tensor moves by itself. The history on which settle()
// decides is core/traffic.c's. A copy on another device is crossing.h's, and its way home trips.h's. A storage that
// leaves for want of room keeps its tensor's device: that is room.h's.
#pragma once
#include <ATen/core/Tensor.h>

#include "torch/align/values.h"

namespace managed {

// Transfers t itself, and its .grad; throws where it must not.
void move(const at::Tensor& t, c10::Device to, const Cause& cause);

// t is needed on `to` and no kept copy serves. Transfers it there when its traffic
// speaks for it and nobody can notice but by its device; returns whether it did.
// `through`: the view of t by which it is needed, if it is one.
bool settle(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through = {});

// Transfers a result that is about to be written where the rest of its operator is, unless somebody could notice but by
// its device; returns whether it did.
bool follow(const at::Tensor& t, c10::Device to, const Cause& cause);

} // namespace managed
