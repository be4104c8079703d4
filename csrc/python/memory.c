/* memory.c: Python functions for storages that leave devices and come back: figures, settings, and what managed.debug
 * calls.
 *
 * Nothing is decided or kept here; the core does both.
 */
#include "python/binding.h"

#include "core/steps/step.h"
#include "core/steps/step_file.h"
#include "core/testing.h"

#include <stdlib.h>
#include <string.h>

static int accelerator(PyObject *device, int *id) {
  int any;
  if (mgd_errors_device_id(device, id, &any) < 0) return -1;
  if (*id > MGD_HOST) return 0;
  PyErr_Format(PyExc_ValueError, "managed: %R is not one accelerator", device);
  return -1;
}

static PyObject *residency(PyObject *module, PyObject *device) {
  int id;
  struct mgd_residency_usage u;
  if (accelerator(device, &id) < 0) return NULL;
  const int code = mgd_residency_read(mgd_torch_machine(), id, &u);
  if (code != MGD_OK) {
    mgd_errors_raise(mgd_state_of(module), code, "counting storages");
    return NULL;
  }
  int64_t pinned = 0;
  for (int kind = 0; kind < MGD_PIN_KINDS; kind++) pinned += u.pinned[kind];
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "idle", u.idle, "in_use", u.in_use, "pinned", pinned,
                       "moving", u.moving, "held", u.held, "spilled", u.spilled, "guests", u.guests, "storages",
                       u.storages);
}

PyObject *mgd_memory_host(void) {
  int64_t used, limit, peak;
  mgd_host_usage(mgd_torch_machine(), &used, &limit, &peak);
  const struct mgd_host_bytes b = mgd_torch_host_bytes();
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L}", "used", used, "limit", limit, "peak", peak, "pinned", b.pinned,
                       "pageable", b.pageable, "kept", b.kept);
}

static PyObject *host_memory(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return mgd_memory_host();
}

static PyObject *set_host_limit(PyObject *module, PyObject *value) {
  int64_t bytes;
  if (mgd_errors_bytes(value, "bytes", &bytes) < 0) return NULL;
  mgd_host_set_limit(mgd_torch_machine(), bytes);
  (void)module;
  Py_RETURN_NONE;
}

static PyObject *set_victims(PyObject *module, PyObject *value) {
  static const struct {
    const char *name;
    mgd_victim_fn fn;
  } policies[] = {
#if MANAGED_TEST_HOOKS
      {"clean_first", mgd_policy_clean_first},
#endif
      {"lru", mgd_policy_lru},
      {"greedy_dual", mgd_policy_greedy_dual}};
  const char *name = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : "";
  if (!name) return NULL;
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
    if (strcmp(name, policies[i].name) != 0) continue;
    mgd_order_set_policy(mgd_torch_machine(), policies[i].fn, NULL);
    Py_RETURN_NONE;
  }
  (void)module;
  PyErr_Format(PyExc_ValueError, "managed: there is no policy %R; there are \"lru\" and \"greedy_dual\"", value);
  return NULL;
}

static PyObject *set_learning(PyObject *module, PyObject *value) {
  (void)module;
  if (!PyBool_Check(value)) {
    PyErr_Format(PyExc_TypeError, "managed: LEARN_STEPS is True or False, not %R", value);
    return NULL;
  }
  mgd_torch_learn(value == Py_True);
  Py_RETURN_NONE;
}

static PyObject *learning(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyBool_FromLong(mgd_torch_learns());
}

static PyObject *keep_maps(PyObject *module, PyObject *args) {
  PyObject *value = NULL;
  (void)module;
  if (!PyArg_ParseTuple(args, "|O:keep_maps", &value)) return NULL;
  if (value && !PyBool_Check(value)) {
    PyErr_Format(PyExc_TypeError, "managed: KEEP_MAPS is True or False, not %R", value);
    return NULL;
  }
  if (value) mgd_torch_keep_maps(value == Py_True);
  return PyBool_FromLong(mgd_torch_keeps_maps());
}

static PyObject *needs_file(PyObject *module, PyObject *path) {
  PyObject *bytes = NULL;
  (void)module;
  if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
  const int needs = mgd_torch_needs_file(PyBytes_AS_STRING(bytes));
  Py_DECREF(bytes);
  return PyBool_FromLong(needs);
}

static PyObject *step_state(PyObject *module, PyObject *value) {
  const long device = PyLong_AsLong(value);
  if (device == -1 && PyErr_Occurred()) return NULL;
  struct mgd_step_state s;
  const int code = mgd_step_read(mgd_torch_machine(), (int)device, &s);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "reading what a device learned"), NULL;
  return Py_BuildValue("{s:O,s:O,s:i,s:i,s:i,s:i,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "logs", s.logs ? Py_True : Py_False,
                       "follows", s.follows ? Py_True : Py_False, "logged", s.logged, "known", s.known, "operators",
                       s.operators, "at", s.at, "plans", s.plans, "laps", s.laps, "lost", s.lost, "room", s.room,
                       "predicted", s.predicted, "ideal", s.ideal, "bytes_in", s.bytes_in, "bytes_out", s.bytes_out);
}

static PyObject *save_steps(PyObject *module, PyObject *device) {
  int id, steps;
  int64_t *numbers = NULL;
  size_t n = 0;
  if (accelerator(device, &id) < 0) return NULL;
  const int code = mgd_step_file_save(mgd_torch_machine(), id, &numbers, &n, &steps);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "saving what a device learned"), NULL;
  PyObject *saved = Py_BuildValue("(y#i)", n ? (const char *)numbers : "", (Py_ssize_t)(n * sizeof *numbers), steps);
  free(numbers);
  return saved;
}

static PyObject *load_steps(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device, *bytes;
  int id, steps = 0, code = MGD_E_INVALID;
  if (!PyArg_ParseTuple(args, "OS:load_steps", &device, &bytes) || accelerator(device, &id) < 0) return NULL;
  const size_t size = (size_t)PyBytes_GET_SIZE(bytes);
  if (size % sizeof(int64_t) == 0) {
    Py_BEGIN_ALLOW_THREADS
    code = mgd_torch_load_steps(id, (const int64_t *)(const void *)PyBytes_AS_STRING(bytes), size / sizeof(int64_t),
                                &steps);
    Py_END_ALLOW_THREADS
  }
  const char *why = code == MGD_OK         ? NULL
                    : code == MGD_E_ABSENT ? "LEARN_STEPS is False"
                    : code == MGD_E_NO_ROOM ? "an operator needs more than there is room for"
                    : code == MGD_E_WAIT    ? "another thread plans a step of it"
                    : code == MGD_E_NOMEM   ? "there is too little memory"
                                            : "the file does not hold steps that can be planned";
  return Py_BuildValue("(iz)", steps, why);
}

static PyObject *torture(PyObject *module, PyObject *args) {
  (void)module;
  unsigned int odds;
  unsigned long long seed;
  long long at_least;
  int overwrite;
  if (!PyArg_ParseTuple(args, "IKLp:torture", &odds, &seed, &at_least, &overwrite)) return NULL;
  const struct mgd_torture before = mgd_torch_torture((struct mgd_torture){odds, seed, at_least, overwrite});
  return Py_BuildValue("IKLO", before.odds, (unsigned long long)before.seed, (long long)before.at_least,
                       before.overwrite ? Py_True : Py_False);
}

static PyObject *spill_all(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  const int64_t left = mgd_torch_spill_all();
  return left < 0 ? NULL : PyLong_FromLongLong(left);
}

static PyObject *is_spilled(PyObject *module, PyObject *tensor) {
  (void)module;
  const int spilled = mgd_torch_is_spilled(tensor);
  return spilled < 0 ? NULL : PyBool_FromLong(spilled);
}

static PyObject *cuda_starts(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  mgd_torch_cuda_starts();
  Py_RETURN_NONE;
}

static PyObject *private_pool(PyObject *module, PyObject *args) {
  int change, graph;
  (void)module;
  if (!PyArg_ParseTuple(args, "ip:private_pool", &change, &graph)) return NULL;
  mgd_torch_private_pool(change, graph);
  Py_RETURN_NONE;
}

PyMethodDef mgd_memory_methods[] = {
    {"residency", residency, METH_O,
     PyDoc_STR("residency(device, /)\n--\n\nBytes of the device's storages by what may become of them, and how many "
               "storages have their home there.")},
    {"host_memory", host_memory, METH_NOARGS,
     PyDoc_STR(
         "host_memory()\n--\n\nBytes of the host that hold what left devices, or copies of it; stats()[\"host\"].")},
    {"set_host_limit", set_host_limit, METH_O,
     PyDoc_STR("set_host_limit(bytes, /)\n--\n\nMost bytes of the host for what leaves devices.")},
    {"set_victims", set_victims, METH_O,
     PyDoc_STR("set_victims(name, /)\n--\n\nThe policy that chooses the storages that leave: \"lru\" or "
               "\"greedy_dual\"; for benchmarks also \"clean_first\".")},
    {"set_learning", set_learning, METH_O,
     PyDoc_STR("set_learning(on, /)\n--\n\nWhether devices that are short of room learn from steps that repeat. "
               "Off: what was learned is forgotten.")},
    {"learning", learning, METH_NOARGS, PyDoc_STR("learning()\n--\n\nWhether they do.")},
    {"keep_maps", keep_maps, METH_VARARGS,
     PyDoc_STR("keep_maps(on=None, /)\n--\n\nWhether a mapped file serves as the host's copy of bytes that go to a "
               "device, from now on if `on` is given.")},
    {"needs_file", needs_file, METH_O,
     PyDoc_STR("needs_file(path, /)\n--\n\nWhether this file is the host's copy of bytes that went to a device.")},
    {"step_state", step_state, METH_O,
     PyDoc_STR("step_state(device, /)\n--\n\nWhat the device with that number (1: the first accelerator) logs, has "
               "learned and follows.")},
    {"save_steps", save_steps, METH_O,
     PyDoc_STR("save_steps(device, /)\n--\n\n(bytes, n): the n steps that the device has learned.")},
    {"load_steps", load_steps, METH_VARARGS,
     PyDoc_STR("load_steps(device, bytes, /)\n--\n\nPlans steps that were saved. (n, None), or (n, why not all of "
               "them).")},
    {"torture", torture, METH_VARARGS,
     PyDoc_STR("torture(odds, seed, at_least, overwrite, /)\n--\n\nFor tests: before each operator every storage of "
               "at_least bytes that is not in use leaves, by "
               "chance one in `odds`; 0 ends it. Returns what was asked for before.")},
    {"spill_all", spill_all, METH_NOARGS,
     PyDoc_STR("spill_all()\n--\n\nFor tests: every storage that is not in use leaves. Returns how many did.")},
    {"cuda_starts", cuda_starts, METH_NOARGS, PyDoc_STR("cuda_starts()\n--\n\nCUDA is being initialised.")},
    {"private_pool", private_pool, METH_VARARGS,
     PyDoc_STR("private_pool(change, graph, /)\n--\n\n+1: memory comes from a pool of the program's own from now on, "
               "`graph`: because a CUDA graph is being "
               "recorded; -1: no longer.")},
    {"is_spilled", is_spilled, METH_O,
     PyDoc_STR("is_spilled(tensor, /)\n--\n\nWhether the tensor's bytes are elsewhere now.")},
    {NULL, NULL, 0, NULL}};
