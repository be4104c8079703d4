// move.cpp: the move of a tensor in place, which keeps its Python object, ties,
// hooks and optimizers, whether the program asks for it or the tensor's traffic
// does; and the other things that a program asks for by name: a managed alias and
// a copy on a device.
//
// Torch's own `p.data = other` refuses CPU -> PrivateUse1 and leaves .grad
// behind, so the in-place move shallow-copies the metadata itself.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "torch/align/move.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/api.h"
#include "torch/tensor/adopt.h"
#include "torch/align/view_chains.h"
#include "torch/devices/devices.h"
#include "torch/align/exposure.h"
#include "torch/tensor/exposure_table.h"
#include "torch/residency/guard.h"
#include "torch/tensor/record.h"
#include "torch/tensor/state.h"
#include "torch/tensor/storage.h"
#include "torch/threads/threads.h"
#include "torch/align/trips.h"

namespace managed {
namespace {

std::atomic<uint64_t> moves{0}; // tensors moved in place so far

// Stands before an accumulator whose tensor has moved since its graph was made:
// the tensor's own gradient still arrives where it was, and goes on to where it
// is. The formulas of that graph run where their gradient is (align.cpp).
struct FollowTensor : torch::autograd::FunctionPreHook {
  explicit FollowTensor(c10::TensorImpl* t) : tensor(t) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    torch::autograd::variable_list out = grads;
    if (out[0].defined() && out[0].device() != tensor->device()) out[0] = out[0].to(tensor->device());
    return out;
  }
  c10::TensorImpl* tensor; // kept alive by the accumulator, which owns this
};

// The accumulators that leaves had before they moved, by leaf; guarded by traffic_mutex(). An accumulator holds its
// leaf, so one that is alive stands for the tensor at that address.
using WeakNode = decltype(torch::autograd::AutogradMeta::grad_accumulator_);
using Earlier = std::unordered_map<c10::TensorImpl*, std::vector<WeakNode>>;
Earlier& earlier() {
  static auto* all = new Earlier; // never destroyed, like all that tensors may reach when the process ends
  return *all;
}

void remember(c10::TensorImpl* t, const WeakNode& accumulator) {
  std::lock_guard<std::mutex> lock(traffic_mutex());
  for (auto i = earlier().begin(); i != earlier().end();) {
    std::erase_if(i->second, [](const WeakNode& node) { return node.expired(); });
    i = i->second.empty() ? earlier().erase(i) : std::next(i);
  }
  earlier()[t].push_back(accumulator);
}

// An accumulator remembers the device that gradients must arrive on. Later graphs
// get a new one; the old one, if some graph still holds it, gets a FollowTensor.
void renew_accumulator(const at::Tensor& t) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta) return;
  std::lock_guard<std::mutex> lock(meta->mutex_);
  if (auto old = meta->grad_accumulator_.lock()) {
    old->add_pre_hook(std::make_unique<FollowTensor>(t.unsafeGetTensorImpl()));
    remember(t.unsafeGetTensorImpl(), meta->grad_accumulator_);
  }
  meta->grad_accumulator_.reset();
}

// If only trips home lead to the accumulator, they read the device from it: graphs from before and after the move share
// it, so that torch.autograd.grad still finds the leaf in the old ones.
void redirect_accumulator(const at::Tensor& t) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta) return;
  std::lock_guard<std::mutex> lock(meta->mutex_);
  const auto accumulator = meta->grad_accumulator_.lock();
  if (!accumulator) return;
  accumulator->clear_input_metadata();
  accumulator->add_input_metadata(t);
}

void take_over(const at::Tensor& t, const at::Tensor& copy) {
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  const bool managed = has_key(impl);
  TensorState* old = state_of(t);
  // A state of its own with the old id and history: aliases made before the move keep the old bytes and the old state.
  auto state = old ? c10::make_intrusive<TensorState>() : nullptr;
  if (state) {
    std::lock_guard<std::mutex> lock(traffic_mutex());
    state->object = old->object;
    state->traffic = old->traffic;
    state->placed = old->placed.load();
    state->in_module = old->in_module.load();
    state->advice = old->advice.load();
  }
  const bool is_inference = impl->is_inference(); // a copy never is: it may meet autograd
  impl->shallow_copy_from(copy.getIntrusivePtr());
  if (is_inference) key_set_of(impl) = key_set_of(impl) - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  if (state) set_history_of_bytes(t, state->object);
  if (state && state->advice) advise_storages(t, state->advice);
  if (state) impl->set_backend_meta(std::move(state));
  if (!managed) remove_key(impl);
}

void check_movable(const at::Tensor& t, c10::Device to) {
  TORCH_CHECK(!is_pinned(t), "managed: this tensor is pinned to ", t.device(), " and cannot move to ", to,
              "; unpin() it first");
  TORCH_CHECK(t.is_leaf(), "managed: only leaf tensors move in place; this one is the result of ",
              t.grad_fn() ? t.grad_fn()->name() : "an operator", ". Use .to(", to, ") for a copy");
  TORCH_CHECK(!t.is_view(), "managed: a view does not move in place, its base would stay behind. Use .to(", to,
              ") for a copy");
}

void note_moved(const at::Tensor& t, bool advised) {
  moves++;
  TensorState* s = state_of(t);
  std::lock_guard<std::mutex> lock(traffic_mutex());
  if (s) mgd_traffic_moved(&s->traffic, advised);
}

// Whether no graph that leads to t waits for its backward pass: such a graph must find the leaf where it left it.
bool is_at_rest(const at::Tensor& t, TensorState& s, const at::Tensor& through) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta || !t.requires_grad()) return true;
  const long views = held_by_views(s, through);
  std::lock_guard<std::mutex> lock(meta->mutex_);
  const auto accumulator = meta->grad_accumulator_.lock();
  return !accumulator || (s.waiting == 0 && only_trips(accumulator, s, views, 1));
}

// Whether nothing but t refers to the storage. `through`, the view by which t is needed, does not count, unless it has
// a Python object: without one it is a temporary of a composite operator.
bool owns_alone(const at::Tensor& t, const at::Tensor& through) {
  const bool held = through.defined() && through.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return !held && t.storage().use_count() == (through.defined() ? 2u : 1u);
}

// Whether nothing else refers to the bytes of t and of its gradient, so that they can move.
bool has_bytes_alone(const at::Tensor& t, const at::Tensor& through) {
  const at::Tensor& grad = t.grad();
  return owns_alone(t, through) && !may_change_unseen(t, through) && (!grad.defined() || have_bytes_alone({grad}));
}

// Whether hooks wait at the accumulator of t, as those of DistributedDataParallel's reducer do. A move by the program
// gives t another accumulator, and would leave them behind.
bool has_hooks_behind(const at::Tensor& t) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta) return false;
  std::lock_guard<std::mutex> lock(meta->mutex_);
  const auto accumulator = meta->grad_accumulator_.lock();
  return accumulator && !(accumulator->post_hooks().empty() && accumulator->pre_hooks().empty());
}

// Whether there is room for t, its gradient and two states of an optimizer.
bool has_room(const at::Tensor& t, c10::Device to) {
  observe();
  mgd_usage usage;
  return mgd_ledger_usage(machine(), id_of(to), &usage) == MGD_OK && usage.free / 4 >= bytes_of(t);
}

} // namespace

std::vector<NodePtr> earlier_accumulators(const at::Tensor& t) {
  std::vector<NodePtr> found;
  std::lock_guard<std::mutex> lock(traffic_mutex());
  const auto known = earlier().find(t.unsafeGetTensorImpl());
  if (known == earlier().end()) return found;
  for (const WeakNode& accumulator : known->second)
    if (NodePtr node = accumulator.lock()) found.push_back(std::move(node));
  return found;
}

void move(const at::Tensor& t, c10::Device to, const Cause& cause) {
  if (t.device() == to) return;
  check_movable(t, to);
  const at::Tensor& grad = t.grad();
  const bool managed = has_key(t.unsafeGetTensorImpl());
  // Both copies are made before either tensor changes: an OutOfMemoryError leaves everything as it was.
  // The copy of a plain tensor takes no handle: it stays plain, and no operator would bring its bytes home. A managed
  // leaf makes its gradient managed, which it is not if the program has given the leaf a plain one.
  at::Tensor new_values = cross_values(t, to, cause, managed), new_grad;
  if (grad.defined() && grad.device() != to)
    new_grad = cross_alone(grad, to, cause, managed || has_key(grad.unsafeGetTensorImpl()));
  const bool advised = cause.reason == MGD_WHY_TRAFFIC;
  keep_map(t, new_values);
  take_over(t, new_values);
  // A move by traffic happens only when nothing but trips home leads to the accumulator: it stays, and is told its new
  // device. When the program moves t, old graphs keep the old accumulator, which sends gradients on, and new graphs get
  // a new one.
  if (advised) redirect_accumulator(t);
  else renew_accumulator(t);
  note_moved(t, advised);
  if (!new_grad.defined()) return;
  if (managed) mark(grad);
  if (grad.is_leaf()) take_over(grad, new_grad);
  else t.mutable_grad() = new_grad;
}

// Bytes that were never written are allowed only on devices that hold no values.
void allocate(const at::Tensor& t, c10::Device to) {
  check_movable(t, to);
  const Bridge* backend = backend_of(to.type());
  TORCH_CHECK_NOT_IMPLEMENTED(to.is_meta() || (backend && !backend->values),
                              "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead "
                              "of torch.nn.Module.to() when moving module from meta to a different device.");
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  take_over(t, at::empty_strided(t.sizes(), t.strides(), t.options().device(to)));
  renew_accumulator(t);
}

bool settle(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through) {
  TensorState* s = state_of(t);
  // A plain tensor may have a state, through a view that is managed. It stays where the program expects it.
  if (!s || s->placed || !has_key(t.unsafeGetTensorImpl()) || !t.is_leaf() || t.is_view() || t.is_inference())
    return false;
  {
    std::lock_guard<std::mutex> lock(traffic_mutex());
    if (!mgd_traffic_needed(&s->traffic, id_of(to))) return false;
  }
  const ExclusiveSection alone; // what is asked below stays true until it has moved
  if (!alone || is_pinned(t) || !has_bytes_alone(t, through) ||
      !is_at_rest(t, *s, through) || !has_room(t, to))
    return false;
  const std::vector<NodePtr> ends = ends_of_views(*s, through);
  const at::Tensor before = ends.empty() ? at::Tensor() : t.detach();
  move(t, to, {cause.operator_name, MGD_EV_MOVE, MGD_WHY_TRAFFIC});
  for (const NodePtr& end : ends) lead_home(end, t, before);
  return true;
}

bool follow(const at::Tensor& t, c10::Device to, const Cause& cause) {
  if (!t.is_leaf() || t.is_view()) return false;
  const ExclusiveSection alone;
  if (!alone || is_pinned(t) || !has_bytes_alone(t, {}) || !has_room(t, to)) return false;
  move(t, to, cause);
  return true;
}

} // namespace managed

using namespace managed;

PyObject* mgd_torch_alias(PyObject* o) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& t = THPVariable_Unpack(o);
    check_wrappable(t);
    at::Tensor r;
    {
      NoGil no_gil; // torch takes the GIL under the lock of a leaf's accumulator, which alias() takes
      if (!has_key(t.unsafeGetTensorImpl())) lend(t);
      r = alias_of(t);
      mark(r);
      make_state(r);
    }
    return THPVariable_Wrap(std::move(r));
  });
}

// Initializes CUDA, as torch does first in a `to` of its own: seeds that wait for CUDA are set, and a forked child will
// report that it has none.
static c10::Device awake(int device) {
  const c10::Device d = device_of(device);
  if (d.is_cuda()) torch::utils::device_lazy_init(c10::kCUDA);
  return d;
}

PyObject* mgd_torch_to(PyObject* o, int device, int non_blocking, enum mgd_reason why) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& t = THPVariable_Unpack(o);
    const c10::Device to = awake(device);
    if (t.device() == to) return Py_NewRef(o);
    const Recorded recorded;
    mgd_event e{};
    TensorState* s = state_of(t);
    e.object = s ? s->object : 0;
    e.time = now();
    at::Tensor r;
    {
      NoGil no_gil;
      if (non_blocking) r = copy_from_host(t, to);
      if (!r.defined()) r = t.to(to, non_blocking != 0);
    }
    mark(r);
    keep_map(t, r);
    e.duration = now() - e.time;
    e.bytes = bytes_of(t);
    e.kind = MGD_EV_MOVE;
    e.reason = static_cast<int16_t>(why);
    e.from = static_cast<int16_t>(id_of(t.device()));
    e.to = static_cast<int16_t>(device);
    TensorState& made = make_state(r);
    made.placed = !to.is_cpu();
    if (e.object) made.object = e.object; // the history goes on under the same id
    else e.object = made.object;
    set_history_of_bytes(r, made.object);
    record(e);
    return THPVariable_Wrap(std::move(r));
  });
}

PyObject* mgd_torch_cross(PyObject* o, PyObject* device) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(o) && THPDevice_Check(device), "managed: expected a tensor and a torch.device");
    const at::Tensor t = THPVariable_Unpack(o);
    const c10::Device to = reinterpret_cast<THPDevice*>(device)->device;
    if (t.device() == to) return Py_NewRef(o);
    at::Tensor r;
    {
      NoGil no_gil;
      r = cross_alone(t, to, {"to", MGD_EV_MOVE, MGD_WHY_REQUESTED});
    }
    return THPVariable_Wrap(std::move(r));
  });
}

int mgd_torch_move(PyObject* o, int device, enum mgd_reason why) {
  return guarded([&] {
    const c10::Device to = awake(device);
    const at::Tensor& t = THPVariable_Unpack(o);
    const Cause cause{"move", MGD_EV_MOVE, why};
    NoGil no_gil;
    move(t, to, cause);
    return 0;
  });
}

int mgd_torch_allocate(PyObject* o, int device) {
  return guarded([&] {
    const c10::Device to = device < 0 ? c10::Device(c10::kMeta) : awake(device);
    NoGil no_gil;
    allocate(THPVariable_Unpack(o), to);
    return 0;
  });
}

int mgd_torch_are_alone(PyObject* list) {
  return guarded([&] {
    std::vector<at::Tensor> tensors;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
      tensors.push_back(THPVariable_Unpack(PyList_GET_ITEM(list, i)));
    return static_cast<int>(have_bytes_alone(tensors) &&
                            std::none_of(tensors.begin(), tensors.end(), has_hooks_behind));
  });
}

uint64_t mgd_torch_move_count(void) { return moves; }
