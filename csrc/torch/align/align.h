// align.h: brings the operands of one call together on the device that the core names.
//
// The rules themselves are elsewhere: csrc/core/placement/place.c (which device), rules.cpp (what an operator demands).
// How a copy is made is values.h's, what autograd hears of it trips.h's and crossing.h's.
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
  // A 0-dim CPU tensor is a number to operators that natively mix.
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

// Are all operands where the kernel wants them? The only question on the hot path.
bool together(const OpFacts& f, const torch::jit::Stack& stack, std::size_t base);

// The device for these operands, or nothing when one of them, or the generator, is on a device that is not ours to
// align. The one that `follows` (or null) is written and yet goes where the others are.
std::optional<Choice> choose(const OpFacts& f, const Operands& operands, const c10::IValue& generator,
                             const Operand* follows = nullptr);

// Puts copies of operands that are elsewhere on the stack. True: one was replaced, and write_backs says what must go
// back after the call.
bool align(const OpFacts& f, torch::jit::Stack& stack, std::size_t base, WriteBacks& write_backs);

// A copy for a written operand, and the way back of all of them.
at::Tensor cross_written(const at::Tensor& t, c10::Device to, bool hidden, const Cause& cause);
void finish(WriteBacks& write_backs);

// What a list operator finds among its arguments, each of which it sees with all its tensors.
struct Load {
  int64_t bytes = 0;
  std::size_t rows = 0;
  c10::Device device = c10::kCPU;

  void see(const at::Tensor& t) {
    bytes += bytes_of(t);
    if (t.defined() && !t.is_cpu()) device = t.device();
  }
  bool wants_pieces() const; // they would fill too much of the device
};

// A list operator whose rows live on several devices: one call per device. Arguments are replaced by results.
void call_rows(const c10::OperatorHandle& op, const OpFacts& f, torch::jit::Stack& stack);

} // namespace managed
