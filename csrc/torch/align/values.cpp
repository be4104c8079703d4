// values.cpp: see values.h.
#include "torch/align/values.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "torch/tensor/adopt.h"
#include "torch/api.h"
#include "torch/residency/side_copies.h"
#include "torch/facts/compat.h"
#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/devices/graphs.h"
#include "torch/residency/hold.h"
#include "torch/tensor/state.h"

namespace managed {

uint64_t object_of(const at::Tensor& t) {
  TensorState* s = state_of(t);
  return s ? s->object : 0;
}

Traced::Traced(const at::Tensor& t, c10::Device to, const Cause& cause)
    : copied_(cause.kind == MGD_EV_COPY ? &t : nullptr) {
  event_.object = object_of(t);
  event_.time = now();
  event_.operator_name = cause.operator_name;
  event_.kind = static_cast<int16_t>(cause.kind);
  event_.reason = static_cast<int16_t>(cause.reason);
  event_.from = static_cast<int16_t>(id_of(t.device()));
  event_.to = static_cast<int16_t>(id_of(to));
}

void Traced::answers(uint64_t object, uint32_t site) {
  event_.object = object;
  event_.site = site;
  copied_ = nullptr;
}

void Traced::done(int64_t bytes) {
  event_.bytes = bytes;
  event_.duration = now() - event_.time;
  record(event_, copied_);
}

bool is_recorded() {
  return recording_graphs.load(std::memory_order_relaxed) || torch::jit::tracer::isTracing() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool needs_torch(const at::Tensor& t) {
  return (t.layout() == at::kStrided && !t.has_storage()) || t.layout() == at::kMkldnn ||
      t.unsafeGetTensorImpl()->is_python_dispatch() ||
      t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::ZeroTensor, c10::DispatchKey::Functionalize})) ||
      t._fw_grad(/*level=*/0).defined();
}

bool is_expanded(const at::Tensor& t) {
  if (t.layout() != at::kStrided || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || t.numel() < 2)
    return false;
  for (int64_t i = 0; i < t.dim(); i++)
    if (t.stride(i) == 0 && t.size(i) > 1) return true;
  return false;
}

namespace {

// Returns the part of t that holds all its numbers: one row of every expanded dimension.
at::Tensor one_row(at::Tensor t) {
  for (int64_t i = 0; i < t.dim(); i++)
    if (t.stride(i) == 0 && t.size(i) > 1) t = t.narrow(i, 0, 1);
  return t;
}

at::Tensor copy_expanded(const at::Tensor& t, c10::Device to, int64_t* bytes) {
  const at::Tensor core = one_row(t);
  *bytes = bytes_of(core);
  return core.to(to).expand(t.sizes());
}

// Copies t from where its bytes are, if they have left their device: restoring them first could evict other
// storages there. Undefined: the bytes are home or cannot be read where they are, t is not one dense piece, or torch or
// a recorder must see the copy.
at::Tensor copy_from_afar(const at::Tensor& t, c10::Device to, Traced& trace) {
  if (t.layout() != at::kStrided || !t.has_storage()) return {};
  StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl());
  if (C10_LIKELY(!h || !mgd_handle_is_away(h))) return {};
  if (needs_torch(t) || is_recorded() || t.is_conj() || t.is_neg() || t.numel() == 0 ||
      !t.is_non_overlapping_and_dense())
    return {};
  Turn turn(id_of(to)); // held until the copy can be evicted, too
  Hold::take_turn(turn, h);
  at::Tensor r;
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey); // it gets its handle when it is complete
    r = at::empty_strided(t.sizes(), t.strides(), t.options().device(to));
  }
  int from = 0;
  const std::size_t offset = static_cast<std::size_t>(t.storage_offset()) * t.element_size();
  if (!copy_from_where_it_is(*h, offset, t.nbytes(), id_of(to), r.mutable_data_ptr(),
                             to.is_cpu() ? nullptr : &r.storage().data_ptr(), &from))
    return {};
  trace.came_from(from);
  mark(r);
  if (!mgd_torch_in_backward()) give_handle(r, true); // as in mark_result()
  return r;
}

// Whether t is numbers and nothing more, and neither torch nor a recorder must see a copy of it.
bool is_plain(const at::Tensor& t) {
  return t.layout() == at::kStrided && t.has_storage() && !needs_torch(t) && !is_recorded() && !t.is_conj() &&
      !t.is_neg() && !t.is_quantized() && !has_names(t) && t.numel() > 0;
}

// Copies t, which is_plain(), beside other work. Torch's copies of expanded tensors and of tensors with gaps are
// followed: one row of each expanded dimension crosses, and gaps are closed first. Undefined as in copy_beside().
at::Tensor copy_plain(const at::Tensor& t, c10::Device to, int64_t* bytes) {
  if (t.is_non_overlapping_and_dense()) return copy_beside(t, to, Waiting::All);
  if (t.is_cpu() || t.device().type() != to.type()) return {};
  at::Tensor core = t.detach();
  const bool expanded = is_expanded(core);
  if (expanded) core = one_row(core);
  if (!core.is_non_overlapping_and_dense()) core = core.clone();
  at::Tensor r = copy_beside(core, to, Waiting::All);
  if (!r.defined()) return r;
  *bytes = bytes_of(core);
  return expanded ? r.expand(t.sizes()) : r;
}

} // namespace

at::Tensor copy_values(const at::Tensor& t, c10::Device to, Traced& trace, int64_t* bytes, bool takes_handle) {
  c10::InferenceMode no_inference(
      false); // the copy may meet autograd later; this guard turns grad mode on, so it comes first
  c10::AutoGradMode no_grad(false);
  *bytes = bytes_of(t);
  if (at::Tensor r = copy_from_afar(t, to, trace); r.defined()) return r;
  if (takes_handle) {
    if (at::Tensor r = is_plain(t) ? copy_plain(t, to, bytes) : at::Tensor(); r.defined()) return r;
  }
  // t may be the plain base of a managed view, whose bytes no hook would bring home.
  const HeldTensor held(t, false, id_of(to));
  at::Tensor d = t.detach();
  return is_expanded(d) ? copy_expanded(d, to, bytes) : d.to(to);
}

at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle) {
  Traced trace(t, to, cause);
  int64_t bytes = 0;
  at::Tensor r = copy_values(t, to, trace, &bytes, takes_handle);
  mark(r);
  trace.done(bytes);
  return r;
}

at::Tensor send_values(const at::Tensor& t, c10::Device to, const Cause& cause) {
  Traced trace(t, to, cause);
  trace.answers(object_of(t), call_site());
  at::Tensor r;
  if (is_plain(t) && t.is_non_overlapping_and_dense()) {
    c10::InferenceMode no_inference(false); // as in copy_values()
    c10::AutoGradMode no_grad(false);
    r = copy_beside(t, to, Waiting::HookedUses);
  }
  int64_t bytes = bytes_of(t);
  if (!r.defined()) r = copy_values(t, to, trace, &bytes, true);
  mark(r);
  trace.done(bytes);
  return r;
}

at::Tensor cross_by_torch(const at::Tensor& t, c10::Device to, const Cause& cause) {
  Traced trace(t, to, cause);
  at::Tensor r = t.to(to);
  mark(r);
  trace.done(bytes_of(t));
  return r;
}

at::Tensor copy_from_host(const at::Tensor& t, c10::Device to) {
  if (!t.is_cpu() || records(t) || !is_plain(t) || !t.is_non_overlapping_and_dense()) return {};
  c10::InferenceMode no_inference(false); // as in copy_values()
  c10::AutoGradMode no_grad(false);
  return copy_beside(t, to, Waiting::Uses);
}

} // namespace managed
