// crossing.h: copies of a tensor on another device that all its uses there share.
//
// The caller decides where a tensor is needed, and move.h whether it moves instead. values.h copies the values, trips.h
// sends gradients home, and replica.h keeps the copies.
#pragma once
#include "torch/align/values.h"

namespace managed {

// Returns t's values on `to`, managed. With grad mode on, a gradient of the copy arrives at t on t's own device.
// Expanded tensors cross once and stay expanded. All uses of t on `to` share the copy, so it must not be written. A
// leaf that is needed only there may move instead; then the result is t itself. Throws c10::OutOfMemoryError.
at::Tensor cross(const at::Tensor& t, c10::Device to, const Cause& cause);

// Whether a current copy of t is kept on `to`, so that cross() would copy nothing.
bool has_crossed(const at::Tensor& t, c10::Device to);

} // namespace managed
