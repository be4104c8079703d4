// crossing.h: copies of a tensor on another device that all its uses there share.
//
// Where a tensor is needed, and whether it should rather move, is decided by the caller and in move.h. How the values
// are copied is in values.h, how gradients come home in trips.h, which copies are kept in replica.h.
#pragma once
#include "torch/align/values.h"

namespace managed {

// t's values on `to`, managed. With grad mode on, a gradient of the copy arrives at t on t's own device. Expanded
// tensors cross once and stay expanded. The copy is shared with all other uses of t there: it must not be written. A
// leaf that is needed there alone may move instead; then the result is t itself. Throws c10::OutOfMemoryError.
at::Tensor cross(const at::Tensor& t, c10::Device to, const Cause& cause);

} // namespace managed
