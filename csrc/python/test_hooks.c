/* test_hooks.c: Python functions that only managed's own tests and benchmarks call (core/testing.h). They are
 * not in packages.
 */
#include "core/testing.h"
#include "python/binding.h"

#if MANAGED_TEST_HOOKS
static PyObject *lie(PyObject *module, PyObject *args) {
  int device;
  unsigned long long seed;
  if (!PyArg_ParseTuple(args, "iK:lie", &device, &seed)) return NULL;
  const int code = mgd_step_lie(mgd_torch_machine(), device, seed);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "making a plan lie"), NULL;
  Py_RETURN_NONE;
}

static PyObject *disturb(PyObject *module, PyObject *value) {
  const unsigned long long seed = PyLong_AsUnsignedLongLong(value);
  if (seed == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  const int code = mgd_step_disturb(mgd_torch_machine(), seed);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "disturbing what devices learn"), NULL;
  Py_RETURN_NONE;
}

static PyObject *fetch_ahead(PyObject *module, PyObject *value) {
  const int on = PyObject_IsTrue(value);
  if (on < 0) return NULL;
  const int code = mgd_step_fetch_ahead(mgd_torch_machine(), on != 0);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "choosing when bytes come back"), NULL;
  Py_RETURN_NONE;
}

static PyObject *begin_uses(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  if (mgd_torch_begin_uses() < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *end_uses(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return mgd_torch_end_uses();
}

static PyObject *shake_replicas(PyObject *module, PyObject *value) {
  const unsigned long long seed = PyLong_AsUnsignedLongLong(value);
  if (seed == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  mgd_replica_shake(mgd_torch_machine(), seed);
  (void)module;
  Py_RETURN_NONE;
}
#endif

PyMethodDef mgd_test_hooks_methods[] = {
#if MANAGED_TEST_HOOKS
    {"lie", lie, METH_VARARGS,
     PyDoc_STR("lie(device, seed, /)\n--\n\nFor tests: each action of the device's plan is of another storage from "
               "now on.")},
    {"disturb_steps", disturb, METH_O,
     PyDoc_STR("disturb_steps(seed, /)\n--\n\nFor tests: what devices learn from is wrong from now on, in times and in "
               "operators. 0: as it is.")},
    {"fetch_ahead", fetch_ahead, METH_O,
     PyDoc_STR("fetch_ahead(on, /)\n--\n\nFor benchmarks: False, and plans bring nothing back before it is needed.")},
    {"begin_uses", begin_uses, METH_NOARGS,
     PyDoc_STR("begin_uses()\n--\n\nFor benchmarks: notes which storages operators use, from now on.")},
    {"end_uses", end_uses, METH_NOARGS,
     PyDoc_STR("end_uses()\n--\n\nWhat was noted: (storage, bytes, operator, kind, ns) with kind 0 made, 1 read, "
               "2 written, 3 dropped, and ns when the device had done what came before, since the beginning.")},
    {"shake_replicas", shake_replicas, METH_O,
     PyDoc_STR(
         "shake_replicas(seed, /)\n--\n\nFor tests: one kept copy in four, by chance, no longer serves; 0 ends it.")},
#endif
    {NULL, NULL, 0, NULL}};
