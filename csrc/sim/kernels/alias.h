// alias.h: tensors of simulated devices seen as CPU tensors, and back.
//
// Owns the translation for one operator call. An operand becomes a CPU tensor
// over the twin of its storage; a result whose storage is some operand's twin
// becomes a view of that operand, any other storage is adopted. So views need no
// code of their own. No kernel runs on data here, except to give a result its
// own bytes when it aliases a CPU operand.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "sim/storage.h"

namespace managed::sim {

// Whether the tensor is COO or compressed, and so made of other tensors.
inline bool is_sparse(const at::Tensor &t) { return t.layout() != at::kStrided && t.layout() != at::kMkldnn && t.layout() != at::kJagged; }
inline bool on_device(const at::Tensor &t) { return t.device().type() == kDevice; }

inline bool is_floating(const at::Tensor &t) { return t.is_floating_point() || t.is_complex(); }
inline bool is_mask(const at::Tensor &t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; }

// Without values: whether a write to all of the tensor makes its storage known.
inline bool is_covered(const at::Tensor &t) {
  const std::size_t bytes = t.storage().nbytes();
  return t.is_contiguous() && t.nbytes() == bytes && may_know(bytes, is_floating(t));
}

// Calls f with each defined tensor of an argument, or of a result.
template <class F>
void for_each_tensor(const c10::IValue &v, F f) {
  if (v.isTensor() && v.toTensor().defined()) f(v.toTensor());
  if (v.isTensorList() || v.isOptionalTensorList())
    for (const c10::IValue &x : v.toListRef()) for_each_tensor(x, f);
}

// Calls f with each tensor that a sparse one is made of.
template <class F>
void for_each_member(const at::Tensor &t, F f) {
  if (t.layout() == at::kSparse) {
    f(t._indices());
  } else {
    const bool rows = t.layout() == at::kSparseCsr || t.layout() == at::kSparseBsr;
    f(rows ? t.crow_indices() : t.ccol_indices());
    f(rows ? t.col_indices() : t.row_indices());
  }
  f(t.layout() == at::kSparse ? t._values() : t.values());
}

// Operands become CPU tensors over their bytes, CPU tensors over no bytes, or meta tensors.
enum class SeenAs : uint8_t { bytes, no_bytes, form };

class Aliases {
 public:
  explicit Aliases(int device = -1, SeenAs seen_as = SeenAs::bytes) : device_(device), seen_as_(seen_as) {}

  // The device of the results; -1 until an operand or an argument names one.
  int device() const { return device_; }
  void set_device(int device) { device_ = device; }
  // Whether some operand needs the dispatcher to choose the kernel (sparse, mkldnn, zero tensors).
  bool special() const { return special_; }

  // Returns a CPU tensor, or a meta tensor for SeenAs::form.
  at::Tensor to_cpu(const at::Tensor &t);
  at::Tensor to_device(const at::Tensor &t);
  // Called after the kernel, which may have resized an operand that it wrote or given it another storage.
  void write_back(const at::Tensor &sim, const at::Tensor &cpu);

 private:
  struct Pair {
    c10::StorageImpl *cpu;  // kept alive by the sim storage
    c10::Storage sim;
  };
  c10::DispatchKey key() const { return seen_as_ == SeenAs::form ? c10::DispatchKey::Meta : c10::DispatchKey::CPU; }
  c10::Storage twin(const c10::Storage &sim);
  c10::Storage form(const c10::Storage &sim);
  const c10::Storage *known(const c10::StorageImpl *cpu) const;
  at::Tensor dense_to_cpu(const at::Tensor &t);
  void note_host(const at::Tensor &t);
  at::Tensor host_operand(const at::Tensor &t);
  at::Tensor special_to_cpu(const at::Tensor &t);
  at::Tensor dense_to_device(const at::Tensor &t);
  void write_back_sparse(const at::Tensor &sim, const at::Tensor &cpu);

  struct Seen {
    const c10::TensorImpl *sim;
    at::Tensor cpu;
  };

  c10::SmallVector<Pair, 8> pairs_;
  c10::SmallVector<Seen, 4> seen_;                // the first operands
  c10::SmallVector<c10::StorageImpl *, 2> host_;  // storages of CPU operands
  c10::SmallVector<c10::Storage, 2> looks_;       // CPU storages over foreign bytes
  int device_;
  SeenAs seen_as_;
  bool special_ = false;
  bool inference_ = false; // some operand is an inference tensor
};

}  // namespace managed::sim
