// module.cpp: managed._cuda for Python: attach(bridge), and what its tests ask.
//
// Owns nothing but the binding. Importing it initialises no CUDA; it needs
// `import torch` before, which loads the libraries it is linked with.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cuda/front.h"
#include "cuda/memory.h"
#include "cuda/pressure.h"
#include "cuda/room.h"

namespace {

constexpr const char* kCapsule = "managed._C.bridge";

PyDoc_STRVAR(attach_doc,
             "attach(bridge, /)\n--\n\n"
             "Connects CUDA's caching allocator with the hook behind the capsule `bridge`.\n\n"
             "Raises ValueError for another capsule and RuntimeError for one of another version.");

PyObject* attach(PyObject*, PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kCapsule)) {
    PyErr_Format(PyExc_ValueError, "attach() takes the capsule \"%s\", got %R", kCapsule, capsule);
    return nullptr;
  }
  auto* bridge =
      static_cast<managed::CudaBridge*>(static_cast<managed::Bridge*>(PyCapsule_GetPointer(capsule, kCapsule)));
  if (bridge->version != managed::Bridge{}.version) {
    PyErr_Format(PyExc_RuntimeError,
                 "managed._C speaks version %d of the bridge and managed._cuda version %d: build both again",
                 bridge->version, managed::Bridge{}.version);
    return nullptr;
  }
  managed::fill_backend(bridge);
  managed::set_hook(bridge);
  Py_RETURN_NONE;
}

PyDoc_STRVAR(
    forgotten_doc,
    "forgotten(without_any, /)\n--\n\n"
    "For tests: how many virtual functions torch's allocator has, and the places of those that the front of it lacks; "
    "`without_any`: that a class without functions of its own lacks.");

PyObject* forgotten(PyObject*, PyObject* without_any) {
  const int bare = PyObject_IsTrue(without_any);
  if (bare < 0) return nullptr;
  const auto [functions, places] = managed::forgotten_functions(bare != 0);
  PyObject* list = PyList_New(0);
  for (const std::size_t place : places) {
    PyObject* number = list ? PyLong_FromSize_t(place) : nullptr;
    if (!number || PyList_Append(list, number) < 0) Py_CLEAR(list);
    Py_XDECREF(number);
  }
  return list ? Py_BuildValue("nN", static_cast<Py_ssize_t>(functions), list) : nullptr;
}

PyDoc_STRVAR(room_doc,
             "room(index, /)\n--\n\n"
             "For tests: bytes that one request could have now on the CUDA device.");

PyObject* room(PyObject*, PyObject* index) try {
  const long device = PyLong_AsLong(index);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromSize_t(managed::room(static_cast<int>(device)));
} catch (const std::exception& e) {
  PyErr_SetString(PyExc_RuntimeError, e.what());
  return nullptr;
}

PyMethodDef methods[] = {
    {"attach", attach, METH_O, attach_doc},
    {"forgotten", forgotten, METH_O, forgotten_doc},
    {"room", room, METH_O, room_doc},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "managed._cuda",
    "The allocator of CUDA, attached to managed.",
    0,
    methods,
    slots,
    nullptr,
    nullptr,
    nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit__cuda(void) { return PyModuleDef_Init(&module); }
