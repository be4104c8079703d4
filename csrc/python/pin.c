/* pin.c: pin(), unpin(), pinned, unplace() and placed, which managed tensors have and plain ones have not: a plain
 * tensor keeps any attribute of its own by these names.
 *
 * They are implemented in csrc/torch/door/tensor_api.cpp; tensor.c puts them into torch.Tensor.
 */
#include "python/binding.h"

#include <string.h>

static PyObject *tensor_pin(PyObject *self, PyObject *unused) {
  (void)unused;
  return mgd_torch_pin(self, 1) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *tensor_unpin(PyObject *self, PyObject *unused) {
  (void)unused;
  return mgd_torch_pin(self, 0) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *tensor_unplace(PyObject *self, PyObject *unused) {
  (void)unused;
  return mgd_torch_place(self, 0) < 0 ? NULL : Py_NewRef(self);
}

static PyMethodDef pin_method = {
    "pin", tensor_pin, METH_NOARGS,
    PyDoc_STR(
        "pin($self, /)\n--\n\nKeeps this managed tensor on its device; operators come to it. Returns the tensor.")};
static PyMethodDef unpin_method = {"unpin", tensor_unpin, METH_NOARGS,
                                   PyDoc_STR("unpin($self, /)\n--\n\nLets the tensor move again. Returns the tensor.")};

static PyMethodDef unplace_method = {
    "unplace", tensor_unplace, METH_NOARGS,
    PyDoc_STR("unplace($self, /)\n--\n\nForgets that the program put this managed tensor where it is: it may move "
              "by itself. Returns the tensor.")};

static PyObject *plain_attribute(PyObject *self, const char *name) {
  PyObject *dict = PyObject_GenericGetDict(self, NULL);
  if (!dict) return NULL;
  PyObject *value = PyMapping_GetItemString(dict, name);
  Py_DECREF(dict);
  if (value || !PyErr_ExceptionMatches(PyExc_KeyError)) return value;
  PyErr_Clear();
  PyErr_Format(PyExc_AttributeError,
               "'%.100s' object has no attribute '%s': it is not managed, see as_subclass(ManagedTensor)",
               Py_TYPE(self)->tp_name, name);
  return NULL;
}

static PyObject *pin_get(PyObject *self, void *name) {
  if (!mgd_torch_is_managed(self)) return plain_attribute(self, name);
  if (strcmp(name, "pin") == 0) return PyCFunction_New(&pin_method, self);
  if (strcmp(name, "unpin") == 0) return PyCFunction_New(&unpin_method, self);
  if (strcmp(name, "unplace") == 0) return PyCFunction_New(&unplace_method, self);
  const int yes = strcmp(name, "pinned") == 0 ? mgd_torch_pinned(self) : mgd_torch_placed(self);
  return yes < 0 ? NULL : PyBool_FromLong(yes);
}

static int pin_set(PyObject *self, PyObject *value, void *name) {
  if (mgd_torch_is_managed(self)) {
    PyErr_Format(PyExc_AttributeError,
                 "managed: '%s' of a managed tensor cannot be set; call pin(), unpin(), cuda() or unplace()",
                 (const char *)name);
    return -1;
  }
  PyObject *dict = PyObject_GenericGetDict(self, NULL);
  if (!dict) return -1;
  int failed = value ? PyDict_SetItemString(dict, name, value) : PyDict_DelItemString(dict, name);
  if (failed && !value && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_SetString(PyExc_AttributeError, name);
  Py_DECREF(dict);
  return failed;
}

PyGetSetDef mgd_pin_getsets[] = {
    {"pin", pin_get, pin_set, PyDoc_STR("pin(): keeps a managed tensor on its device."), (void *)"pin"},
    {"unpin", pin_get, pin_set, PyDoc_STR("unpin(): lets a managed tensor move again."), (void *)"unpin"},
    {"pinned", pin_get, pin_set, PyDoc_STR("Whether a managed tensor is pinned."), (void *)"pinned"},
    {"unplace", pin_get, pin_set, PyDoc_STR("unplace(): lets a managed tensor move that was put where it is."),
     (void *)"unplace"},
    {"placed", pin_get, pin_set, PyDoc_STR("Whether the program put a managed tensor where it is."), (void *)"placed"},
    {NULL, NULL, NULL, NULL, NULL},
};
