// cost.h: what an operator costs in virtual time.
//
// Counts bytes and arithmetic, and finds the precision of the numbers; the clock
// (csrc/clock/clock.c) turns them into time. The model is a roofline: an operator
// lasts as long as the slower of the two.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "clock/clock.h"
#include "sim/facts.h"

namespace managed::sim {

// Returns the bytes that a kernel has to read or write for this tensor: expanded elements are read once.
double touched_bytes(const at::Tensor &t);

// The arithmetic of one call is fixed + per_output * (elements of the first result):
// a convolution's output size is known only afterwards.
struct Arithmetic {
  double fixed = 0, per_output = 0;
  mgd_work_kind kind = MGD_WORK_ELEMENTWISE;
  mgd_precision precision = MGD_FLOAT32;
};
Arithmetic count_flops(Flops kind, c10::ArrayRef<c10::IValue> arguments);

// An operator that the table in facts.cpp does not list does one operation for each element of its first result.
Arithmetic elementwise(const at::Tensor &result);

}  // namespace managed::sim
