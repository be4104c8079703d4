/* explain.c: what happened, in numbers (stats) and in order (history).
 *
 * It only reads. Everything leaves as plain dicts, tuples and ints; making it
 * readable is managed.explain's part.
 */
#include "binding.h"

/* Enough for the whole ring of the core's default size. */
#define HISTORY 4096

/* Steals `value`. */
static int put(PyObject *dict, const char *key, PyObject *value) {
  const int failed = !value || PyDict_SetItemString(dict, key, value) < 0;
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

static int put_count(PyObject *dict, const char *name, const char *suffix, int64_t value) {
  char key[64];
  PyOS_snprintf(key, sizeof key, "%s%s", name, suffix);
  return put(dict, key, PyLong_FromLongLong(value));
}

/* "move", "move_bytes", "move_ns" and so on for every kind of event. */
static int put_totals(PyObject *dict) {
  for (int kind = 0; kind < MGD_EV_KINDS; kind++) {
    uint64_t count = 0;
    int64_t bytes = 0, ns = 0;
    mgd_trace_totals(mgd_torch_machine(), kind, &count, &bytes, &ns);
    const char *name = mgd_event_name(kind);
    if (put_count(dict, name, "", (int64_t)count) < 0 || put_count(dict, name, "_bytes", bytes) < 0 || put_count(dict, name, "_ns", ns) < 0) return -1;
  }
  return 0;
}

static int put_link(PyObject *links, int from, int to) {
  int64_t bytes = 0;
  uint64_t count = 0;
  char a[32], b[32], key[72];
  struct mgd_machine *machine = mgd_torch_machine();
  if (mgd_trace_link_bytes(machine, from, to, &bytes, &count) || count == 0) return 0;
  if (mgd_device_name(machine, from, a) || mgd_device_name(machine, to, b)) return 0;
  PyOS_snprintf(key, sizeof key, "%s->%s", a, b);
  return put(links, key, PyLong_FromLongLong(bytes));
}

/* {"cpu->sim:0": bytes} of the links that were used. */
static PyObject *links(void) {
  PyObject *dict = PyDict_New();
  const int count = mgd_device_count(mgd_torch_machine());
  for (int from = 0; dict && from < count; from++)
    for (int to = 0; dict && to < count; to++)
      if (from != to && put_link(dict, from, to) < 0) Py_CLEAR(dict);
  return dict;
}

static PyObject *usage_dict(const struct mgd_usage *u) {
  return Py_BuildValue("{sLsLsLsLsLsLsLsL}", "capacity", (long long)u->capacity, "used", (long long)u->used, "free", (long long)u->free, "peak",
                       (long long)u->peak, "managed", (long long)u->by_owner[MGD_MANAGED], "replica", (long long)u->by_owner[MGD_REPLICA], "reserved",
                       (long long)u->by_owner[MGD_RESERVED], "foreign", (long long)u->by_owner[MGD_FOREIGN]);
}

/* {"sim:0": {...}} in bytes. Devices nobody has looked for yet are left out: reading numbers starts no driver. */
static PyObject *devices(void) {
  struct mgd_machine *machine = mgd_torch_machine();
  const int count = mgd_device_count(machine);
  if (count > 1 && mgd_torch_observe() < 0) return NULL;
  PyObject *dict = PyDict_New();
  for (int id = 1; dict && id < count; id++) {
    struct mgd_usage usage;
    char name[32];
    if (mgd_ledger_usage(machine, id, &usage) || mgd_device_name(machine, id, name)) continue;
    if (put(dict, name, usage_dict(&usage)) < 0) Py_CLEAR(dict);
  }
  return dict;
}

static int reset_all(PyObject *module) {
  if (mgd_torch_reset_counters() < 0) return -1;
  struct mgd_machine *machine = mgd_torch_machine();
  const int code = mgd_trace_reset(machine);
  for (int id = 1; id < mgd_device_count(machine); id++) mgd_ledger_reset_peak(machine, id);
  return code == MGD_OK ? 0 : mgd_errors_raise(mgd_module_state(module), code, "resetting the counters");
}

static PyObject *stats(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"reset", NULL};
  int reset = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:stats", names, &reset) || mgd_module_ready() < 0) return NULL;
  PyObject *dict = mgd_torch_counters();
  if (!dict) return NULL;
  if (put_totals(dict) < 0 || put(dict, "links", links()) < 0 || put(dict, "devices", devices()) < 0 || (reset && reset_all(module) < 0)) Py_CLEAR(dict);
  return dict;
}

/* (sequence, time, duration, kind, reason, operator or None, bytes, from or None, to or None) */
static PyObject *event_tuple(const struct mgd_event *e) {
  char from[32], to[32];
  struct mgd_machine *machine = mgd_torch_machine();
  const char *a = e->from >= 0 && mgd_device_name(machine, e->from, from) == MGD_OK ? from : NULL;
  const char *b = e->to >= 0 && mgd_device_name(machine, e->to, to) == MGD_OK ? to : NULL;
  return Py_BuildValue("(KLLsszLzz)", (unsigned long long)e->sequence, (long long)e->time, (long long)e->duration, mgd_event_name(e->kind),
                       mgd_reason_text(e->reason), e->operator_name, (long long)e->bytes, a, b);
}

static PyObject *event_list(const struct mgd_event *events, size_t n) {
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (size_t i = 0; list && i < n; i++) {
    PyObject *event = event_tuple(&events[i]);
    if (event) PyList_SET_ITEM(list, (Py_ssize_t)i, event); /* steals */
    else Py_CLEAR(list);
  }
  return list;
}

/* The object whose events are asked for: 0 is all of them; -1 with an exception set. */
static int object_of(PyObject *tensor, uint64_t *object) {
  *object = 0;
  if (tensor == Py_None) return 0;
  if (!mgd_torch_is_tensor(tensor)) {
    PyErr_Format(PyExc_TypeError, "managed: a tensor has a history, %.100s has none", Py_TYPE(tensor)->tp_name);
    return -1;
  }
  *object = mgd_torch_object(tensor, 0);
  return PyErr_Occurred() ? -1 : 0;
}

static PyObject *history(PyObject *module, PyObject *tensor) {
  uint64_t object, dropped = 0;
  size_t n = HISTORY;
  if (mgd_module_ready() < 0 || object_of(tensor, &object) < 0) return NULL;
  if (object == 0 && tensor != Py_None) return Py_BuildValue("([]K)", 0ULL);
  struct mgd_event *events = PyMem_New(struct mgd_event, HISTORY);
  if (!events) return PyErr_NoMemory();
  const int code = mgd_trace_read(mgd_torch_machine(), object, events, &n, &dropped);
  PyObject *list = code == MGD_OK ? event_list(events, n) : NULL;
  PyMem_Free(events);
  if (code != MGD_OK) mgd_errors_raise(mgd_module_state(module), code, "reading the history");
  return list ? Py_BuildValue("(NK)", list, (unsigned long long)dropped) : NULL;
}

PyMethodDef mgd_explain_methods[] = {
    {"stats", (PyCFunction)(void (*)(void))stats, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("stats(reset=False)\n--\n\nCounters since the start or the last reset, bytes per link and per device, as a plain dict.")},
    {"history", history, METH_O,
     PyDoc_STR("history(tensor, /)\n--\n\n(events, dropped): the tensor's events, oldest first, and how many the ring has forgotten. None: all tensors.")},
    {NULL, NULL, 0, NULL}};
