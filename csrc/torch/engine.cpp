// engine.cpp: the entry into the backward engine.
//
// Autograd saves some outputs before the hook has marked them, so an operator
// of the backward pass may have no managed operand at all. Including the key
// in thread-local state for the whole pass covers it; the engine hands that
// state to its own threads. Plain models are left alone.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "api.h"
#include "key.h"

namespace {

bool any_managed(PyObject* roots) {
  if (!PyTuple_Check(roots)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++)
    if (mgd_torch_is_managed(PyTuple_GET_ITEM(roots, i))) return true;
  return false;
}

} // namespace

PyObject* mgd_torch_run_backward(PyObject* callable, PyObject* args, PyObject* kwargs) {
  PyObject* roots = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (!roots || !any_managed(roots)) return PyObject_Call(callable, args, kwargs);
  c10::impl::IncludeDispatchKeyGuard managed_everywhere(managed::kKey);
  return PyObject_Call(callable, args, kwargs);
}
