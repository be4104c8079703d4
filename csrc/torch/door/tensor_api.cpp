// tensor_api.cpp: what a program says about one tensor, for csrc/python: managed or plain, pinned, placed, exposed,
// lent, its history. What the functions do is in api.h.
//
// No tensor changes its device here. Pinning, unmarking, exposing and lending bring its bytes home first (hold.h).
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch/tensor/adopt.h"
#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/align/exposure.h"
#include "torch/devices/graphs.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/tensor/record.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/state.h"
#include "torch/threads/threads.h"

namespace managed {
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
} // namespace managed

using namespace managed;

int mgd_torch_is_tensor(PyObject* o) { return THPVariable_Check(o); }

int mgd_torch_is_managed(PyObject* o) {
  return THPVariable_Check(o) && has_key(THPVariable_Unpack(o).unsafeGetTensorImpl());
}

// Waits for what is issued to the device of t if the bytes of t are about to get a handle. Plain operators may have
// written a module's tensor on streams that managed does not know, and the program may order its own streams after that
// later; the bytes may leave as soon as they have a handle. Other tensors are marked in every step, and used at once.
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
    if (t.has_storage() && t.storage().use_count() > 1) lend(t); // plain tensors may share it
    if (in_module && !t.is_cpu()) await_writers(t);
    mark(t);
    if (handles_enabled.load(std::memory_order_relaxed) &&
        !t.is_cpu()) { // tested first: the first exclusive section of a process takes milliseconds
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
    if (advice & MGD_ADVICE_HOST) host_allowed = true;
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

void mgd_torch_identify(const struct mgd_handle* handle, uint64_t* object, uint64_t* number) {
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
