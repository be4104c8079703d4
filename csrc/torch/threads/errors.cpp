// errors.cpp: turns errors of the hook into exceptions of managed.errors that pass through torch, whichever thread they
// are thrown on.
#include "torch/threads/errors.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>

#include "torch/api.h"

namespace managed {
namespace {

using Type = std::atomic<PyObject*>; // owned; lives as long as the process
Type pin_conflict_type{nullptr}, out_of_memory_type{nullptr};

template <Type& type>
struct Error : torch::PyTorchError {
  using PyTorchError::PyTorchError;
  PyObject* python_type() override {
    PyObject* t = type;
    return t ? t : PyExc_RuntimeError;
  }
};

} // namespace

void throw_pin_conflict(std::string message) { throw Error<pin_conflict_type>(std::move(message)); }
void throw_out_of_memory(std::string message) { throw Error<out_of_memory_type>(std::move(message)); }

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const Error<out_of_memory_type>*>(&error) || dynamic_cast<const c10::OutOfMemoryError*>(&error);
}

} // namespace managed

void mgd_torch_set_errors(PyObject* pin_conflict, PyObject* out_of_memory) {
  Py_XDECREF(managed::pin_conflict_type.exchange(Py_XNewRef(pin_conflict)));
  Py_XDECREF(managed::out_of_memory_type.exchange(Py_XNewRef(out_of_memory)));
}
