// engine.cpp: the entry into the backward engine, and gradients that stand elsewhere.
//
// Autograd saves some outputs before the hook has marked them, so an operator
// of the backward pass may have no managed operand at all. Including the key
// in thread-local state for the whole pass covers it; the engine hands that
// state to its own threads. Plain models are left alone.
//
// The engine checks that a gradient is on the device of what it belongs to as
// soon as user code has handed it over, before any operator could move it. So
// what comes from user code is brought along here, by a copy that autograd records.
//
// If torch.func has wrapped roots on several accelerators, their gradients go over the host. With deterministic
// algorithms the pass runs in one thread.
#include <ATen/Context.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch/api.h"
#include "torch/facts/compat.h"
#include "torch/align/crossing.h"
#include "torch/devices/devices.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/entry/hook.h"
#include "torch/entry/moved_leaves.h"
#include "torch/align/random.h"
#include "torch/threads/threads.h"
#include "torch/tensor/wrapped.h"

namespace managed {
namespace {

const Cause kGradient{"gradient", MGD_EV_COPY, MGD_WHY_REQUIRED};

// A GradientEdge: a node and the number of one of its outputs.
bool is_edge(PyObject* root) { return PyTuple_Check(root) && PyTuple_GET_SIZE(root) >= 2; }

// Whether the graph of a node leads to a managed leaf; only leaves tell.
bool leads_to_managed(PyObject* node) {
  std::vector<THPObjectPtr> found; // kept, so that an address stands for one node
  std::unordered_set<PyObject*> known;
  auto find = [&](PyObject* n) {
    if (n != Py_None && known.insert(n).second) found.emplace_back(Py_NewRef(n));
  };
  find(node);
  for (std::size_t i = 0; i < found.size(); i++) {
    THPObjectPtr leaf(PyObject_GetAttrString(found[i], "variable")),
        next(PyObject_GetAttrString(found[i], "next_functions"));
    PyErr_Clear(); // most nodes have only one of them
    if (leaf && THPVariable_Check(leaf) && holds_managed(THPVariable_Unpack(leaf))) return true;
    for (Py_ssize_t k = 0; next && PyTuple_Check(next.get()) && k < PyTuple_GET_SIZE(next.get()); k++)
      find(PyTuple_GET_ITEM(PyTuple_GET_ITEM(next.get(), k), 0));
  }
  return false;
}

bool any_managed(PyObject* roots) {
  if (!PyTuple_Check(roots)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
    PyObject* o = PyTuple_GET_ITEM(roots, i);
    if (THPVariable_Check(o) ? holds_managed(THPVariable_Unpack(o))
                             : is_edge(o) && leads_to_managed(PyTuple_GET_ITEM(o, 0)))
      return true;
  }
  return false;
}

// The device of a root's gradient, if it is known.
std::optional<c10::Device> device_of_root(PyObject* root) {
  if (THPVariable_Check(root)) return THPVariable_Unpack(root).device();
  THPObjectPtr all(is_edge(root) ? PyObject_GetAttrString(PyTuple_GET_ITEM(root, 0), "_input_metadata") : nullptr);
  THPObjectPtr one(all ? PyObject_GetItem(all, PyTuple_GET_ITEM(root, 1)) : nullptr);
  THPObjectPtr device(one ? PyObject_GetAttrString(one, "device") : nullptr);
  PyErr_Clear(); // the engine itself reports what is wrong with the edge
  if (!device || !THPDevice_Check(device.get())) return {};
  return reinterpret_cast<THPDevice*>(device.get())->device;
}

bool must_travel(const at::Tensor& gradient, c10::Device home) {
  return gradient.defined() && gradient.device() != home && id_of(gradient.device()) >= 0 && id_of(home) >= 0 &&
      !is_frozen();
}

// A new reference to the gradient, on `home`. If the gradient comes from a node on another device, the engine reads its
// pointer before any operator does (InputBuffer::add), so it is kept home until it is used.
PyObject* brought(PyObject* gradient, c10::Device home) {
  const at::Tensor& g = THPVariable_Unpack(gradient);
  at::Tensor there = g;
  {
    NoGil no_gil;
    if (must_travel(g, home)) there = cross(g, home, kGradient);
    keep_home_until_used(there);
  }
  return there.is_same(g) ? Py_NewRef(gradient) : THPVariable_Wrap(std::move(there));
}

// Keeps the root gradients at home as long as the hold lives, which is until the pass has ended: the engine reads their
// pointers, too, before any operator does.
void hold_gradients(Hold& hold, PyObject* args) {
  PyObject* given = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1) : nullptr;
  for (Py_ssize_t i = 0; given && PyTuple_Check(given) && i < PyTuple_GET_SIZE(given); i++)
    if (THPVariable_Check(PyTuple_GET_ITEM(given, i))) hold.add(THPVariable_Unpack(PyTuple_GET_ITEM(given, i)), false);
  NoGil no_gil;
  hold.bring_home();
}

// Returns the arguments of run_backward, with each root gradient on the device of its root.
PyObject* with_gradients_at_roots(PyObject* args) {
  PyObject* roots = PyTuple_GET_ITEM(args, 0);
  PyObject* given = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1) : nullptr;
  if (!PyTuple_Check(roots) || !given || !PyTuple_Check(given) || PyTuple_GET_SIZE(given) != PyTuple_GET_SIZE(roots))
    return Py_NewRef(args);
  THPObjectPtr all(PySequence_List(given));
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(roots); i++) {
    PyObject *root = PyTuple_GET_ITEM(roots, i), *gradient = PyTuple_GET_ITEM(given, i);
    if (!THPVariable_Check(gradient)) continue; // None
    const std::optional<c10::Device> home = device_of_root(root);
    if (!home) continue;
    PyObject* there = brought(gradient, *home);
    if (!there || PyList_SetItem(all, i, there) < 0) return nullptr;
  }
  THPObjectPtr gradients(all ? PyList_AsTuple(all) : nullptr);
  THPObjectPtr rest(PyTuple_GetSlice(args, 2, PyTuple_GET_SIZE(args)));
  THPObjectPtr head(gradients ? PyTuple_Pack(2, roots, gradients.get()) : nullptr);
  return head && rest ? PySequence_Concat(head, rest) : nullptr;
}

// Stands in front of a root on an accelerator, and takes a gradient that is on the host.
struct RootHome : torch::autograd::Node {
  explicit RootHome(c10::Device home) : home_(home) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (grads[0].defined()) grads[0] = grads[0].to(home_);
    return std::move(grads);
  }
  std::string name() const override { return "ManagedRootBackward"; }

 private:
  c10::Device home_;
};

// Whether torch.func has wrapped roots on more than one accelerator. The engine looks at the storage of each root
// gradient that is not on the first one's, and a wrapper has none (functorch.cpp).
bool are_wrapped_and_apart(PyObject* roots, PyObject* gradients) {
  if (!PyTuple_Check(roots) || !PyTuple_Check(gradients) || PyTuple_GET_SIZE(gradients) != PyTuple_GET_SIZE(roots))
    return false;
  std::optional<c10::Device> first;
  bool wrapped = false, apart = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
    if (!THPVariable_Check(PyTuple_GET_ITEM(roots, i)) || !THPVariable_Check(PyTuple_GET_ITEM(gradients, i)))
      return false;
    const at::Tensor& t = THPVariable_Unpack(PyTuple_GET_ITEM(roots, i));
    if (!t.requires_grad()) return false; // the engine reports it
    wrapped |= is_batched(t) || is_batched(THPVariable_Unpack(PyTuple_GET_ITEM(gradients, i)));
    if (t.is_cpu()) continue;
    apart |= first && *first != t.device();
    first = t.device();
  }
  return wrapped && apart;
}

// Returns the root's edge behind a RootHome, as a torch.autograd.graph.GradientEdge.
PyObject* behind_the_host(const at::Tensor& root, const at::Tensor& gradient) {
  NodePtr node = make_node<RootHome>(root.device());
  node->add_next_edge(torch::autograd::impl::gradient_edge(root));
  node->add_input_metadata(gradient);
  return object_of_edge(node);
}

// Returns the arguments of run_backward, with such roots and their gradients over the host.
PyObject* with_roots_over_host(PyObject* args) {
  PyObject *roots = PyTuple_GET_ITEM(args, 0),
           *gradients = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1) : nullptr;
  if (!gradients || !are_wrapped_and_apart(roots, gradients)) return Py_NewRef(args);
  THPObjectPtr all(PySequence_List(args)), edges(PySequence_List(roots)), there(PySequence_List(gradients));
  for (Py_ssize_t i = 0; all && edges && there && i < PyTuple_GET_SIZE(roots); i++) {
    const at::Tensor& root = THPVariable_Unpack(PyTuple_GET_ITEM(roots, i));
    if (root.is_cpu()) continue;
    at::Tensor g = THPVariable_Unpack(PyTuple_GET_ITEM(gradients, i));
    {
      NoGil no_gil;
      g = g.cpu();
    }
    PyObject* edge = behind_the_host(root, g);
    if (!edge || PyList_SetItem(edges, i, edge) < 0 || PyList_SetItem(there, i, THPVariable_Wrap(std::move(g))) < 0)
      return nullptr;
  }
  if (!all || !edges || !there) return nullptr;
  if (PyList_SetItem(all, 0, PyList_AsTuple(edges)) < 0 || PyList_SetItem(all, 1, PyList_AsTuple(there)) < 0)
    return nullptr;
  return PyList_AsTuple(all);
}

// The engine has a thread for each accelerator, and a sum of gradients that come from several is added in the order in
// which they arrive. In one thread they arrive in the order of the graph, and work is issued in one order, too.
class OneThread {
 public:
  explicit OneThread(bool asked) : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    if (asked) set(false);
  }
  ~OneThread() { set(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static void set(bool enabled) { c10::AutogradState::get_tls_state().set_multithreading_enabled(enabled); }
  const bool before_;
};

PyObject* run_pass(PyObject* callable, PyObject* args, PyObject* kwargs) {
  const OneThread as_simulated(backward_in_caller);
  const auto takes_part = [&](Py_ssize_t i) {
    return PyTuple_GET_SIZE(args) > i && any_managed(PyTuple_GET_ITEM(args, i));
  };
  if (!takes_part(0) && !takes_part(1))
    return PyObject_Call(callable, args, kwargs); // neither roots nor their gradients
  const OperatorSection visit; // the engine reads leaves between operators, too
  c10::impl::IncludeDispatchKeyGuard managed_everywhere(kKey);
  THPObjectPtr at_roots(with_gradients_at_roots(args));
  THPObjectPtr aligned(at_roots ? with_roots_over_host(at_roots) : nullptr);
  if (!aligned) return nullptr;
  Hold roots(nullptr);
  hold_gradients(roots, aligned);
  const OneThread one_thread(at::globalContext().deterministicAlgorithms());
  MovedLeaves moved;
  THPObjectPtr whole(moved.with_earlier(aligned));
  if (!whole) return nullptr;
  return moved.with_sums(PyObject_Call(callable, whole, kwargs), brought);
}

} // namespace
} // namespace managed

using namespace managed;

PyObject* mgd_torch_run_backward(PyObject* callable, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    StepAside from_replay;
    THPObjectPtr result(run_pass(callable, args, kwargs));
    if (result) from_replay.come_back();
    return result.release();
  });
}

PyObject* mgd_torch_bring_gradient(PyObject* gradient, PyObject* device) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(gradient) && THPDevice_Check(device),
                     "managed: expected a tensor and a torch.device");
    if (!holds_managed(THPVariable_Unpack(gradient))) return Py_NewRef(gradient);
    return brought(gradient, reinterpret_cast<THPDevice*>(device)->device);
  });
}

int mgd_torch_gather_gradients(PyObject* parameters) {
  return guarded([&] {
    TORCH_CHECK_TYPE(PyList_Check(parameters), "managed: expected a list of tensors");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); i++) {
      if (!THPVariable_Check(PyList_GET_ITEM(parameters, i))) continue;
      const at::Tensor t = THPVariable_Unpack(PyList_GET_ITEM(parameters, i));
      if (!has_key(t.unsafeGetTensorImpl()) || !t.is_leaf() || !must_travel(t.grad(), t.device())) continue;
      NoGil no_gil;
      t.mutable_grad() = cross_values(t.grad(), t.device(), kGradient);
    }
    return 0;
  });
}
