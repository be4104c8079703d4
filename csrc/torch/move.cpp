// move.cpp: what the program asks for by name: a managed alias, a copy on a
// device, and the move of a tensor in place that keeps its Python object, ties,
// hooks and optimizers.
//
// Torch's own `p.data = other` refuses CPU -> PrivateUse1 and leaves .grad
// behind, so the in-place move shallow-copies the metadata itself.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "api.h"
#include "crossing.h"
#include "devices.h"
#include "guard.h"
#include "record.h"
#include "state.h"

namespace managed {
namespace {

// Stands before an accumulator whose tensor has moved since its graph was made:
// the tensor's own gradient still arrives where it was, and goes on to where it
// is. What else that graph computes from the moved values may meet torch's
// device check: modules are best moved between steps.
struct FollowTensor : torch::autograd::FunctionPreHook {
  explicit FollowTensor(c10::TensorImpl* t) : tensor(t) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    torch::autograd::variable_list out = grads;
    if (out[0].defined() && out[0].device() != tensor->device()) out[0] = out[0].to(tensor->device());
    return out;
  }
  c10::TensorImpl* tensor; // kept alive by the accumulator, which owns us
};

// An accumulator remembers the device that gradients must arrive on. Later graphs
// get a new one; the old one, if some graph still holds it, is taught to follow.
void renew_accumulator(const at::Tensor& t) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta) return;
  std::lock_guard<std::mutex> lock(meta->mutex_);
  if (auto old = meta->grad_accumulator_.lock()) old->add_pre_hook(std::make_unique<FollowTensor>(t.unsafeGetTensorImpl()));
  meta->grad_accumulator_.reset();
}

void take_over(const at::Tensor& t, const at::Tensor& copy) {
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  const bool managed = has_key(impl);
  TensorState* old = state_of(t);
  // A state of its own under the old id: aliases made before the move keep the old bytes and the old state.
  auto state = old ? c10::make_intrusive<TensorState>() : nullptr;
  if (state) state->object = old->object;
  impl->shallow_copy_from(copy.getIntrusivePtr());
  if (state) impl->set_backend_meta(std::move(state));
  if (!managed) remove_key(impl);
  renew_accumulator(t);
}

void check_movable(const at::Tensor& t, c10::Device to) {
  TORCH_CHECK(!is_pinned(t), "managed: this tensor is pinned to ", t.device(), " and cannot move to ", to, "; unpin() it first");
  TORCH_CHECK(t.is_leaf(), "managed: only leaf tensors move in place; this one is the result of ",
              t.grad_fn() ? t.grad_fn()->name() : "an operator", ". Use .to(", to, ") for a copy");
  TORCH_CHECK(!t.is_view(), "managed: a view does not move in place, its base would stay behind. Use .to(", to, ") for a copy");
}

void move(const at::Tensor& t, c10::Device to, enum mgd_reason why) {
  if (t.device() == to) return;
  check_movable(t, to);
  const Cause cause{"move", MGD_EV_MOVE, why};
  const at::Tensor& grad = t.grad();
  // Both copies are made before either tensor changes: an OutOfMemoryError leaves everything as it was.
  at::Tensor new_values = cross_values(t, to, cause), new_grad;
  if (grad.defined() && grad.device() != to) new_grad = cross(grad, to, cause);
  take_over(t, new_values);
  if (!new_grad.defined()) return;
  if (grad.is_leaf()) take_over(grad, new_grad);
  else t.mutable_grad() = new_grad;
}

} // namespace
} // namespace managed

using namespace managed;

PyObject* mgd_torch_alias(PyObject* o) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& t = THPVariable_Unpack(o);
    check_wrappable(t);
    at::Tensor r = alias_of(t);
    mark(r);
    make_state(r);
    return THPVariable_Wrap(std::move(r));
  });
}

PyObject* mgd_torch_to(PyObject* o, int device, int non_blocking, enum mgd_reason why) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& t = THPVariable_Unpack(o);
    const c10::Device to = device_of(device);
    if (t.device() == to) return Py_NewRef(o);
    mgd_event e{};
    TensorState* s = state_of(t);
    e.object = s ? s->object : 0;
    e.time = now();
    at::Tensor r;
    {
      NoGil no_gil;
      r = t.to(to, non_blocking != 0);
    }
    mark(r);
    e.duration = now() - e.time;
    e.bytes = bytes_of(t);
    e.kind = MGD_EV_MOVE;
    e.reason = static_cast<int16_t>(why);
    e.from = static_cast<int16_t>(id_of(t.device()));
    e.to = static_cast<int16_t>(device);
    TensorState& made = make_state(r);
    if (e.object) made.object = e.object; // the history goes on under the same id
    else e.object = made.object;
    record(e);
    return THPVariable_Wrap(std::move(r));
  });
}

int mgd_torch_move(PyObject* o, int device, enum mgd_reason why) {
  return guarded([&] {
    NoGil no_gil;
    move(THPVariable_Unpack(o), device_of(device), why);
    return 0;
  });
}
