// module.cpp: managed._cuda for Python: one function, attach(bridge).
//
// Owns nothing but the binding. Importing it initialises no CUDA; it needs
// `import torch` before, which loads the libraries it is linked with.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "memory.h"
#include "pressure.h"

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
  auto* bridge = static_cast<managed::Bridge*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (bridge->version != managed::Bridge{}.version) {
    PyErr_Format(PyExc_RuntimeError, "managed._C speaks version %d of the bridge and managed._cuda version %d: build both again",
                 bridge->version, managed::Bridge{}.version);
    return nullptr;
  }
  managed::fill_backend(bridge);
  managed::set_hook(bridge);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"attach", attach, METH_O, attach_doc},
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
