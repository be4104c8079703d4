// memory.cpp: the operators that make storages or hand them around.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/clone.h>

#include "sim/kernels/alias.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;
using c10::IntArrayRef;

template <class T>
using Maybe = std::optional<T>;

int chosen_device(const Maybe<c10::Device> &d) {
  const int device = d && d->has_index() ? d->index() : current_device();
  check_device(device);
  return device;
}

void check_not_pinned(const Maybe<bool> &pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned: leave pin_memory out for a tensor on a simulated device");
}

// Fills uninitialised memory if the program has asked torch for the same bytes in each run.
Tensor as_initialised(Tensor r) {
  const auto &context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) at::native::fill_empty_deterministic_(r);
  return r;
}

Tensor empty(IntArrayRef size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<c10::Device> device, Maybe<bool> pin, Maybe<at::MemoryFormat> format) {
  check_not_pinned(pin);
  return as_initialised(at::detail::empty_generic(size, allocator_of(chosen_device(device)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<c10::Device> device, Maybe<bool> pin) {
  check_not_pinned(pin);
  return as_initialised(at::detail::empty_strided_generic(size, stride, allocator_of(chosen_device(device)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                          c10::dtype_or_default(dtype)));
}

// The storage may be smaller than the shape needs: torch grows it, as on the CPU.
void set_shape(c10::TensorImpl *t, IntArrayRef size, IntArrayRef stride, int64_t offset) {
  if (stride.size() == size.size()) {
    t->set_sizes_and_strides(size, stride, offset);
  } else {
    t->set_sizes_contiguous(size);
    t->set_storage_offset(offset);
  }
  const size_t need = at::detail::computeStorageNbytes(t->sizes(), t->strides(), t->dtype().itemsize(), static_cast<size_t>(offset));
  if (t->numel() && need > t->unsafe_storage().nbytes()) resize_storage(t->unsafe_storage(), need);
}

Tensor &set_storage_and_shape(Tensor &self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\".");
  auto *impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  set_shape(impl, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor &set_storage(Tensor &self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_and_shape(self, std::move(source), 0, {c10::SymInt(elements)}, {});
}

Tensor &set_tensor(Tensor &self, const Tensor &source) {
  if (self.is_same(source)) return self;
  return set_storage_and_shape(self, source.storage(), source.storage_offset(), c10::fromIntArrayRefSlow(source.sizes()),
                               c10::fromIntArrayRefSlow(source.strides()));
}

Tensor &set_nothing(Tensor &self) { return set_storage_and_shape(self, new_storage(self.device().index(), 0), 0, {c10::SymInt(0)}, {}); }

// Kernels have finished when they return, so only virtual time waits for the stream.
void record_stream(Tensor &self, c10::Stream s) {
  if (self.has_storage()) note_use(self.storage().unsafeGetStorageImpl(), static_cast<int>(s.id()));
}

// Copy-on-write shares bytes between storages that would both count them.
Tensor lazy_clone(const Tensor &self) { return self.clone(); }

}  // namespace

void register_memory(torch::Library &m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_and_shape);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("record_stream", &record_stream);
  m.impl("_lazy_clone", &lazy_clone);
}

}  // namespace managed::sim
