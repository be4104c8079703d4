// reading.cpp: calls that torch makes with the hook shut out.
//
// Tensors whose bytes torch reads stay at home meanwhile, as those of torch.tensor([x[0], x[1]]); the binding knows
// which calls do that (csrc/python/lists.c). The __torch_dispatch__ of a wrapper subclass gets the hook back.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch/api.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/facts/key.h"
#include "torch/saving.h"
#include "torch/threads/threads.h"

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

PyObject* mgd_torch_call_hooked(PyObject* call, PyObject* args, PyObject* kwargs) {
  return guarded([&] {
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard hooked(keys.included_, keys.excluded_.remove(kKey));
    return PyObject_Call(call, args, kwargs);
  });
}
