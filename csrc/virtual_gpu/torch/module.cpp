// module.cpp: managed._virtual_gpu for Python: one function, install().
//
// Owns nothing but the binding. It needs `import torch` before, and may be imported without the package.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include "virtual_gpu/torch/register.h"

namespace {

PyDoc_STRVAR(install_doc,
             "install()\n--\n\n"
             "Makes the CUDA operators of this process compute on the host; once more does nothing. For a process whose CUDA\n"
             "runtime is the virtual one: see managed.virtual_gpu.");

PyObject *install(PyObject *, PyObject *) {
  HANDLE_TH_ERRORS
  static const bool once = (managed::sim::register_kernels(), true);
  (void)once;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"install", install, METH_NOARGS, install_doc},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "managed._virtual_gpu", "Kernels of virtual GPUs: see managed.virtual_gpu.", 0, methods, slots, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__virtual_gpu(void) { return PyModuleDef_Init(&definition); }
