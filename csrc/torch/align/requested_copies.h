// requested_copies.h: counts the copies between devices that the program asks for by an operator of torch (`b.cpu()`,
// `a.copy_(b)`).
//
// They are torch's own copies: nothing is copied or decided here. Copies that managed makes by itself are recorded
// where they are decided.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "torch/facts/facts.h"
#include "torch/tensor/record.h"

namespace managed {

// One call of copy_, _to_copy or _local_scalar_dense (item). done() records it if bytes from or to a managed tensor
// went from one device to another, unless the call is part of a copy that is recorded already.
class RequestedCopy {
 public:
  RequestedCopy(const OpFacts& f, const torch::jit::Stack& stack); // is made before the kernel takes the stack
  void done(const torch::jit::Stack& stack) noexcept;          // the kernel has run; its result is on top

 private:
  const OpFacts& facts_;
  at::Tensor source_; // undefined: there is nothing to count
  int64_t began_ = 0;
  std::optional<Recorded> recorded_; // copies that the kernel calls in its turn are part of this one
};

// The id of the device that the bytes go to; -1 if the program named it without an index, or if it is not in the
// machine.
int target_of_copy(const OpFacts& f, const torch::jit::Stack& stack);

} // namespace managed
