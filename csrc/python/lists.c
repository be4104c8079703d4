/* lists.c: lists of tensors that torch reads number by number.
 *
 * torch.tensor([x[1], x[5]]) and similar functions exclude the hook while they read, so the tensors in their lists are
 * brought home before, and kept there. The function objects are not replaced, since compilers know them by identity:
 * only the C functions that they call are.
 */
#include "torch/saving.h"
#include "python/binding.h"

static const char *const names[] = {"tensor", "as_tensor", "asarray", "sparse_coo_tensor"};
enum { FUNCTIONS = sizeof names / sizeof *names };

/* Written once, when the package is installed. */
static PyCFunctionWithKeywords originals[FUNCTIONS];

#define DEEPEST 128 /* torch refuses lists that are deeper */

/* Appends the managed tensors of a nest of lists and tuples. */
static int gather(PyObject *o, int depth, PyObject *found) {
  if (PyFloat_CheckExact(o) || PyLong_CheckExact(o)) return 0;
  if (!PyList_Check(o) && !PyTuple_Check(o)) return mgd_torch_is_managed(o) ? PyList_Append(found, o) : 0;
  int failed = 0;
  for (Py_ssize_t i = 0; !failed && depth < DEEPEST && i < PySequence_Fast_GET_SIZE(o); i++)
    failed = gather(PySequence_Fast_GET_ITEM(o, i), depth + 1, found);
  return failed;
}

/* Gathers from arguments that are lists. A tensor argument itself is skipped: operators read it. */
static int gather_lists(PyObject *const *args, Py_ssize_t n, PyObject *found) {
  int failed = 0;
  for (Py_ssize_t i = 0; !failed && i < n; i++)
    if (PyList_Check(args[i]) || PyTuple_Check(args[i])) failed = gather(args[i], 0, found);
  return failed;
}

PyObject *mgd_lists_call(PyObject *const *args, Py_ssize_t n, PyObject *(*f)(void *), void *context) {
  PyObject *found = PyList_New(0), *result = NULL;
  if (found && gather_lists(args, n, found) == 0)
    result = PyList_GET_SIZE(found) ? mgd_torch_held(found, f, context) : f(context);
  Py_XDECREF(found);
  return result;
}

struct call {
  int which;
  PyObject *self, *args, *kwargs;
};

static PyObject *call_original(void *context) {
  const struct call *c = context;
  return originals[c->which](c->self, c->args, c->kwargs);
}

static PyObject *call(int which, PyObject *self, PyObject *args, PyObject *kwargs) {
  struct call c = {which, self, args, kwargs};
  PyObject *named = kwargs && PyDict_GET_SIZE(kwargs) ? PyDict_Values(kwargs) : PyList_New(0);
  PyObject *all = named ? PySequence_InPlaceConcat(named, args) : NULL;
  PyObject *result = all ? mgd_lists_call(PySequence_Fast_ITEMS(all), PyList_GET_SIZE(all), call_original, &c) : NULL;
  Py_XDECREF(all);
  Py_XDECREF(named);
  return result;
}

#define FUNCTION(i)                                                                 \
  static PyObject *function_##i(PyObject *self, PyObject *args, PyObject *kwargs) { \
    return call(i, self, args, kwargs);                                             \
  }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3)

static const PyCFunctionWithKeywords ours[FUNCTIONS] = {function_0, function_1, function_2, function_3};

/* Replaces the C function. If it is no built-in of this kind, another library has replaced it, and it is left alone. */
static int replace(PyObject *torch, int which) {
  PyObject *function = PyObject_GetAttrString(torch, names[which]);
  if (!function) return -1;
  PyMethodDef *method = PyCFunction_CheckExact(function) ? ((PyCFunctionObject *)function)->m_ml : NULL;
  if (method && (method->ml_flags & (METH_VARARGS | METH_KEYWORDS)) == (METH_VARARGS | METH_KEYWORDS)) {
    originals[which] = (PyCFunctionWithKeywords)(void (*)(void))method->ml_meth;
    method->ml_meth = (PyCFunction)(void (*)(void))ours[which];
  }
  Py_DECREF(function);
  return 0;
}

int mgd_lists_install(void) {
  PyObject *torch = PyImport_ImportModule("torch");
  int failed = !torch;
  for (int which = 0; !failed && which < FUNCTIONS; which++) failed = replace(torch, which) < 0;
  Py_XDECREF(torch);
  return failed ? -1 : 0;
}
