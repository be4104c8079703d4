// alias.cpp: see alias.h.
#include "sim/kernels/alias.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/clone.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace managed::sim {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr size_t kRemembered = 8;  // operands whose identity is kept

// Marks that say how to read the bytes travel with the bytes.
DispatchKeySet reading_marks(DispatchKeySet ks) { return ks & DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor}); }

void copy_shape(c10::TensorImpl *to, const c10::TensorImpl *from) { to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset()); }

Tensor dense_over(c10::Storage s, DispatchKey key, const c10::TensorImpl *like) {
  auto r = c10::make_intrusive<c10::TensorImpl>(std::move(s), DispatchKeySet(key) | reading_marks(like->key_set()), like->dtype());
  copy_shape(r.get(), like);
  if (like->is_wrapped_number()) r->set_wrapped_number(true);
  return Tensor(std::move(r));
}

// A view is what its base is: a normal tensor in inference mode too, or an inference tensor outside as well.
Tensor view_over(c10::Storage s, const c10::TensorImpl *like, bool inference) {
  std::optional<c10::InferenceMode> mode;
  if (C10_UNLIKELY(c10::InferenceMode::is_enabled() != inference)) mode.emplace(inference);
  return dense_over(std::move(s), kDense, like);
}

// Some CPU kernels of sparse operands read it: _sparse_mm_reduce_impl, whose sparse operand comes first, computes
// arg_out only then.
void keep_requires_grad(const Tensor &from, const Tensor &to) {
  if (from.requires_grad()) to.unsafeGetTensorImpl()->set_requires_grad(true);
}

at::SparseTensorImpl *coo(const Tensor &t) { return static_cast<at::SparseTensorImpl *>(t.unsafeGetTensorImpl()); }
at::SparseCsrTensorImpl *csr(const Tensor &t) { return static_cast<at::SparseCsrTensorImpl *>(t.unsafeGetTensorImpl()); }

// A sparse tensor on `where` whose members are f(member).
template <class F>
Tensor map_coo(const Tensor &t, c10::Device where, F f) {
  auto *s = coo(t);
  // The constructor allocates its empty members on the current device.
  c10::OptionalDeviceGuard guard;
  if (where.type() == kDevice) guard.reset_device(where);
  auto r =
      c10::make_intrusive<at::SparseTensorImpl>(DispatchKeySet(where.type() == kDevice ? kCoo : DispatchKey::SparseCPU), s->dtype());
  r->raw_resize_(s->sparse_dim(), s->dense_dim(), s->sizes());
  r->set_indices_and_values_unsafe(f(s->indices()), f(s->values()));
  r->set_coalesced(s->coalesced());
  return Tensor(std::move(r));
}

template <class F>
Tensor map_compressed(const Tensor &t, c10::Device where, F f) {
  auto *s = csr(t);
  auto r = c10::make_intrusive<at::SparseCsrTensorImpl>(DispatchKeySet(where.type() == kDevice ? kCompressed : DispatchKey::SparseCsrCPU),
                                                        where, s->layout(), s->dtype());
  r->set_member_tensors(f(s->compressed_indices()), f(s->plain_indices()), f(s->values()), s->sizes());
  return Tensor(std::move(r));
}

// A strided nested tensor is one buffer and sizes, which lie on the CPU in any case. Virtual GPUs have them, since CUDA has.
template <class F>
Tensor map_nested(const Tensor &t, F f) {
  auto *n = at::native::get_nested_tensor_impl(t);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(f(n->get_unsafe_storage_as_tensor()), n->get_nested_sizes(), n->get_nested_strides(),
                                                               n->get_storage_offsets());
}

template <class F>
Tensor map_sparse(const Tensor &t, c10::Device where, F f) {
  return t.layout() == at::kSparse ? map_coo(t, where, f) : map_compressed(t, where, f);
}

// Without values: an operand was written, with values or with unknown bytes.
void note_known(const Tensor &sim, bool computed) {
  const c10::Storage &storage = sim.storage();
  if (computed && may_know(storage.nbytes(), is_floating(sim))) set_known(storage, Known::values);
  else if (computed) forget_bytes(storage.unsafeGetStorageImpl(), storage.nbytes());  // it grew, and real memory with it
  else set_known(storage, Known::nothing);
}

}  // namespace

const c10::Storage *Aliases::known(const c10::StorageImpl *cpu) const {
  for (const Pair &p : pairs_)
    if (p.cpu == cpu) return &p.sim;
  return nullptr;
}

// Operands over the same bytes are aliases of each other.
c10::Storage Aliases::form(const c10::Storage &sim) {
  for (const Pair &p : pairs_)
    if (p.sim.unsafeGetStorageImpl() == sim.unsafeGetStorageImpl()) return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(p.cpu);
  looks_.push_back(form_of(sim));
  pairs_.push_back({looks_.back().unsafeGetStorageImpl(), sim});
  return looks_.back();
}

c10::Storage Aliases::twin(const c10::Storage &sim) {
  if (seen_as_ == SeenAs::form) return form(sim);
  const bool reads = seen_as_ == SeenAs::bytes;
  c10::Storage out = reads || !may_move(sim) ? twin_of(sim) : c10::Storage();
  if (C10_UNLIKELY(!out)) {
    // Two operands over the same foreign bytes must stay aliases of each other.
    for (const Pair &p : pairs_)
      if (p.sim.is_alias_of(sim)) return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(p.cpu);
    out = look_at(sim, reads);
    looks_.push_back(out);
  }
  if (!known(out.unsafeGetStorageImpl())) pairs_.push_back({out.unsafeGetStorageImpl(), sim});
  return out;
}

void Aliases::note_host(const Tensor &t) {
  if (!t.defined()) return;
  if (is_sparse(t) || t.is_mkldnn()) {
    special_ = true;
  } else if (t.device().is_cpu() && t.has_storage()) {
    host_.push_back(t.storage().unsafeGetStorageImpl());
  }
}

Tensor Aliases::special_to_cpu(const Tensor &t) {
  special_ = true;
  if (t.is_nested()) return map_nested(t, [&](const Tensor &buffer) { return to_cpu(buffer); });
  const auto host = seen_as_ == SeenAs::form ? c10::kMeta : c10::kCPU;
  if (!is_sparse(t)) return at::_efficientzerotensor(t.sizes(), t.options().device(host));
  TORCH_CHECK_NOT_IMPLEMENTED(holds_values(), "simulated devices without values (values=False) compute with strided tensors only, and this one is ", t.layout());
  seen_as_ = SeenAs::bytes; // what is a view of a strided tensor makes new members for a sparse one
  Tensor r = map_sparse(t, c10::Device(c10::kCPU), [&](const Tensor &member) { return to_cpu(member); });
  keep_requires_grad(t, r);
  return r;
}

// Takes indices beside a device's tensors. A mask stays, because the number of elements that it chooses gives a form.
Tensor Aliases::host_operand(const Tensor &t) {
  note_host(t);
  const bool has_form = seen_as_ == SeenAs::form && t.defined() && t.device().is_cpu() && t.layout() == at::kStrided && t.dim() > 0;
  if (!has_form || is_mask(t)) return t;
  looks_.push_back(form_of(t.storage()));
  return dense_over(looks_.back(), DispatchKey::Meta, t.unsafeGetTensorImpl());
}

Tensor Aliases::to_cpu(const Tensor &t) {
  if (!t.defined() || !on_device(t)) return host_operand(t);
  if (C10_UNLIKELY(is_sparse(t) || t.key_set().has(DispatchKey::ZeroTensor) || (kVirtualGpu && t.is_nested()))) return special_to_cpu(t);
  TORCH_CHECK(t.has_storage() && !t.is_nested(), kDevices, " compute with strided and sparse tensors only; this tensor on ", t.device(),
              " has no storage, or a nested one (use layout=torch.jagged)");
  return dense_to_cpu(t);
}

// Some kernels ask whether two operands are the same tensor (attention's query and key), so
// one tensor has one alias. Long lists of operands belong to kernels that do not ask.
Tensor Aliases::dense_to_cpu(const Tensor &t) {
  auto *impl = t.unsafeGetTensorImpl();
  for (const Seen &s : seen_)
    if (s.sim == impl) return s.cpu;
  inference_ |= impl->is_inference();
  Tensor cpu = dense_over(twin(t.storage()), key(), impl);
  if (C10_UNLIKELY(special_)) keep_requires_grad(t, cpu);
  if (seen_.size() < kRemembered) seen_.push_back({impl, cpu});
  return cpu;
}

Tensor Aliases::dense_to_device(const Tensor &t) {
  auto *impl = t.unsafeGetTensorImpl();
  auto *cpu = t.storage().unsafeGetStorageImpl();
  if (const auto *sim = known(cpu)) return view_over(*sim, impl, inference_);
  if (t.key_set().has(DispatchKey::ZeroTensor)) return dense_over(bare_storage(device_, cpu->nbytes()), kDense, impl);
  for (auto *h : host_) {
    if (h != cpu) continue;  // a result that aliases a CPU operand gets bytes of its own
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    return to_device(t.clone());
  }
  c10::Storage fresh = adopt(t.storage(), device_, is_floating(t));
  pairs_.push_back({cpu, fresh});
  return dense_over(std::move(fresh), kDense, impl);
}

Tensor Aliases::to_device(const Tensor &t) {
  if (!t.defined() || !(t.device().is_cpu() || t.is_meta())) return t;
  if (C10_UNLIKELY(is_sparse(t))) return map_sparse(t, device_at(device_), [&](const Tensor &member) { return to_device(member); });
  if (kVirtualGpu && t.is_nested()) return map_nested(t, [&](const Tensor &buffer) { return to_device(buffer); });
  TORCH_CHECK(!t.is_quantized(), kDevices, " have no quantized tensors: quantize on the CPU, or dequantize first");
  TORCH_CHECK(!t.is_nested(), kDevices, " have no strided nested tensors: use layout=torch.jagged, or nest on the CPU");
  TORCH_CHECK(!t.is_mkldnn() && t.has_storage(), "this operator's result has a layout that ", kDevices, " do not have (", t.layout(),
              "): run it on the CPU");
  return dense_to_device(t);
}

void Aliases::write_back_sparse(const Tensor &sim, const Tensor &cpu) {
  const Tensor now = to_device(cpu);
  if (sim.layout() == at::kSparse) {
    auto *to = coo(sim);
    auto *from = coo(now);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(from->indices(), from->values());
    to->set_coalesced(from->coalesced());
  } else {
    auto *from = csr(now);
    csr(sim)->set_member_tensors(from->compressed_indices(), from->plain_indices(), from->values(), from->sizes());
  }
}

void Aliases::write_back(const Tensor &sim, const Tensor &cpu) {
  if (!sim.defined() || !on_device(sim)) return;
  if (C10_UNLIKELY(is_sparse(sim))) return write_back_sparse(sim, cpu);
  if (kVirtualGpu && sim.is_nested()) return; // its sizes are shared, and nothing resizes it
  auto *to = sim.unsafeGetTensorImpl();
  auto *from = cpu.unsafeGetTensorImpl();
  note_write(sim.storage().unsafeGetStorageImpl());
  const auto *storage = known(cpu.storage().unsafeGetStorageImpl());
  if (!storage) {
    to->set_storage_keep_dtype(dense_to_device(cpu).storage());
  } else if (storage->unsafeGetStorageImpl() != sim.storage().unsafeGetStorageImpl()) {
    to->set_storage_keep_dtype(*storage);
  } else {
    follow_twin(sim.storage().unsafeGetStorageImpl(), cpu.storage());
  }
  if (to->sizes() != from->sizes() || to->strides() != from->strides() || to->storage_offset() != from->storage_offset()) copy_shape(to, from);
  if (!holds_values()) note_known(sim, seen_as_ == SeenAs::bytes);
}

}  // namespace managed::sim
