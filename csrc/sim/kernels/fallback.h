// fallback.h: one function runs every operator on the CPU's kernel.
//
// Owns the way of a call: operands become CPU tensors over the same bytes, the
// CPU kernel runs, results and written operands come back. Nothing inside a
// simulated device is managed: the managed key is excluded here.
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "sim/facts.h"

namespace managed::sim {

// Registered per operator: carries the operator's facts, so nothing is looked up.
struct OperatorKernel final : c10::OperatorKernel {
  explicit OperatorKernel(OperatorFacts f) : facts(std::move(f)) {}
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack);
  const OperatorFacts facts;
};

// For operators that appear later (other libraries' with a CPU kernel).
void unknown_operator(const c10::OperatorHandle &op, torch::jit::Stack *stack);

}  // namespace managed::sim
