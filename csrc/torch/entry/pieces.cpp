// pieces.cpp: a backward pass in pieces, for managed.Pipeline. cuts.h says what a piece is.
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <string>

#include "torch/align/cuts.h"
#include "torch/api.h"
#include "torch/residency/guard.h"
#include "torch/threads/threads.h"

namespace managed {
namespace {

constexpr const char* kCrossing = "managed.crossing";

NodePtr* node_in(PyObject* capsule) { return static_cast<NodePtr*>(PyCapsule_GetPointer(capsule, kCrossing)); }

void drop_node(PyObject* capsule) { delete node_in(capsule); }

PyObject* new_capsule(const NodePtr& node) {
  auto own = std::make_unique<NodePtr>(node);
  PyObject* capsule = PyCapsule_New(own.get(), kCrossing, &drop_node);
  if (capsule) (void)own.release();
  return capsule;
}

// Returns a list of f(element) for the elements of a vector.
template <class T, class F>
PyObject* list_of(const std::vector<T>& all, const F& f) {
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(all.size())));
  for (std::size_t i = 0; list && i < all.size(); i++) {
    PyObject* one = f(all[i]);
    if (!one) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), one);
  }
  return list.release();
}

// All arguments are new references, which the tuple takes; null if one is.
template <class... Parts>
PyObject* tuple_of(Parts... parts) {
  THPObjectPtr owned[] = {THPObjectPtr(parts)...};
  for (const THPObjectPtr& part : owned)
    if (!part) return nullptr;
  return PyTuple_Pack(sizeof...(parts), parts...);
}

PyObject* object_of_crossing(const NodePtr& node) {
  const torch::autograd::Edge& next = node->next_edge(0);
  return tuple_of(new_capsule(node), torch::autograd::functionToPyObject(node),
                  THPDevice_New(static_cast<TripHome&>(*node).home()),
                  torch::autograd::functionToPyObject(next.function), PyLong_FromUnsignedLong(next.input_nr));
}

PyObject* object_of_piece(const Piece& piece) {
  return tuple_of(THPDevice_New(piece.device),
                  list_of(piece.leaves, [](const NodePtr& leaf) { return torch::autograd::functionToPyObject(leaf); }),
                  list_of(piece.crossings, &object_of_crossing));
}

} // namespace
} // namespace managed

using namespace managed;

PyObject* mgd_torch_cut_backward(PyObject* loss) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(loss) && THPVariable_Unpack(loss).requires_grad(),
                     "managed: expected a tensor that requires a gradient");
    const at::Tensor& root = THPVariable_Unpack(loss);
    std::string why;
    std::vector<Piece> pieces;
    {
      NoGil no_gil;
      pieces = cut_at_crossings(root, &why);
    }
    return pieces.empty() ? PyUnicode_FromString(why.c_str()) : list_of(pieces, &object_of_piece);
  });
}

int mgd_torch_end_at_crossing(PyObject* crossing) {
  return guarded([&] {
    NodePtr* node = node_in(crossing);
    if (node) static_cast<TripHome&>(**node).cut();
    return node ? 0 : -1;
  });
}

PyObject* mgd_torch_leave_crossing(PyObject* crossing) {
  return guarded([&]() -> PyObject* {
    NodePtr* node = node_in(crossing);
    if (!node) return nullptr;
    at::Tensor gradient;
    {
      NoGil no_gil;
      gradient = static_cast<TripHome&>(**node).take_home();
    }
    return THPVariable_Wrap(std::move(gradient));
  });
}
