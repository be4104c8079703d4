// requested_copies.h: counts the copies between devices that the program asks for by an operator of torch (`b.cpu()`,
// `a.copy_(b)`).
//
// They are torch's own copies: nothing is copied or decided here. What managed copies by itself is recorded where that
// is decided.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "torch/facts/facts.h"
#include "torch/tensor/record.h"

namespace managed {

// One call of copy_, _to_copy or _local_scalar_dense (item). Counts it in the end, if bytes of a managed tensor, or
// for one, have gone from one device to another and nobody else tells of that.
class RequestedCopy {
 public:
  RequestedCopy(const OpFacts& f, const torch::jit::Stack& stack); // before the kernel takes the stack
  void done(const torch::jit::Stack& stack) noexcept;          // it has run, and its result is on top

 private:
  const OpFacts& facts_;
  at::Tensor source_; // undefined: there is nothing to count
  int64_t began_ = 0;
  std::optional<Recorded> recorded_; // what the kernel calls in its turn
};

// The id of the device that the bytes go to; -1 where the program leaves it to torch.
int target_of_copy(const OpFacts& f, const torch::jit::Stack& stack);

} // namespace managed
