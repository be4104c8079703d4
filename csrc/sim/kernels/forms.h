// forms.h: a cache of the forms of results (sizes, strides, dtypes), by the forms of the operands.
//
// Devices without values get forms from meta kernels. Many of torch's are written in Python and take up to 2.4 ms, so
// each runs once for the same operands. Owns the cache; runs no kernel.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/facts.h"

namespace managed::sim {

// The form of a result: a written operand (recall() puts a None), a tensor, a list of tensors, or another value.
struct Form {
  struct Strided {
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    std::size_t bytes;
    caffe2::TypeMeta dtype;
  };
  enum class Kind : uint8_t { written, tensor, list, other } kind = Kind::other;
  std::vector<std::optional<Strided>> tensors;  // nullopt: an undefined tensor
  c10::IValue other;
};

class Question {
 public:
  // The arguments are meta tensors and numbers. Calls with other arguments, and views, are not cached.
  Question(const OperatorFacts &facts, c10::ArrayRef<c10::IValue> arguments);
  // Replaces the arguments by the cached results; false if there are none.
  bool recall(torch::jit::Stack *stack) const;
  // Caches what a kernel has put there, unless results share bytes with the arguments or these have changed their form.
  void remember(const torch::jit::Stack &stack, c10::ArrayRef<c10::IValue> arguments);

 private:
  const OperatorFacts &facts_;
  const std::size_t count_;
  std::string key_;  // empty: the call is not cached
};

// form_rules.cpp: corrects the forms that differ between meta kernels and the CPU's kernels. tell_instead() stands for
// the meta kernel; false if it has no rule for the operator. mend() changes what the meta kernel has put on the stack.
bool tell_instead(const std::string &name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack *stack);
void mend(const std::string &name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack *stack);

}  // namespace managed::sim
