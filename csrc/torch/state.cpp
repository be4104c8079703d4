// state.cpp: creates and reads TensorState, and offers csrc/python what a program says about one tensor: managed or
// plain, pinned, placed, exposed, lent, its history.
//
// No tensor changes its device here. Pinning, unmarking, exposing and lending bring its bytes home first (hold.h).
#include "state.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "adopt.h"
#include "api.h"
#include "devices.h"
#include "exposure.h"
#include "graphs.h"
#include "guard.h"
#include "hold.h"
#include "record.h"
#include "replica.h"
#include "threads.h"
#include "wrapped.h"

namespace managed {

namespace {

struct MetaAccess : c10::TensorImpl {
  using c10::TensorImpl::extra_meta_;
};
typedef c10::ExtraMeta* __attribute__((may_alias)) Meta;

// TensorImpl keeps its extra metadata behind a unique_ptr, which is one pointer.
Meta* meta_of(c10::TensorImpl* t) {
  constexpr std::unique_ptr<c10::ExtraMeta> c10::TensorImpl::*member = &MetaAccess::extra_meta_;
  static_assert(sizeof(t->*member) == sizeof(Meta));
  return reinterpret_cast<Meta*>(&(t->*member));
}

// Other threads may be reading the TensorImpl, so the finished metadata is
// published by one store, and of two threads that try the second sees the first.
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
  if (t.is_view()) { // one state for the bytes, whoever names them
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

// An operator has written what a managed tensor gave it into the plain tensor t. So t becomes managed, and its base
// too: in `out[0] = y` the view dies at once. Other plain tensors over the storage stay plain and may write unseen, so
// no copy of its bytes is kept. In a backward pass only t is marked, because operators come to the hook there without a
// managed operand.
void mark_written_slow(const at::Tensor& t) {
  mark(t);
  if (mgd_torch_in_backward() || t.layout() != at::kStrided || !t.has_storage()) return;
  const bool is_view = t.is_view();
  if (t.storage().use_count() > (is_view ? 2 : 1)) lend_in_place(t);
  if (is_view) mark(at::Tensor(t._base()));
}

void renew_history_slow(const at::Tensor& t) {
  if (t.is_leaf() && t.is_view() && t.requires_grad()) t.grad_fn();
}

namespace {

// Whether t or, where it is a view without a state, its base is so.
bool is_marked(const at::Tensor& t, std::atomic<bool> TensorState::*mark) {
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

void place(const at::Tensor& t, bool placed) {
  placed &= !t.is_cpu();
  if (placed || state_of(t)) make_state(t).placed = placed;
}

namespace {

void record_pin(enum mgd_event_kind kind, const at::Tensor& t, const TensorState& s) {
  mgd_event e{};
  e.object = s.object;
  e.time = now();
  e.kind = static_cast<int16_t>(kind);
  e.reason = MGD_WHY_REQUESTED;
  e.from = e.to = static_cast<int16_t>(id_of(t.device()));
  e.bytes = bytes_of(t);
  record(e);
}

} // namespace

void check_wrappable(const at::Tensor& t) {
  TORCH_CHECK_TYPE(!t.is_quantized(), "managed: quantized tensors cannot be managed; dequantize() it first");
  TORCH_CHECK_TYPE(!t.is_nested(),
                   "managed: nested tensors cannot be managed; manage the tensors inside, or a padded one");
  TORCH_CHECK_TYPE(
      !t.unsafeGetTensorImpl()->is_python_dispatch(),
      "managed: a tensor subclass with __torch_dispatch__ cannot be managed; manage the tensor that it wraps");
  TORCH_CHECK_TYPE(!t.is_meta(), "managed: a meta tensor has no bytes to manage; materialise it on a device first");
}

} // namespace managed

using namespace managed;

int mgd_torch_is_tensor(PyObject* o) { return THPVariable_Check(o); }

int mgd_torch_is_managed(PyObject* o) {
  return THPVariable_Check(o) && has_key(THPVariable_Unpack(o).unsafeGetTensorImpl());
}

// Plain operators may have written a module's tensor on streams that nobody has seen, and the program may order its own
// streams after that later. The bytes may leave as soon as they have a handle, so this thread waits for the device
// before. Other tensors are marked in every step, and used at once.
static void await_writers(const at::Tensor& t) {
  if (!kernels_are_async.load(std::memory_order_relaxed) || has_key(t.unsafeGetTensorImpl())) return;
  bool any = false;
  each_storage(t, [&any](c10::StorageImpl* s) {
    any |= !is_too_small(s) && !handle_of(s) && c10::raw::intrusive_ptr::use_count(s) == 1;
  });
  if (!any || recording_graphs.load(std::memory_order_relaxed)) return;
  const NoGil no_gil;
  c10::impl::VirtualGuardImpl(t.device().type()).synchronizeDevice(t.device().index());
}

int mgd_torch_mark(PyObject* o, int in_module) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    check_wrappable(t);
    if (t.has_storage() && t.storage().use_count() > 1) lend(t); // to plain tensors, for all we know
    if (in_module && !t.is_cpu()) await_writers(t);
    mark(t);
    if (handles_enabled.load(std::memory_order_relaxed) &&
        !t.is_cpu()) { // asked first: the first exclusive section of a process takes milliseconds
      if (const ExclusiveSection alone; alone) give_handle(t, false);
    }
    if (!has_key(t.unsafeGetTensorImpl())) return 0;
    TensorState& s = make_state(t);
    if (in_module) s.in_module = true;
    return 0;
  });
}

int mgd_torch_unmark(PyObject* o) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    keep_home(t, MGD_PIN_PLAIN); // nothing would bring its bytes back
    remove_key(t.unsafeGetTensorImpl());
    return 0;
  });
}

int mgd_torch_drop_key(PyObject* o) {
  remove_key(THPVariable_Unpack(o).unsafeGetTensorImpl());
  return 0;
}

int mgd_torch_pin(PyObject* o, int pinned) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    TensorState& s = make_state(t);
    if (s.pinned.exchange(pinned != 0) == (pinned != 0)) return 0;
    pinned ? keep_home(t, MGD_PIN_ASKED) : let_leave(t, MGD_PIN_ASKED);
    record_pin(pinned ? MGD_EV_PIN : MGD_EV_UNPIN, t, s);
    return 0;
  });
}

int mgd_torch_advise(PyObject* o, unsigned advice) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    make_state(t).advice = static_cast<uint8_t>(advice);
    each_storage(t, [&](c10::StorageImpl* s) {
      if (!handle_of(s)) give_operand_handle(t, s);
    });
    advise_storages(t, advice);
    return 0;
  });
}

int mgd_torch_advice(PyObject* o) {
  return guarded([&] {
    const TensorState* s = state_of(THPVariable_Unpack(o));
    return s ? static_cast<int>(s->advice) : 0;
  });
}

int mgd_torch_pinned(PyObject* o) {
  return guarded([&] { return static_cast<int>(is_pinned(THPVariable_Unpack(o))); });
}

int mgd_torch_place(PyObject* o, int placed) {
  return guarded([&] {
    place(THPVariable_Unpack(o), placed != 0);
    return 0;
  });
}

// The program named the device on which the tensor is already. Libraries do that with every tensor, so it counts as a
// wish only for leaves that are no parameter and no view of a managed tensor.
int mgd_torch_place_here(PyObject* o) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    const bool is_managed_view = t.is_view() && has_key(t._base().unsafeGetTensorImpl());
    if (t.is_leaf() && !is_managed_view && !is_parameter(t)) place(t, true);
    return 0;
  });
}

int mgd_torch_placed(PyObject* o) {
  return guarded([&] { return static_cast<int>(is_placed(THPVariable_Unpack(o))); });
}

PyObject* mgd_torch_still(PyObject* (*f)(void*), void* context) {
  return guarded([&] {
    const OperatorSection visit;
    return f(context);
  });
}

int mgd_torch_expose(PyObject* o) {
  return guarded([&] {
    expose(THPVariable_Unpack(o));
    return 0;
  });
}

int mgd_torch_lend(PyObject* o) {
  return guarded([&] {
    lend(THPVariable_Unpack(o));
    return 0;
  });
}

void mgd_torch_let_leave(PyObject* o) { let_leave(THPVariable_Unpack(o), MGD_PIN_POINTER); }

void mgd_torch_reap_replicas(void) { reap_replicas(); }

uint64_t mgd_torch_object(PyObject* o, int create) {
  uint64_t id = 0;
  guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    if (create) make_state(t);
    if (TensorState* s = state_of(t)) id = s->object;
    return 0;
  });
  return id;
}

void mgd_torch_who(const struct mgd_handle* handle, uint64_t* object, uint64_t* number) {
  const auto& h = static_cast<const StorageHandle&>(*handle);
  *object = h.object.load(std::memory_order_relaxed);
  *number = h.made;
}

uint64_t mgd_torch_number(PyObject* o) {
  uint64_t number = 0;
  guarded([&] {
    number = newest_handle_of(THPVariable_Unpack(o));
    return 0;
  });
  return number;
}

int mgd_torch_resume(PyObject* o, uint64_t object) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    TensorState* old = state_of(t);
    if (object == 0 || (old && old->object == object)) return 0;
    auto state = c10::make_intrusive<TensorState>(); // its own: aliases of the new contents keep theirs
    state->object = object;
    state->pinned = is_pinned(t);
    state->placed = is_placed(t);
    if (old) state->in_module = old->in_module.load();
    t.unsafeGetTensorImpl()->set_backend_meta(std::move(state));
    set_history_of_bytes(t, object);
    return 0;
  });
}

int64_t mgd_torch_nbytes(PyObject* o) {
  return guarded([&] { return bytes_of(THPVariable_Unpack(o)); });
}

int mgd_torch_device_of(PyObject* o) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    const int id = id_of(t.device());
    TORCH_CHECK_VALUE(id >= 0, "managed: ", t.device(), " is not a device that managed knows");
    return id;
  });
}
