/* on.c: the mode of a thread in managed.on, and the types of torch that take a device without an operator.
 *
 * torch.Generator, torch.Event and torch.Stream are made by C++ code that accepts no simulated devices under CUDA's
 * name. Their tp_new is replaced while a thread is inside managed.on; for other threads it calls torch's.
 */
#include "torch/on.h"
#include "python/binding.h"

#include <string.h>

static PyObject *get_on(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyLong_FromLong(mgd_torch_on());
}

static PyObject *set_on(PyObject *module, PyObject *args) {
  (void)module;
  int mode;
  PyObject *pick;
  if (mgd_state_ready() < 0 || !PyArg_ParseTuple(args, "iO:set_on", &mode, &pick)) return NULL;
  const int old = mgd_torch_set_on(mode, pick);
  return old < 0 ? NULL : PyLong_FromLong(old);
}

/* ---- types that take a device */

/* This is static because there is one of each type in a process. It is written with the GIL. */
static newfunc original[3];

/* Whether the object is "cuda:1", or a torch.device of that kind. */
static int names_cuda(PyObject *device) {
  PyObject *text = device ? PyObject_Str(device) : NULL;
  const char *word = text ? PyUnicode_AsUTF8(text) : NULL;
  const int yes = word && strncmp(word, "cuda", 4) == 0 && (word[4] == 0 || word[4] == ':');
  Py_XDECREF(text);
  if (!word) PyErr_Clear(); /* torch raises its own error for it */
  return yes;
}

/* Returns the named simulated device; a bare "cuda" is the first one, as in torch. */
static PyObject *simulated(PyObject *device) {
  int id = 0, any = 0;
  return mgd_errors_device_id(device, &id, &any) < 0 ? NULL : mgd_torch_device(id);
}

/* Calls torch's function with the device replaced, which is the first argument or the one named "device". */
static PyObject *call_with(newfunc torchs, PyTypeObject *type, PyObject *args, PyObject *named, PyObject *device) {
  PyObject *where = simulated(device), *rest = NULL, *words = named ? PyDict_Copy(named) : PyDict_New();
  if (PyTuple_GET_SIZE(args)) {
    PyObject *tail = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
    PyObject *head = where ? PyTuple_Pack(1, where) : NULL;
    rest = head && tail ? PySequence_Concat(head, tail) : NULL;
    Py_XDECREF(head);
    Py_XDECREF(tail);
  } else if (where && words && PyDict_SetItemString(words, "device", where) == 0) {
    rest = Py_NewRef(args);
  }
  PyObject *made = rest && words ? torchs(type, rest, words) : NULL;
  Py_XDECREF(rest);
  Py_XDECREF(words);
  Py_XDECREF(where);
  return made;
}

static PyObject *make(size_t i, PyTypeObject *type, PyObject *args, PyObject *named) {
  PyObject *device = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0)
      : named                               ? PyDict_GetItemString(named, "device")
                                            : NULL;
  if (mgd_torch_on() == MGD_OFF || !names_cuda(device)) return original[i](type, args, named);
  return call_with(original[i], type, args, named, device);
}

static PyObject *make_first(PyTypeObject *type, PyObject *args, PyObject *named) { return make(0, type, args, named); }
static PyObject *make_second(PyTypeObject *type, PyObject *args, PyObject *named) { return make(1, type, args, named); }
static PyObject *make_third(PyTypeObject *type, PyObject *args, PyObject *named) { return make(2, type, args, named); }

static PyObject *cuda_is_simulated(PyObject *module, PyObject *args) {
  (void)module;
  static const newfunc ours[] = {make_first, make_second, make_third};
  PyTypeObject *types[3];
  int yes;
  if (mgd_state_ready() < 0 ||
      !PyArg_ParseTuple(args, "pO!O!O!:cuda_is_simulated", &yes, &PyType_Type, &types[0], &PyType_Type, &types[1],
                        &PyType_Type, &types[2]))
    return NULL;
  const int old = mgd_torch_cuda_is_simulated(yes);
  if (old < 0) return NULL;
  for (size_t i = 0; old != yes && i < sizeof ours / sizeof *ours; i++) {
    if (yes) original[i] = types[i]->tp_new;
    types[i]->tp_new = yes ? ours[i] : original[i];
  }
  return PyBool_FromLong(old);
}

PyMethodDef mgd_on_methods[] = {
    {"get_on", get_on, METH_NOARGS,
     PyDoc_STR("get_on()\n--\n\n0 where this thread is outside of managed.on, 1 inside, 2 where it disperses, too.")},
    {"set_on", set_on, METH_VARARGS,
     PyDoc_STR("set_on(mode, pick, /)\n--\n\nChanges that and returns the old value. `pick` gives the torch.device for "
               "bytes of which the program names only the kind.")},
    {"cuda_is_simulated", cuda_is_simulated, METH_VARARGS,
     PyDoc_STR("cuda_is_simulated(yes, generator, event, stream, /)\n--\n\nWhether threads inside take simulated "
               "devices for CUDA's, also where these types of torch are made. Returns the old value.")},
    {NULL, NULL, 0, NULL}};
