// conflict.cpp: turns a pin conflict into managed.errors.PinConflictError on its
// way through torch, whichever thread it is thrown on.
#include "conflict.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>

#include "api.h"

namespace managed {
namespace {

std::atomic<PyObject*> pin_conflict_type{nullptr}; // owned; lives as long as the process

struct PinConflict : torch::PyTorchError {
  using PyTorchError::PyTorchError;
  PyObject* python_type() override {
    PyObject* type = pin_conflict_type;
    return type ? type : PyExc_RuntimeError;
  }
};

} // namespace

void throw_pin_conflict(std::string message) { throw PinConflict(std::move(message)); }

} // namespace managed

void mgd_torch_set_pin_conflict(PyObject* type) { Py_XDECREF(managed::pin_conflict_type.exchange(Py_XNewRef(type))); }
