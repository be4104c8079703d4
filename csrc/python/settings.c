/* settings.c: the settings that reach the core: the size heuristic, budgets and the frozen state of a thread.
 *
 * The core calls the heuristic back with no lock held. The callback runs under the GIL, and exceptions of the user's
 * function are passed on unchanged.
 */
#include "python/binding.h"

/* ---- the heuristic */

/* Converts the result of the user's function to bytes; the error names the function if it is no such number. */
static int heuristic_result(PyObject *function, int64_t size, PyObject *value, int64_t *out) {
  if (PyBool_Check(value) || !PyIndex_Check(value)) {
    PyErr_Format(PyExc_TypeError, "managed: HEURISTIC_FUNCTION %R returned %R for %lld bytes; it returns an int",
                 function, value, (long long)size);
    return MGD_E_CALLBACK;
  }
  PyObject *index = PyNumber_Index(value);
  if (!index) return MGD_E_CALLBACK;
  int overflow = 0;
  const long long bytes = PyLong_AsLongLongAndOverflow(index, &overflow);
  Py_DECREF(index);
  if (overflow || bytes < 0) {
    PyErr_Format(PyExc_ValueError,
                 "managed: HEURISTIC_FUNCTION %R returned %R for %lld bytes; it returns 0 to 2**63 - 1", function,
                 value, (long long)size);
    return MGD_E_CALLBACK;
  }
  *out = bytes;
  return MGD_OK;
}

/* Calls HEURISTIC_FUNCTION, as an mgd_heuristic_fn. The strong reference taken here keeps the function alive if another
 * thread replaces it meanwhile. */
static int call_heuristic(void *context, int64_t size, int64_t *out) {
  struct mgd_state *st = context;
  PyGILState_STATE gil = PyGILState_Ensure();
  int code = MGD_E_CALLBACK;
  PyObject *function = Py_NewRef(st->heuristic ? st->heuristic : st->default_heuristic);
  PyObject *value = PyObject_CallFunction(function, "L", (long long)size);
  if (value) code = heuristic_result(function, size, value, out);
  Py_XDECREF(value);
  Py_DECREF(function);
  PyGILState_Release(gil);
  return code;
}

int mgd_settings_estimate(struct mgd_state *st, int64_t size, int64_t *out) {
  const int code = mgd_heuristic_apply(mgd_torch_machine(), size, out);
  return code == MGD_OK ? 0 : mgd_errors_raise(st, code, "estimating the room for a tensor");
}

/* Makes the default formula available as a Python callable, so that user functions can build on it. */
static PyObject *default_heuristic(PyObject *module, PyObject *size) {
  int64_t bytes, out = 0;
  if (mgd_errors_bytes(size, "size", &bytes) < 0) return NULL;
  const int code = mgd_heuristic_default(NULL, bytes, &out);
  if (code != MGD_OK) {
    mgd_errors_raise(mgd_state_of(module), code, "estimating");
    return NULL;
  }
  return PyLong_FromLongLong(out);
}

static PyObject *get_heuristic(PyObject *module, PyObject *unused) {
  (void)unused;
  struct mgd_state *st = mgd_state_of(module);
  return Py_NewRef(st->heuristic ? st->heuristic : st->default_heuristic);
}

static PyObject *set_heuristic(PyObject *module, PyObject *function) {
  struct mgd_state *st = mgd_state_of(module);
  if (mgd_state_ready() < 0) return NULL;
  if (!PyCallable_Check(function)) {
    PyErr_Format(PyExc_TypeError,
                 "managed: HEURISTIC_FUNCTION takes a size in bytes and returns one; %R is not callable", function);
    return NULL;
  }
  const int builtin = function == st->default_heuristic;
  const int code = mgd_heuristic_set(mgd_torch_machine(), builtin ? NULL : &call_heuristic, st);
  if (code != MGD_OK) {
    mgd_errors_raise(st, code, "setting HEURISTIC_FUNCTION");
    return NULL;
  }
  PyObject *old = st->heuristic;
  st->heuristic = builtin ? NULL : Py_NewRef(function);
  Py_XDECREF(old); /* this comes last: it may run the user's code */
  Py_RETURN_NONE;
}

static PyObject *get_use_heuristic(PyObject *module, PyObject *unused) {
  (void)unused;
  return PyBool_FromLong(mgd_state_of(module)->use_heuristic);
}

static PyObject *set_use_heuristic(PyObject *module, PyObject *value) {
  struct mgd_state *st = mgd_state_of(module);
  if (mgd_state_ready() < 0) return NULL;
  if (!PyBool_Check(value)) {
    PyErr_Format(PyExc_TypeError, "managed: USE_HEURISTIC is True or False, not %R", value);
    return NULL;
  }
  const int code = mgd_heuristic_enable(mgd_torch_machine(), value == Py_True);
  if (code != MGD_OK) {
    mgd_errors_raise(st, code, "setting USE_HEURISTIC");
    return NULL;
  }
  st->use_heuristic = value == Py_True;
  Py_RETURN_NONE;
}

static PyObject *estimate(PyObject *module, PyObject *size) {
  int64_t bytes, out = 0;
  if (mgd_state_ready() < 0 || mgd_errors_bytes(size, "size", &bytes) < 0) return NULL;
  return mgd_settings_estimate(mgd_state_of(module), bytes, &out) < 0 ? NULL : PyLong_FromLongLong(out);
}

/* ---- budgets */

/* Finds the id of one accelerator. "cuda" and the host are errors: they have no budget. */
static int accelerator_id(PyObject *device, int *id) {
  int any = 0;
  if (mgd_state_ready() < 0 || mgd_errors_device_id(device, id, &any) < 0) return -1;
  if (!any && *id != MGD_HOST) return 0;
  PyErr_Format(PyExc_ValueError, "managed: this takes one accelerator with its index (\"cuda:0\", \"sim:1\"), not %R",
               device);
  return -1;
}

static PyObject *capacity(PyObject *module, PyObject *device) {
  int id;
  struct mgd_usage usage;
  if (accelerator_id(device, &id) < 0) return NULL;
  const int code = mgd_ledger_usage(mgd_torch_machine(), id, &usage);
  if (code == MGD_OK) return PyLong_FromLongLong(usage.capacity);
  mgd_errors_raise(mgd_state_of(module), code, "reading a capacity");
  return NULL;
}

static PyObject *set_capacity(PyObject *module, PyObject *args) {
  PyObject *device, *value;
  int id, spills, host;
  int64_t bytes;
  struct mgd_usage before = {0};
  if (!PyArg_ParseTuple(args, "OOpp:set_capacity", &device, &value, &spills, &host)) return NULL;
  if (accelerator_id(device, &id) < 0 || mgd_errors_bytes(value, "budget", &bytes) < 0) return NULL;
  int code = mgd_ledger_usage(mgd_torch_machine(), id, &before);
  if (code == MGD_OK) code = mgd_device_set_spills(mgd_torch_machine(), id, spills != 0);
  if (code == MGD_OK) code = mgd_device_set_capacity(mgd_torch_machine(), id, bytes);
  if (code != MGD_OK) {
    mgd_errors_raise(mgd_state_of(module), code, "setting a budget");
    return NULL;
  }
  const int was_host = mgd_torch_let_end_on_host(id, host);
  mgd_torch_reap_replicas(); /* a smaller budget dooms copies */
  if (mgd_torch_set_budget(id, bytes) < 0) return NULL;
  mgd_torch_notify_freed(); /* a larger budget is room for waiting threads */
  return Py_BuildValue("(NN)", PyBool_FromLong(before.spills), PyBool_FromLong(was_host));
}

/* Plans the budget of a device that the machine may not know yet. */
static PyObject *plan_budget(PyObject *module, PyObject *args) {
  int index, host;
  PyObject *value;
  int64_t bytes;
  double part;
  (void)module;
  if (!PyArg_ParseTuple(args, "iOdp:plan_budget", &index, &value, &part, &host)) return NULL;
  if (mgd_errors_bytes(value, "budget", &bytes) < 0) return NULL;
  if (mgd_torch_plan_budget(index, bytes, part, host) < 0) return NULL;
  Py_RETURN_NONE;
}

/* Returns the machine's name of the device ("cuda:1" may be sim:1). */
static PyObject *device_name(PyObject *module, PyObject *device) {
  int id;
  char name[32];
  if (accelerator_id(device, &id) < 0) return NULL;
  const int code = mgd_device_name(mgd_torch_machine(), id, name);
  if (code == MGD_OK) return PyUnicode_FromString(name);
  mgd_errors_raise(mgd_state_of(module), code, "naming a device");
  return NULL;
}

/* ---- frozen */

static PyObject *set_frozen(PyObject *module, PyObject *value) {
  (void)module;
  const int frozen = PyObject_IsTrue(value);
  if (frozen < 0 || mgd_state_ready() < 0) return NULL;
  return PyBool_FromLong(mgd_torch_set_frozen(frozen));
}

PyMethodDef mgd_settings_methods[] = {
    {"default_heuristic", default_heuristic, METH_O,
     PyDoc_STR("default_heuristic(size, /)\n--\n\nsize + int(1.5 * sqrt(size)): bytes to look for when a tensor has "
               "`size` bytes.")},
    {"get_heuristic", get_heuristic, METH_NOARGS,
     PyDoc_STR("get_heuristic()\n--\n\nThe function that HEURISTIC_FUNCTION names.")},
    {"set_heuristic", set_heuristic, METH_O,
     PyDoc_STR(
         "set_heuristic(function, /)\n--\n\nMakes `function` the size heuristic; TypeError when it is not callable.")},
    {"get_use_heuristic", get_use_heuristic, METH_NOARGS,
     PyDoc_STR("get_use_heuristic()\n--\n\nWhether sizes pass through the heuristic.")},
    {"set_use_heuristic", set_use_heuristic, METH_O,
     PyDoc_STR("set_use_heuristic(value, /)\n--\n\nWhether sizes pass through the heuristic.")},
    {"estimate", estimate, METH_O,
     PyDoc_STR("estimate(size, /)\n--\n\nBytes to look for when a tensor has `size` bytes, as the knobs stand now.")},
    {"capacity", capacity, METH_O,
     PyDoc_STR("capacity(device, /)\n--\n\nBytes that placement may use on the accelerator.")},
    {"set_capacity", set_capacity, METH_VARARGS,
     PyDoc_STR("set_capacity(device, bytes, spills, host, /)\n--\n\nSets the bytes that may be used on the "
               "accelerator; what is there beyond them leaves, unless its storages may not. host: an operator without "
               "room runs on the host. Returns (spills, host) as they were before.")},
    {"plan_budget", plan_budget, METH_VARARGS,
     PyDoc_STR(
         "plan_budget(index, bytes, part, host, /)\n--\n\nThe accelerator with this index gets a budget when it is "
         "added: `part` of its memory, or `bytes` if `part` is negative.")},
    {"device_name", device_name, METH_O,
     PyDoc_STR("device_name(device, /)\n--\n\nThe accelerator's own name: \"cuda:1\" may stand for sim:1.")},
    {"set_frozen", set_frozen, METH_O,
     PyDoc_STR("set_frozen(value, /)\n--\n\nStops or allows automatic moves in this thread; returns the old value.")},
    {NULL, NULL, 0, NULL}};

int mgd_settings_init(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  st->use_heuristic = 1;
  st->default_heuristic = PyObject_GetAttrString(module, "default_heuristic");
  return st->default_heuristic ? 0 : -1;
}
