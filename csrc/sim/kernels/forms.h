// forms.h: what the results of a call look like, remembered by what its operands look like.
//
// Devices without values ask meta kernels. Many of torch's are written in Python and take up to 2.4 ms, so each question is
// asked once. Owns the table of answers; runs no kernel.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/facts.h"

namespace managed::sim {

// What a result looks like: a written operand (then give() leaves a None), a tensor, a list of tensors, or what is none.
struct Form {
  struct Strided {
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    std::size_t bytes;
    caffe2::TypeMeta dtype;
  };
  enum class Kind : uint8_t { written, tensor, list, other } kind = Kind::other;
  std::vector<std::optional<Strided>> tensors;  // nothing: undefined
  c10::IValue other;
};

class Question {
 public:
  // The arguments are meta tensors and numbers. Some have no form that could be remembered.
  Question(const OperatorFacts &facts, c10::ArrayRef<c10::IValue> arguments);
  // Puts remembered results in the place of the arguments; false if there are none.
  bool recall(torch::jit::Stack *stack) const;
  // Remembers what a kernel has put there, unless results share bytes with the arguments, or these have another form now.
  void remember(const torch::jit::Stack &stack, c10::ArrayRef<c10::IValue> arguments);

 private:
  const OperatorFacts &facts_;
  const std::size_t count_;
  std::string key_;  // empty: not to be remembered
};

// form_rules.cpp: what meta kernels tell otherwise than the CPU's kernels do. False: there is no such rule.
bool tell_instead(const std::string &name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack *stack);
void mend(const std::string &name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack *stack);

}  // namespace managed::sim
