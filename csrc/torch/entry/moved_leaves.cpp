// moved_leaves.cpp: see moved_leaves.h.
#include "torch/entry/moved_leaves.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch/align/move.h"

namespace managed {
namespace {

// The places of arguments of run_backward.
constexpr Py_ssize_t kInputs = 4, kAllowsUnused = 5;

// Returns the sum of two gradients, of which each may be None.
PyObject* sum_of(PyObject* one, PyObject* other) {
  if (one == Py_None || other == Py_None) return Py_NewRef(one == Py_None ? other : one);
  return PyNumber_Add(one, other);
}

} // namespace

PyObject* object_of_edge(const NodePtr& node) {
  THPObjectPtr graph(PyImport_ImportModule("torch.autograd.graph"));
  THPObjectPtr kind(graph ? PyObject_GetAttrString(graph, "GradientEdge") : nullptr);
  THPObjectPtr wrapped(kind ? torch::autograd::functionToPyObject(node) : nullptr);
  return wrapped ? PyObject_CallFunction(kind, "Oi", wrapped.get(), 0) : nullptr;
}

int MovedLeaves::add_earlier(Py_ssize_t leaf, PyObject* inputs) {
  PyObject* input = PyTuple_GET_ITEM(inputs_.get(), leaf);
  if (!THPVariable_Check(input) || !THPVariable_Unpack(input).is_leaf()) return 0;
  for (const NodePtr& node : earlier_accumulators(THPVariable_Unpack(input))) {
    THPObjectPtr edge(object_of_edge(node));
    if (!edge || PyList_Append(inputs, edge) < 0) return -1;
    leaf_of_.push_back(leaf);
  }
  return 0;
}

PyObject* MovedLeaves::with_earlier(PyObject* args) {
  if (PyTuple_GET_SIZE(args) <= kInputs || !PyTuple_Check(PyTuple_GET_ITEM(args, kInputs))) return Py_NewRef(args);
  inputs_ = Py_NewRef(PyTuple_GET_ITEM(args, kInputs));
  THPObjectPtr inputs(PySequence_List(inputs_)), all(PySequence_List(args));
  if (!inputs || !all) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs_.get()); i++)
    if (add_earlier(i, inputs) < 0) return nullptr;
  if (leaf_of_.empty()) return Py_NewRef(args);
  PyObject* longer = PyList_AsTuple(inputs);
  if (!longer || PyList_SetItem(all, kInputs, longer) < 0) return nullptr;
  if (PyList_GET_SIZE(all.get()) > kAllowsUnused) { // a leaf may be in one kind of graph only
    allows_unused_ = PyObject_IsTrue(PyList_GET_ITEM(all.get(), kAllowsUnused)) == 1;
    if (PyList_SetItem(all, kAllowsUnused, Py_NewRef(Py_True)) < 0) return nullptr;
  }
  return PyList_AsTuple(all);
}

PyObject* MovedLeaves::with_sums(PyObject* results, PyObject* (*bring)(PyObject*, c10::Device)) {
  THPObjectPtr all(results);
  if (!all || !inputs_ || !PyTuple_Check(results)) return all.release(); // backward() returns None
  const Py_ssize_t asked = PyTuple_GET_SIZE(inputs_.get());
  const auto further = static_cast<Py_ssize_t>(leaf_of_.size());
  if (further == 0 || PyTuple_GET_SIZE(results) != asked + further) return all.release();
  THPObjectPtr list(PySequence_List(results));
  for (Py_ssize_t i = 0; list && i < further; i++) {
    const Py_ssize_t leaf = leaf_of_[static_cast<std::size_t>(i)];
    PyObject* sum = sum_of(PyList_GET_ITEM(list.get(), leaf), PyTuple_GET_ITEM(results, asked + i));
    if (!sum || PyList_SetItem(list, leaf, sum) < 0) return nullptr;
  }
  for (Py_ssize_t i = 0; list && i < asked; i++) {
    PyObject *input = PyTuple_GET_ITEM(inputs_.get(), i), *sum = PyList_GET_ITEM(list.get(), i);
    TORCH_CHECK(allows_unused_ || sum != Py_None,
                "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True "
                "if this is the desired behavior.");
    if (!THPVariable_Check(input) || !THPVariable_Check(sum)) continue;
    PyObject* there = bring(sum, THPVariable_Unpack(input).device());
    if (!there || PyList_SetItem(list, i, there) < 0) return nullptr;
  }
  return list ? PySequence_Tuple(THPObjectPtr(PyList_GetSlice(list, 0, asked)).get()) : nullptr;
}

} // namespace managed
