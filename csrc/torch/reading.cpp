// reading.cpp: keeps tensors at home while torch reads them with the hook shut out, as torch.tensor([x[0], x[1]]) does.
//
// Which calls do that is known to the binding (csrc/python/lists.c).
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
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++)
      hold.add(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)), false);
    hold.bring_home();
    return f(context);
  });
}
