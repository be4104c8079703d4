// align.h: brings the operands of one call together on the device that the core names.
//
// The rules themselves are elsewhere: csrc/core/placement/place.c (which device), rules.cpp (what an operator demands).
// values.h makes the copies; trips.h and crossing.h connect them to autograd.
#pragma once
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "torch/devices/devices.h"
#include "torch/facts/facts.h"
#include "torch/align/values.h"
#include "torch/tensor/wrapped.h"

namespace managed {

// One tensor among the arguments of a call.
struct Operand {
  at::Tensor tensor;
  const TensorArg* arg;
  int position; // in its list, or -1

  bool is(uint8_t flags) const { return (arg->flags & flags) != 0; }
  // Operators that mix devices natively take a 0-dim CPU tensor as a number.
  bool is_number() const { return tensor.device().is_cpu() && tensor.dim() == 0 && !has_wrapped_tangent(tensor); }
};
using Operands = c10::SmallVector<Operand, 8>;

// A written operand that ran as a copy: the result goes back into the original.
struct WriteBack {
  at::Tensor original, copy;
  bool hidden; // a write that autograd does not see
};
using WriteBacks = c10::SmallVector<WriteBack, 2>;

struct Choice {
  c10::Device device;
  enum mgd_reason reason;
};

// Whether all operands are where the kernel wants them. It is the only check on the hot path.
bool together(const OpFacts& f, const torch::jit::Stack& stack, std::size_t base);

// The device for these operands, or nothing if one of them, or the generator, is on a device that the machine does not
// know. The operand `follows` (may be null) is written, yet goes to where the other operands are.
std::optional<Choice> choose(const OpFacts& f, const Operands& operands, const c10::IValue& generator,
                             const Operand* follows = nullptr);

// Replaces operands on the stack that are elsewhere by copies. True: at least one was replaced, and write_backs lists
// what must be copied back after the call.
bool align(const OpFacts& f, torch::jit::Stack& stack, std::size_t base, WriteBacks& write_backs);

// Replaces operands on the stack that are on accelerators by copies on the host, for an operator that writes none.
void bring_to_host(const OpFacts& f, torch::jit::Stack& stack, std::size_t base);

// cross_written() makes a copy for a written operand; finish() copies all of them back into their originals.
at::Tensor cross_written(const at::Tensor& t, c10::Device to, bool hidden, const Cause& cause);
void finish(WriteBacks& write_backs);

// Sums up the arguments of a list operator; see() is called with each tensor of each argument.
struct Load {
  int64_t bytes = 0;
  std::size_t rows = 0;
  c10::Device device = c10::kCPU;

  void see(const at::Tensor& t) {
    bytes += bytes_of(t);
    if (t.defined() && !t.is_cpu()) device = t.device();
  }
  bool wants_pieces() const; // one call for all of them would fill too much of the device
};

// Runs a list operator whose rows live on several devices, or do not fit into one call: at least one call per device.
// Results replace the arguments on the stack.
void call_rows(const c10::OperatorHandle& op, const OpFacts& f, torch::jit::Stack& stack);

} // namespace managed
