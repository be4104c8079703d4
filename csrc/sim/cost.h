// cost.h: what an operator costs in virtual time.
//
// Owns counting bytes and arithmetic; the clock (csrc/core/clock.c) turns them
// into time. A roofline: an operator lasts as long as the slower of the two.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "facts.h"

namespace managed::sim {

// Bytes a kernel has to read or write for this tensor: expanded elements are read once.
double touched_bytes(const at::Tensor &t);

// Arithmetic of one call: fixed + per_output * (elements of the first result).
// Convolutions know their output's size only afterwards.
struct Arithmetic {
  double fixed = 0, per_output = 0;
};
Arithmetic count_flops(Flops kind, c10::ArrayRef<c10::IValue> arguments);

}  // namespace managed::sim
