// operands.h: what the chokepoint does with the operands of a call before and after the kernel, in one place for typed
// kernels, which have them in registers, and for boxed calls.
//
// A range of operands has facts, the operator's CallFacts; each(f), which calls f(tensor, written) with each tensor in
// the order of the schema; and rows(), the length of the longest list.
#pragma once
#include <ATen/core/stack.h>

#include <algorithm>
#include <cstddef>

#include "torch/align/align.h"
#include "torch/entry/hook.h"
#include "torch/residency/hold.h"
#include "torch/residency/torture.h"
#include "torch/tensor/state.h"

namespace managed {

// Calls f with each tensor that a value holds; lists of other things are left after their first element.
template <class F>
void each_tensor(const c10::IValue& v, const F& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (!v.isList()) return;
  for (const c10::IValue& e : v.toListRef()) {
    if (!e.isTensor() && !e.isList() && !e.isNone()) return;
    each_tensor(e, f);
  }
}

// The operands on a stack, before the kernel takes them.
class BoxedOperands {
 public:
  BoxedOperands(const OpFacts& f, const torch::jit::Stack& stack)
      : facts(f), arguments_(stack.data() + stack.size() - f.arguments) {}

  template <class F>
  void each(const F& f) const {
    for (const TensorArg& a : facts.tensors)
      each_tensor(arguments_[a.index], [&](const at::Tensor& t) { f(t, a.is_written()); });
  }
  // Calls f with each argument that has tensors.
  template <class F>
  void each_argument(const F& f) const {
    for (const TensorArg& a : facts.tensors) f(arguments_[a.index], a);
  }
  std::size_t rows() const {
    std::size_t n = 0;
    each_argument([&](const c10::IValue& v, const TensorArg&) {
      if (v.isList()) n = std::max(n, v.toListRef().size());
    });
    return n;
  }

  const OpFacts& facts;

 private:
  const c10::IValue* arguments_;
};

template <class Operands, class F>
void each_written(const Operands& operands, const F& f) {
  if (C10_LIKELY(operands.facts.written == 0)) return;
  operands.each([&](const at::Tensor& t, bool written) {
    if (written) f(t);
  });
}

// Holds what the kernel uses, and brings it home.
template <class Operands>
void hold_operands(Hold& hold, const Operands& operands) {
  const CallFacts& f = operands.facts;
  torture_now();
  const bool unknown_writes = f.route == Route::Open; // a foreign schema may not list all writes
  operands.each([&](const at::Tensor& t, bool written) {
    if (!only_looked_at(f, t))
      hold.add(t, unknown_writes || written); // a view of bytes that are elsewhere brings none home
  });
  hold.bring_home(f.c_name);
}

// Whether the operands of a list operator would fill too much of one device.
template <class Operands>
bool is_large(const Operands& operands) {
  if (C10_LIKELY(operands.facts.alignment != Alignment::Rows) || !handles_enabled.load(std::memory_order_relaxed))
    return false;
  Load load;
  load.rows = operands.rows();
  operands.each([&](const at::Tensor& t, bool) { load.see(t); });
  return load.wants_pieces();
}

} // namespace managed
