/* module.c: the Python module managed._sim.
 *
 * Owns turning Python arguments into C and nothing else. Importing it registers
 * nothing; create() does. Values are checked in managed/sim.py, which speaks to
 * people; here only what would be undefined behaviour is refused.
 */
#include "sim/device/api.h"

#define BRIDGE_NAME "managed._sim.bridge"

static int read_capacities(PyObject *list, struct mgd_sim_config *config) {
  Py_ssize_t n = PyList_GET_SIZE(list);
  if (n < 1 || n > MGD_SIM_MAX_DEVICES) {
    PyErr_Format(PyExc_ValueError, "1 to %d devices can be simulated, not %zd", MGD_SIM_MAX_DEVICES, n);
    return -1;
  }
  config->devices = (int)n;
  for (Py_ssize_t i = 0; i < n; i++) {
    config->capacity[i] = PyLong_AsSize_t(PyList_GET_ITEM(list, i));
    if (PyErr_Occurred()) {
      return -1;
    }
  }
  return 0;
}

/* As the core numbers them. */
static const char *const kinds[MGD_WORK_KINDS] = {"elementwise", "matrix", "convolution"};
static const char *const precisions[MGD_PRECISIONS] = {"float64", "float32", "tf32", "bfloat16", "float16", "int8"};

/* rates[kind][precision], in that order. */
static int read_rates(PyObject *rates, struct mgd_speed *speed) {
  if (PyTuple_GET_SIZE(rates) != MGD_WORK_KINDS) {
    PyErr_SetString(PyExc_ValueError, "there is a row of rates for each of KINDS");
    return -1;
  }
  for (Py_ssize_t kind = 0; kind < MGD_WORK_KINDS; kind++) {
    double *row = speed->flops_per_ns[kind];
    _Static_assert(MGD_PRECISIONS == 6, "as many as are read here");
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rates, kind), "dddddd", row, row + 1, row + 2, row + 3, row + 4, row + 5)) {
      return -1;
    }
  }
  return 0;
}

static PyObject *none_or_null(int code) {
  if (code < 0) {
    return NULL;
  }
  Py_RETURN_NONE;
}

PyDoc_STRVAR(create_doc,
             "create(capacities, speed, host_link, peer_link, devices_per_switch, peers_over_host_and_all_bytes_per_ns, repeatable, values, unknown_is_error, /)\n--\n\n"
             "Registers simulated devices with torch, once a process.\n\n"
             "capacities: list of bytes, one a device. speed: (rates, bytes/ns, launch ns, issue ns, of these Python's);\n"
             "rates[kind][precision] in flops/ns, in the order of KINDS and PRECISIONS.\n"
             "links: (latency ns, bytes/ns). devices_per_switch share one host link; with peers_over_host,\n"
             "devices talk over theirs, and all copies share all_bytes_per_ns, if that is not 0. repeatable: backward passes run in the thread that calls them.\n"
             "values: whether storages have any; unknown_is_error: to ask for one that is unknown.\n"
             "Raises RuntimeError and registers nothing after a first backward, beside another PrivateUse1 backend, or the second time.");
static PyObject *sim_create(PyObject *Py_UNUSED(module), PyObject *args) {
  struct mgd_sim_config c = {0};
  PyObject *capacities, *rates;
  long long launch, issue, python, host, peer;
  if (!PyArg_ParseTuple(args, "O!(O!dLLL)(Ld)(Ld)i(pd)ppp:create", &PyList_Type, &capacities, &PyTuple_Type, &rates, &c.speed.bytes_per_ns, &launch, &issue, &python, &host,
                        &c.host.bytes_per_ns, &peer, &c.peer.bytes_per_ns, &c.devices_per_switch, &c.peers_over_host, &c.all_bytes_per_ns, &c.repeatable, &c.values,
                        &c.unknown_is_error)) {
    return NULL;
  }
  if (c.devices_per_switch < 1) {
    PyErr_SetString(PyExc_ValueError, "at least one device is behind a switch");
    return NULL;
  }
  c.speed.launch_ns = launch;
  c.speed.issue_ns = issue;
  c.speed.python_ns = python;
  c.host.latency_ns = host;
  c.peer.latency_ns = peer;
  if (read_capacities(capacities, &c) < 0 || read_rates(rates, &c.speed) < 0) {
    return NULL;
  }
  return none_or_null(mgd_sim_create(&c));
}

PyDoc_STRVAR(device_count_doc, "device_count()\n--\n\nNumber of simulated devices; 0 before create().");
static PyObject *sim_device_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return PyLong_FromLong(mgd_sim_device_count()); }

PyDoc_STRVAR(current_device_doc, "current_device()\n--\n\nIndex of the calling thread's device.");
static PyObject *sim_current_device(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return PyLong_FromLong(mgd_sim_current_device()); }

PyDoc_STRVAR(set_device_doc, "set_device(index, /)\n--\n\nMakes a device the calling thread's current one.");
static PyObject *sim_set_device(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  if (!PyArg_ParseTuple(args, "i:set_device", &device)) {
    return NULL;
  }
  return none_or_null(mgd_sim_set_device(device));
}

PyDoc_STRVAR(report_doc,
             "report(index, /)\n--\n\n"
             "(capacity, used, peak, of other libraries) in bytes and the device's virtual time in ns.");
static PyObject *sim_report(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  struct mgd_sim_usage r;
  if (!PyArg_ParseTuple(args, "i:report", &device) || mgd_sim_report(device, &r) < 0) {
    return NULL;
  }
  return Py_BuildValue("nnnnL", (Py_ssize_t)r.capacity, (Py_ssize_t)r.used, (Py_ssize_t)r.peak, (Py_ssize_t)r.foreign,
                       (long long)r.time);
}

static PyObject *address_or_none(void *address) {
  if (address) { return PyLong_FromVoidPtr(address); }
  Py_RETURN_NONE;
}

PyDoc_STRVAR(raw_alloc_doc,
             "raw_alloc(index, bytes, /)\n--\n\n"
             "Takes bytes that are no tensor's, as cudaMalloc; an address, or None without room.");
static PyObject *sim_raw_alloc(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  Py_ssize_t bytes;
  void *address = NULL;
  if (!PyArg_ParseTuple(args, "in:raw_alloc", &device, &bytes)) { return NULL; }
  return mgd_sim_raw_alloc(device, (size_t)bytes, &address) < 0 ? NULL : address_or_none(address);
}

PyDoc_STRVAR(caching_alloc_doc,
             "caching_alloc(index, bytes, stream, /)\n--\n\n"
             "Takes bytes from the allocator of tensors; an address, or None for 0 bytes.");
static PyObject *sim_caching_alloc(PyObject *Py_UNUSED(module), PyObject *args) {
  int device, stream;
  Py_ssize_t bytes;
  void *address = NULL;
  if (!PyArg_ParseTuple(args, "ini:caching_alloc", &device, &bytes, &stream)) { return NULL; }
  return mgd_sim_caching_alloc(device, (size_t)bytes, stream, &address) < 0 ? NULL : address_or_none(address);
}

static PyObject *free_by(int (*give)(void *), PyObject *number) {
  void *address = PyLong_AsVoidPtr(number);
  return PyErr_Occurred() ? NULL : none_or_null(give(address));
}

PyDoc_STRVAR(raw_free_doc, "raw_free(address, /)\n--\n\nGives back what raw_alloc() gave. ValueError: it did not.");
static PyObject *sim_raw_free(PyObject *Py_UNUSED(module), PyObject *address) {
  return free_by(&mgd_sim_raw_free, address);
}

PyDoc_STRVAR(caching_delete_doc,
             "caching_delete(address, /)\n--\n\nGives back what caching_alloc() gave. ValueError: it did not.");
static PyObject *sim_caching_delete(PyObject *Py_UNUSED(module), PyObject *address) {
  return free_by(&mgd_sim_caching_delete, address);
}

PyDoc_STRVAR(set_capacity_doc,
             "set_capacity(index, bytes, /)\n--\n\n"
             "Changes what a device may hold. Below what is in use: nothing is freed and nothing more fits.");
static PyObject *sim_set_capacity(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(args, "in:set_capacity", &device, &bytes)) {
    return NULL;
  }
  if (bytes < 0) {
    PyErr_Format(PyExc_ValueError, "a device cannot hold %zd bytes", bytes);
    return NULL;
  }
  return none_or_null(mgd_sim_set_capacity(device, (size_t)bytes));
}

PyDoc_STRVAR(reset_peak_doc, "reset_peak(index, /)\n--\n\nForgets the highest use so far.");
static PyObject *sim_reset_peak(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  if (!PyArg_ParseTuple(args, "i:reset_peak", &device)) {
    return NULL;
  }
  return none_or_null(mgd_sim_reset_peak(device));
}

static PyObject *time_by(int (*ask)(int64_t *)) {
  int64_t ns;
  return ask(&ns) < 0 ? NULL : PyLong_FromLongLong(ns);
}

PyDoc_STRVAR(host_time_doc, "host_time()\n--\n\nThe calling thread's virtual time in ns.");
static PyObject *sim_host_time(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return time_by(&mgd_sim_host_time); }

PyDoc_STRVAR(elapsed_doc, "elapsed()\n--\n\nVirtual ns until all that was issued has ended, on all devices and in all threads.");
static PyObject *sim_elapsed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return time_by(&mgd_sim_elapsed); }

PyDoc_STRVAR(busy_doc,
             "busy(source, target, /)\n--\n\n"
             "Virtual ns for which a link was taken (-1 is the host), or which the operators of one device took.");
static PyObject *sim_busy(PyObject *Py_UNUSED(module), PyObject *args) {
  int from, to;
  int64_t ns;
  if (!PyArg_ParseTuple(args, "ii:busy", &from, &to) || mgd_sim_busy(from, to, &ns) < 0) {
    return NULL;
  }
  return PyLong_FromLongLong(ns);
}

PyDoc_STRVAR(exchange_duration_doc,
             "exchange_duration(ns, /)\n--\n\n"
             "For kernels that were measured: from now on each operator of this thread takes so many ns of virtual\n"
             "time, whatever it does; -1: what its work takes. Returns what was said before.");
static PyObject *sim_exchange_duration(PyObject *Py_UNUSED(module), PyObject *ns) {
  const long long asked = PyLong_AsLongLong(ns);
  return asked == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(mgd_sim_exchange_duration(asked));
}

PyDoc_STRVAR(is_known_doc,
             "is_known(tensor, /)\n--\n\n"
             "False if it is on a device without values, which does not know those of the tensor.");
static PyObject *sim_is_known(PyObject *Py_UNUSED(module), PyObject *tensor) {
  int known;
  return mgd_sim_is_known(tensor, &known) < 0 ? NULL : PyBool_FromLong(known);
}

PyDoc_STRVAR(know_nothing_doc,
             "know_nothing(yes, /)\n--\n\n"
             "For tests: devices without values keep none, not even small ones.");
static PyObject *sim_know_nothing(PyObject *Py_UNUSED(module), PyObject *yes) {
  mgd_sim_know_nothing(PyObject_IsTrue(yes));
  Py_RETURN_NONE;
}

PyDoc_STRVAR(start_log_doc, "start_log()\n--\n\nRemembers from now on what happens when.");
static PyObject *sim_start_log(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return none_or_null(mgd_sim_start_log()); }

static PyObject *span_tuple(const struct mgd_span *s) {
  static const char *const span_kinds[] = {"run", "copy", "wait", "stall", "hold"};
  PyObject *end = s->end == INT64_MAX ? Py_NewRef(Py_None) : PyLong_FromLongLong(s->end);
  return Py_BuildValue("(sziiiLNLK)", span_kinds[s->kind], s->name, s->device, s->other, s->stream, (long long)s->begin, end, (long long)s->bytes,
                       (unsigned long long)s->number);
}

static PyObject *span_list(const struct mgd_span *spans, size_t n) {
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (size_t i = 0; list && i < n; i++) {
    PyObject *span = span_tuple(&spans[i]);
    if (span) {
      PyList_SET_ITEM(list, (Py_ssize_t)i, span);
    } else {
      Py_CLEAR(list);
    }
  }
  return list;
}

PyDoc_STRVAR(stop_log_doc,
             "stop_log()\n--\n\n"
             "[(kind, name or None, device, other, stream, begin, end or None, bytes, number)] since start_log().\n"
             "kind: \"run\", \"copy\", \"wait\" (of a thread), \"stall\" (of a stream) or \"hold\" (bytes in use).");
static PyObject *sim_stop_log(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  struct mgd_span *spans = NULL;
  size_t n = 0;
  if (mgd_sim_stop_log(&spans, &n) < 0) {
    return NULL;
  }
  PyObject *list = span_list(spans, n);
  mgd_clock_profile_free(spans);
  return list;
}

PyDoc_STRVAR(start_audit_doc, "start_audit()\n--\n\nFor tests: remembers from now on when bytes are held, in virtual time.");
static PyObject *sim_start_audit(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { return none_or_null(mgd_sim_start_audit()); }

PyDoc_STRVAR(check_audit_doc,
             "check_audit(index, /)\n--\n\n"
             "The most bytes that a device held at one virtual time; RuntimeError if that is more than it has.");
static PyObject *sim_check_audit(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  int64_t most;
  if (!PyArg_ParseTuple(args, "i:check_audit", &device) || mgd_sim_check_audit(device, &most) < 0) {
    return NULL;
  }
  return PyLong_FromLongLong(most);
}

PyDoc_STRVAR(generator_doc, "generator(index, /)\n--\n\nThe default torch.Generator of a device.");
static PyObject *sim_generator(PyObject *Py_UNUSED(module), PyObject *args) {
  int device;
  if (!PyArg_ParseTuple(args, "i:generator", &device)) {
    return NULL;
  }
  return mgd_sim_generator(device);
}

PyDoc_STRVAR(park_doc, "park()\n--\n\nWaits until autograd's device threads rest. For atexit.");
static PyObject *sim_park(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mgd_sim_park();
  Py_RETURN_NONE;
}

PyDoc_STRVAR(exchange_faults_doc,
             "exchange_faults(kind, first, last, seen, /)\n--\n\n"
             "For tests: of the allocations (kind 0) or copies (1) the first to the last fail, counted from\n"
             "1 beyond `seen`; none when first is 0. Returns what was asked for before, as (first, last, seen).");
static PyObject *sim_exchange_faults(PyObject *Py_UNUSED(module), PyObject *args) {
  int kind;
  long long first, last, seen;
  if (!PyArg_ParseTuple(args, "iLLL:exchange_faults", &kind, &first, &last, &seen)) {
    return NULL;
  }
  int64_t was_first = first, was_last = last, was_seen = seen;
  mgd_sim_exchange_faults(kind, &was_first, &was_last, &was_seen);
  return Py_BuildValue("LLL", (long long)was_first, (long long)was_last, (long long)was_seen);
}

static PyMethodDef methods[] = {
    {"create", sim_create, METH_VARARGS, create_doc},
    {"device_count", sim_device_count, METH_NOARGS, device_count_doc},
    {"current_device", sim_current_device, METH_NOARGS, current_device_doc},
    {"set_device", sim_set_device, METH_VARARGS, set_device_doc},
    {"report", sim_report, METH_VARARGS, report_doc},
    {"set_capacity", sim_set_capacity, METH_VARARGS, set_capacity_doc},
    {"raw_alloc", sim_raw_alloc, METH_VARARGS, raw_alloc_doc},
    {"raw_free", sim_raw_free, METH_O, raw_free_doc},
    {"caching_alloc", sim_caching_alloc, METH_VARARGS, caching_alloc_doc},
    {"caching_delete", sim_caching_delete, METH_O, caching_delete_doc},
    {"reset_peak", sim_reset_peak, METH_VARARGS, reset_peak_doc},
    {"host_time", sim_host_time, METH_NOARGS, host_time_doc},
    {"busy", sim_busy, METH_VARARGS, busy_doc},
    {"is_known", sim_is_known, METH_O, is_known_doc},
    {"know_nothing", sim_know_nothing, METH_O, know_nothing_doc},
    {"start_log", sim_start_log, METH_NOARGS, start_log_doc},
    {"stop_log", sim_stop_log, METH_NOARGS, stop_log_doc},
    {"start_audit", sim_start_audit, METH_NOARGS, start_audit_doc},
    {"check_audit", sim_check_audit, METH_VARARGS, check_audit_doc},
    {"exchange_duration", sim_exchange_duration, METH_O, exchange_duration_doc},
    {"elapsed", sim_elapsed, METH_NOARGS, elapsed_doc},
    {"generator", sim_generator, METH_VARARGS, generator_doc},
    {"exchange_faults", sim_exchange_faults, METH_VARARGS, exchange_faults_doc},
    {"park", sim_park, METH_NOARGS, park_doc},
    {NULL, NULL, 0, NULL},
};

/* Adds a tuple of strings. */
static int add_names(PyObject *module, const char *name, const char *const *texts, Py_ssize_t n) {
  PyObject *names = PyTuple_New(n);
  for (Py_ssize_t i = 0; names && i < n; i++) {
    PyObject *text = PyUnicode_FromString(texts[i]);
    if (!text) {
      Py_CLEAR(names);
      break;
    }
    PyTuple_SET_ITEM(names, i, text);
  }
  const int code = names ? PyModule_AddObjectRef(module, name, names) : -1;
  Py_XDECREF(names);
  return code;
}

static int sim_exec(PyObject *module) {
  if (add_names(module, "KINDS", kinds, MGD_WORK_KINDS) < 0 || add_names(module, "PRECISIONS", precisions, MGD_PRECISIONS) < 0) {
    return -1;
  }
  PyObject *capsule = PyCapsule_New(mgd_sim_bridge(), BRIDGE_NAME, NULL);
  if (!capsule) {
    return -1;
  }
  int code = PyModule_AddObjectRef(module, "bridge", capsule);
  Py_DECREF(capsule);
  return code;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, sim_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "managed._sim",
    .m_doc = "Simulated devices: see managed.simulate() and torch.sim.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__sim(void); /* no header declares it */
PyMODINIT_FUNC PyInit__sim(void) { return PyModuleDef_Init(&definition); }
