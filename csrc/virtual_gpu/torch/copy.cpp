// copy.cpp: copies. What crosses devices or is one block of bytes goes CUDA's own way, through streams; the rest is a kernel.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>

#include "sim/kernels/alias.h"
#include "sim/launch.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;

// CUDA's code then asks the runtime to copy, and launches nothing.
bool is_block(const Tensor &to, const Tensor &from) {
  return to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() && to.sizes() == from.sizes() &&
      to.strides() == from.strides() && to.is_non_overlapping_and_dense();
}

const OperatorFacts &facts_of_copy() {
  static const OperatorFacts facts = facts_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  return facts;
}

Tensor &compute(Tensor &self, const Tensor &source) {
  Aliases aliases(self.device().index());
  Launch launch(facts_of_copy(), {});
  launch.operand(self, true);
  launch.operand(source, false);
  const Tensor from = aliases.to_cpu(source), to = aliases.to_cpu(self);
  launch.begin(self.device().index());
  at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
  return self;
}

Tensor &copy_(Tensor &self, const Tensor &source, bool non_blocking) {
  const bool both = on_device(self) && on_device(source) && !is_sparse(self) && !is_sparse(source) && !source._is_zerotensor();
  if (self.is_same(source) || !both || is_block(self, source)) return at::native::copy_(self, source, non_blocking);
  if (self.device() == source.device()) return compute(self, source);
  // Only blocks go over the link: among peers with access to each other CUDA would launch a kernel that reads over it.
  Tensor there = at::empty(self.sizes(), self.options().device(source.device()));
  Tensor here = at::empty(self.sizes(), self.options());
  at::native::copy_(here, compute(there, source), non_blocking);
  return compute(self, here);
}

// Copy-on-write would let a kernel write into bytes that two storages share.
Tensor lazy_clone(const Tensor &self) { return self.clone(); }

}  // namespace

void register_copies(torch::Library &m) {
  m.impl("copy_", &copy_);
  m.impl("_lazy_clone", &lazy_clone);
}

}  // namespace managed::sim
