// reading.cpp: tensors that torch reads while it shuts out the hook.
#include <torch/csrc/autograd/python_variable.h>

#include "api.h"
#include "guard.h"
#include "hold.h"
#include "saving.h"
#include "threads.h"

using namespace managed;

PyObject* mgd_torch_held(PyObject* tensors, PyObject* (*f)(void*), void* context) {
  return guarded([&] {
    const OperatorSection visit;
    Turn turn;
    Hold hold(&turn);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) hold.add(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)), false);
    hold.bring_home();
    return f(context);
  });
}
