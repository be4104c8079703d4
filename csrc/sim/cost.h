// cost.h: what an operator costs in virtual time.
//
// Owns counting bytes and arithmetic, and on what numbers it is done; the clock
// (csrc/clock/clock.c) turns them into time. A roofline: an operator lasts as long
// as the slower of the two.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "clock/clock.h"
#include "sim/facts.h"

namespace managed::sim {

// Bytes a kernel has to read or write for this tensor: expanded elements are read once.
double touched_bytes(const at::Tensor &t);

// Arithmetic of one call: fixed + per_output * (elements of the first result).
// Convolutions know their output's size only afterwards.
struct Arithmetic {
  double fixed = 0, per_output = 0;
  mgd_work_kind kind = MGD_WORK_ELEMENTWISE;
  mgd_precision precision = MGD_FLOAT32;
};
Arithmetic count_flops(Flops kind, c10::ArrayRef<c10::IValue> arguments);

// Of operators that the table in facts.cpp does not list: one operation for each element of the first result.
Arithmetic elementwise(const at::Tensor &result);

}  // namespace managed::sim
