// state.cpp: see state.h.
#include "torch/tensor/state.h"

#include <torch/csrc/autograd/python_variable.h>

#include "torch/devices/devices.h"
#include "torch/tensor/storage.h"
#include "torch/tensor/wrapped.h"

namespace managed {
namespace {

struct MetaAccess : c10::TensorImpl {
  using c10::TensorImpl::extra_meta_;
};
typedef c10::ExtraMeta* __attribute__((may_alias)) Meta;

// TensorImpl keeps its extra metadata behind a unique_ptr, which is one pointer.
Meta* meta_of(c10::TensorImpl* t) {
  constexpr std::unique_ptr<c10::ExtraMeta> c10::TensorImpl::* member = &MetaAccess::extra_meta_;
  static_assert(sizeof(t->*member) == sizeof(Meta));
  return reinterpret_cast<Meta*>(&(t->*member));
}

// Other threads may be reading the TensorImpl, so the finished metadata is
// published by one store, and the second of two threads sees the first's.
bool publish(c10::TensorImpl* t, c10::intrusive_ptr<c10::BackendMeta> state) {
  auto fresh = std::make_unique<c10::ExtraMeta>();
  fresh->backend_meta_ = std::move(state);
  c10::ExtraMeta* none = nullptr;
  if (!__atomic_compare_exchange_n(meta_of(t), &none, fresh.get(), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return false;
  fresh.release();
  return true;
}

TensorState& attach(c10::TensorImpl* t, const c10::intrusive_ptr<TensorState>& state) {
  if (publish(t, state)) return *state;
  // Metadata that torch made itself (symbolic shapes and the like) belongs to tensors that one thread is building.
  c10::ExtraMeta* meta = __atomic_load_n(meta_of(t), __ATOMIC_ACQUIRE);
  if (!meta->backend_meta_) meta->backend_meta_ = state;
  auto* winner = dynamic_cast<TensorState*>(meta->backend_meta_.get());
  TORCH_CHECK(winner, "managed: another backend keeps its metadata on this tensor");
  return *winner;
}

} // namespace

TensorState* state_of(const at::Tensor& t) {
  if (!t.defined()) return nullptr;
  const c10::ExtraMeta* meta = __atomic_load_n(meta_of(t.unsafeGetTensorImpl()), __ATOMIC_ACQUIRE);
  return meta ? dynamic_cast<TensorState*>(meta->backend_meta_.get()) : nullptr;
}

TensorState& make_state(const at::Tensor& t) {
  if (TensorState* s = state_of(t)) return *s;
  if (t.is_view()) { // one state for the bytes, by whichever view they are named
    const at::Tensor base(t._base());
    return attach(t.unsafeGetTensorImpl(), c10::intrusive_ptr<TensorState>::reclaim_copy(&make_state(base)));
  }
  auto state = c10::make_intrusive<TensorState>();
  state->object = mgd_trace_new_object(machine());
  TensorState& s = attach(t.unsafeGetTensorImpl(), state);
  set_history_of_bytes(t, s.object);
  return s;
}

void set_history_of_bytes(const at::Tensor& t, uint64_t object) {
  each_storage(t, [object](c10::StorageImpl* storage) {
    if (StorageHandle* h = handle_of(storage)) h->object = object;
  });
}

void renew_history_slow(const at::Tensor& t) {
  if (t.is_leaf() && t.is_view() && t.requires_grad()) t.grad_fn();
}

namespace {

// Whether t has the mark; a view without a state has that of its base.
bool is_marked(const at::Tensor& t, std::atomic<bool> TensorState::* mark) {
  if (C10_UNLIKELY(is_wrapped(t))) return is_marked(innermost(t), mark);
  if (TensorState* s = state_of(t)) return (s->*mark).load(std::memory_order_relaxed);
  return t.is_view() && is_marked(at::Tensor(t._base()), mark);
}

// The caller holds the tensor, so its Python object lives, and the type that it is compared with lives for ever.
bool is_typed_parameter(const at::Tensor& t) {
  if (C10_UNLIKELY(is_wrapped(t))) return is_typed_parameter(innermost(t));
  if (t.is_view()) return is_typed_parameter(at::Tensor(t._base()));
  PyObject* object = t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return object && reinterpret_cast<PyObject*>(Py_TYPE(object)) == ParameterClass;
}

} // namespace

bool is_pinned(const at::Tensor& t) { return is_marked(t, &TensorState::pinned); }
bool is_placed(const at::Tensor& t) { return is_marked(t, &TensorState::placed); }
bool is_parameter(const at::Tensor& t) { return is_marked(t, &TensorState::in_module) || is_typed_parameter(t); }

std::atomic<bool> host_allowed{false};

namespace {
std::atomic<mgd_mask> ends_on_host{0}; // bit i: all tensors of device i
}

bool let_end_on_host(int device, bool all) {
  const mgd_mask bit = mgd_mask{1} << device;
  if (all) host_allowed = true;
  return (all ? ends_on_host.fetch_or(bit) : ends_on_host.fetch_and(~bit)) & bit;
}

bool may_end_on_host(const at::Tensor& t) {
  if (C10_UNLIKELY(is_wrapped(t))) return may_end_on_host(innermost(t));
  if (const mgd_mask all = ends_on_host.load(std::memory_order_relaxed); all && t.defined())
    if (const int id = id_of(t.device()); id > MGD_HOST && (all >> id & 1)) return true;
  if (const TensorState* s = state_of(t)) return s->advice & MGD_ADVICE_HOST;
  return t.defined() && t.is_view() && may_end_on_host(at::Tensor(t._base()));
}

void place(const at::Tensor& t, bool placed) {
  placed &= !t.is_cpu();
  if (placed || state_of(t)) make_state(t).placed = placed;
}

void check_wrappable(const at::Tensor& t) {
  TORCH_CHECK_TYPE(!t.is_quantized(), "managed: quantized tensors cannot be managed; dequantize() it first");
  TORCH_CHECK_TYPE(!t.is_nested(),
                   "managed: nested tensors cannot be managed; manage the tensors inside, or a padded one");
  TORCH_CHECK_TYPE(!t.unsafeGetTensorImpl()->is_python_dispatch(),
                   "managed: a tensor subclass with __torch_dispatch__ cannot be managed; manage the tensor that it "
                   "wraps, and leave "
                   "modules plain that torch shards into DTensors (fully_shard, parallelize_module)");
  TORCH_CHECK_TYPE(!t.is_meta(), "managed: a meta tensor has no bytes to manage; materialise it on a device first");
}

} // namespace managed
