/* storage.c: Python functions for storages that serialisers hold, for managed._torch_patches.saving.
 *
 * Nothing is decided here: frames.c detects callers that only save, csrc/torch/door/saving.cpp does the rest.
 */
#include "torch/loan.h"
#include "torch/saving.h"
#include "python/binding.h"

int mgd_storage_find_saved(PyObject *o, PyObject **saved) {
  PyObject *untyped = PyObject_GetAttrString(o, "_untyped_storage"); /* a typed storage wraps an untyped one */
  if (!untyped && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  if (!untyped) {
    PyErr_Clear();
    untyped = Py_NewRef(o);
  }
  if (mgd_torch_is_saved(untyped)) *saved = untyped;
  else Py_DECREF(untyped);
  return 0;
}

static PyObject *is_saved(PyObject *module, PyObject *storage) {
  (void)module;
  return PyBool_FromLong(mgd_torch_is_saved(storage));
}

static PyObject *keep_storage(PyObject *module, PyObject *storage) {
  (void)module;
  if (mgd_torch_keep_storage(storage) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *save_made(PyObject *module, PyObject *storage) {
  (void)module;
  if (mgd_torch_save_made(storage) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *copy_saved(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *target, *source;
  if (!PyArg_ParseTuple(args, "OO:copy_saved", &target, &source) || mgd_torch_copy_saved(target, source) < 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *write_saved(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *target, *source;
  if (!PyArg_ParseTuple(args, "OO:write_saved", &target, &source) || mgd_torch_write_saved(target, source) < 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *compared_address(PyObject *module, PyObject *storage) {
  (void)module;
  const uint64_t identity = mgd_torch_identity(storage);
  return PyLong_FromUnsignedLongLong(identity && mgd_frames_is_saver() ? identity : 0);
}

static PyObject *call_lent(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *tensors, *written, *call, *given, *named = NULL;
  if (!PyArg_ParseTuple(args, "OOOO!|O!:call_lent", &tensors, &written, &call, &PyTuple_Type, &given, &PyDict_Type,
                        &named))
    return NULL;
  return mgd_torch_call_lent(tensors, written, call, given, named);
}

static PyObject *call_hooked(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *call, *given, *named;
  if (!PyArg_ParseTuple(args, "OO!O!:call_hooked", &call, &PyTuple_Type, &given, &PyDict_Type, &named)) return NULL;
  return mgd_torch_call_hooked(call, given, named);
}

static PyObject *explained(PyObject *module, PyObject *error) {
  (void)module;
  return mgd_torch_explained(error);
}

PyMethodDef mgd_storage_methods[] = {
    {"is_saved", is_saved, METH_O,
     PyDoc_STR("is_saved(storage, /)\n--\n\nWhether the storage is only being saved, so that it may leave.")},
    {"keep_storage", keep_storage, METH_O,
     PyDoc_STR("keep_storage(storage, /)\n--\n\nThe program holds it from now on: its bytes come home and stay.")},
    {"save_made", save_made, METH_O,
     PyDoc_STR("save_made(storage, /)\n--\n\nMarks a new storage without other holders as one that is only saved.")},
    {"copy_saved", copy_saved, METH_VARARGS,
     PyDoc_STR("copy_saved(target, source, /)\n--\n\nCopies a saved storage from where its bytes are.")},
    {"write_saved", write_saved, METH_VARARGS,
     PyDoc_STR("write_saved(target, source, /)\n--\n\nCopies a storage of the host into a saved one.")},
    {"compared_address", compared_address, METH_O,
     PyDoc_STR("compared_address(storage, /)\n--\n\nWhat stands for its address where the caller only compares it; 0 "
               "where it has to be the address itself.")},
    {"call_lent", call_lent, METH_VARARGS,
     PyDoc_STR("call_lent(lent, at, f, args, kw={}, /)\n--\n\nCalls what reads the pointers of the "
               "tensors and writes those at the "
               "positions `at`, or all if it is None; they stay home until it returns.")},
    {"call_hooked", call_hooked, METH_VARARGS,
     PyDoc_STR("call_hooked(call, args, kwargs, /)\n--\n\nCalls it with managed's key as it is outside of a "
               "__torch_dispatch__.")},
    {"explained", explained, METH_O,
     PyDoc_STR("explained(text, /)\n--\n\nThe text of an allocator's error, with what holds the memory.")},
    {NULL, NULL, 0, NULL}};
