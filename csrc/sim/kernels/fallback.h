// fallback.h: one function runs every operator on the CPU's kernel.
//
// In a call, operands become CPU tensors over the same bytes, the CPU kernel
// runs, and results and written operands become the device's again. Nothing
// inside a simulated device is managed: the managed key is excluded here.
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "sim/facts.h"

namespace managed::sim {

// One is registered for each operator. It holds the operator's facts, so a call looks nothing up.
struct OperatorKernel final : c10::OperatorKernel {
  explicit OperatorKernel(OperatorFacts f) : facts(std::move(f)) {}
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack);
  const OperatorFacts facts;
};

// Runs operators that are registered later (those of other libraries that have a CPU kernel).
void unknown_operator(const c10::OperatorHandle &op, torch::jit::Stack *stack);

}  // namespace managed::sim
