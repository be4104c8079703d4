/* explain.c: counters (stats) and events in order (history), for Python.
 *
 * This file mostly reads. It returns plain dicts, tuples and ints; managed.explain makes them readable.
 */
#include "python/binding.h"

#include "core/residency/largest.h"

#include <string.h>

/* Sets dict[key] and steals `value`. */
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

/* Puts "move", "move_bytes", "move_ns" and so on for every kind of event. */
static int put_totals(PyObject *dict, const struct mgd_totals *totals) {
  for (int kind = 0; kind < MGD_EV_KINDS; kind++) {
    const struct mgd_total *t = &totals->by_kind[kind];
    const char *name = mgd_text_event(kind);
    if (put_count(dict, name, "", (int64_t)t->count) < 0 || put_count(dict, name, "_bytes", t->bytes) < 0 ||
        put_count(dict, name, "_ns", t->ns) < 0)
      return -1;
  }
  return put_count(dict, "events", "", (int64_t)totals->events);
}

static int put_link(PyObject *links, int from, int to, const struct mgd_total *total) {
  char a[32], b[32], key[72];
  struct mgd_machine *machine = mgd_torch_machine();
  if (total->count == 0 || mgd_device_name(machine, from, a) || mgd_device_name(machine, to, b)) return 0;
  PyOS_snprintf(key, sizeof key, "%s->%s", a, b);
  return put(links, key, PyLong_FromLongLong(total->bytes));
}

/* Returns {"cpu->sim:0": bytes} for the links that were used. */
static PyObject *links(const struct mgd_totals *totals) {
  PyObject *dict = PyDict_New();
  for (int from = 0; dict && from < MGD_MAX_DEVICES; from++)
    for (int to = 0; dict && to < MGD_MAX_DEVICES; to++)
      if (put_link(dict, from, to, &totals->by_link[from][to]) < 0) Py_CLEAR(dict);
  return dict;
}

static PyObject *usage_dict(const struct mgd_usage *u) {
  return Py_BuildValue("{sLsLsLsLsLsLsLsL}", "capacity", (long long)u->capacity, "used", (long long)u->used, "free",
                       (long long)u->free, "peak", (long long)u->peak, "managed", (long long)u->by_owner[MGD_MANAGED],
                       "replica", (long long)u->by_owner[MGD_REPLICA], "reserved", (long long)u->by_owner[MGD_RESERVED],
                       "foreign", (long long)u->by_owner[MGD_FOREIGN]);
}

/* Returns {"frames": {...}}: each holder of memory of the device, by what it reported last. */
static PyObject *holders_of(int device) {
  struct mgd_holding all[MGD_MAX_HOLDERS];
  int n = 0;
  mgd_holders_read(mgd_torch_machine(), device, all, &n);
  PyObject *dict = PyDict_New();
  for (int i = 0; dict && i < n; i++) {
    const struct mgd_holding *h = &all[i];
    PyObject *figures =
        Py_BuildValue("{sLsLsLsLsL}", "live", (long long)h->live, "cached", (long long)h->cached, "asked",
                      (long long)h->asked, "given", (long long)h->given, "asks", (long long)h->asks);
    if (put(dict, h->name, figures) < 0) Py_CLEAR(dict);
  }
  return dict;
}

/* Returns {"sim:0": {...}} in bytes. Devices that were not searched for yet are left out: reading numbers starts no
 * driver. */
static PyObject *devices(void) {
  struct mgd_machine *machine = mgd_torch_machine();
  const int count = mgd_device_count(machine);
  if (count > 1 && mgd_torch_observe() < 0) return NULL;
  PyObject *dict = PyDict_New();
  for (int id = 1; dict && id < count; id++) {
    struct mgd_usage usage;
    char name[32];
    if (mgd_ledger_usage(machine, id, &usage) || mgd_device_name(machine, id, name)) continue;
    PyObject *figures = usage_dict(&usage);
    if (figures && put(figures, "holders", holders_of(id)) < 0) Py_CLEAR(figures);
    if (put(dict, name, figures) < 0) Py_CLEAR(dict);
  }
  return dict;
}

static int reset_others(void) {
  if (mgd_torch_reset_counters() < 0) return -1;
  struct mgd_machine *machine = mgd_torch_machine();
  for (int id = 1; id < mgd_device_count(machine); id++) mgd_ledger_reset_peak(machine, id);
  return 0;
}

/* Puts the totals. The caller does this last: they are read and reset in one step, and after that only a lack of memory
 * can fail. */
static int put_trace(PyObject *dict, PyObject *module, int reset) {
  struct mgd_totals *totals = PyMem_New(struct mgd_totals, 1);
  if (!totals) {
    PyErr_NoMemory();
    return -1;
  }
  const int code = mgd_trace_totals(mgd_torch_machine(), reset, totals);
  if (code != MGD_OK) mgd_errors_raise(mgd_state_of(module), code, "reading the counters");
  const int failed = code != MGD_OK || put_totals(dict, totals) < 0 || put(dict, "links", links(totals)) < 0;
  PyMem_Free(totals);
  return failed ? -1 : 0;
}

static PyObject *stats(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"reset", NULL};
  int reset = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:stats", names, &reset) || mgd_state_ready() < 0) return NULL;
  PyObject *dict = mgd_torch_counters();
  if (!dict) return NULL;
  if (put(dict, "devices", devices()) < 0 || put(dict, "host", mgd_memory_host()) < 0 ||
      (reset && reset_others() < 0) || put_trace(dict, module, reset) < 0)
    Py_CLEAR(dict);
  return dict;
}

/* Returns "train.py:12 in step", "backward of MmBackward0", or None. */
static PyObject *site_text(uint32_t id) {
  struct mgd_site site;
  if (mgd_site_get(mgd_torch_machine(), id, &site) || id == 0) Py_RETURN_NONE;
  if (!site.file[0]) return PyUnicode_FromString(site.function);
  const char *slash = strrchr(site.file, '/');
  return PyUnicode_FromFormat("%s:%d in %s", slash ? slash + 1 : site.file, (int)site.line, site.function);
}

/* Returns (sequence, time, duration, kind, reason, operator, bytes, from, to, site, transfer); texts other than kind
 * and reason may be None. */
static PyObject *event_tuple(const struct mgd_event *e) {
  char from[32], to[32];
  struct mgd_machine *machine = mgd_torch_machine();
  const char *a = e->from >= 0 && mgd_device_name(machine, e->from, from) == MGD_OK ? from : NULL;
  const char *b = e->to >= 0 && mgd_device_name(machine, e->to, to) == MGD_OK ? to : NULL;
  return Py_BuildValue("(KLLsszLzzNK)", (unsigned long long)e->sequence, (long long)e->time, (long long)e->duration,
                       mgd_text_event(e->kind), mgd_text_reason(e->reason), e->operator_name, (long long)e->bytes, a, b,
                       site_text(e->site), (unsigned long long)e->transfer);
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

/* Finds the object whose events are requested; 0 means all. Returns -1 with an exception set. */
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

/* Returns the texts of the core's list of reasons, as in events. */
static PyObject *reasons(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  PyObject *list = PyList_New(0);
  for (int reason = MGD_WHY_NONE + 1; list && reason < MGD_WHY_KINDS; reason++) {
    PyObject *text = PyUnicode_FromString(mgd_text_reason(reason));
    if (!text || PyList_Append(list, text) < 0) Py_CLEAR(list);
    Py_XDECREF(text);
  }
  return list;
}

static PyObject *object_id(PyObject *module, PyObject *tensor) {
  (void)module;
  uint64_t object;
  return mgd_state_ready() < 0 || object_of(tensor, &object) < 0 ? NULL : PyLong_FromUnsignedLongLong(object);
}

static PyObject *resume(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *tensor;
  unsigned long long object;
  uint64_t unused;
  if (!PyArg_ParseTuple(args, "OK:resume", &tensor, &object) || mgd_state_ready() < 0 || object_of(tensor, &unused) < 0)
    return NULL;
  if (tensor != Py_None && mgd_torch_resume(tensor, object) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *history(PyObject *module, PyObject *tensor) {
  uint64_t object, dropped = 0;
  if (mgd_state_ready() < 0 || object_of(tensor, &object) < 0) return NULL;
  if (object == 0 && tensor != Py_None) return Py_BuildValue("([]K)", 0ULL);
  size_t n = mgd_trace_held(mgd_torch_machine());
  struct mgd_event *events = PyMem_New(struct mgd_event, n ? n : 1);
  if (!events) return PyErr_NoMemory();
  const int code = mgd_trace_read(mgd_torch_machine(), object, events, &n, &dropped);
  PyObject *list = code == MGD_OK ? event_list(events, n) : NULL;
  PyMem_Free(events);
  if (code != MGD_OK) mgd_errors_raise(mgd_state_of(module), code, "reading the history");
  return list ? Py_BuildValue("(NK)", list, (unsigned long long)dropped) : NULL;
}

/* Returns why a storage stays at home, or NULL. */
static const char *kept_by(const struct mgd_large *l) {
  static const char *const texts[] = {
#define X(name, text) text,
      MGD_PINS(X)
#undef X
  };
  return l->pin < MGD_PIN_KINDS ? texts[l->pin] : l->in_use ? "in use by an operator" : NULL;
}

/* Returns (number, bytes, where, stays, kind, operator, site); the last three are of its newest event, or None. */
static PyObject *large_tuple(int home, const struct mgd_large *l) {
  struct mgd_machine *machine = mgd_torch_machine();
  struct mgd_event e = {.operator_name = NULL};
  size_t n = l->object != 0;
  uint64_t dropped;
  char where[32] = "";
  const int told = n && mgd_trace_read(machine, l->object, &e, &n, &dropped) == MGD_OK && n == 1;
  mgd_device_name(machine, l->away < 0 ? home : l->away, where);
  return Py_BuildValue("(KLszzzN)", (unsigned long long)l->number, (long long)l->bytes, where, kept_by(l),
                       told ? mgd_text_event(e.kind) : NULL, e.operator_name, site_text(told ? e.site : 0));
}

static PyObject *number(PyObject *module, PyObject *tensor) {
  (void)module;
  uint64_t unused;
  if (object_of(tensor, &unused) < 0) return NULL;
  const uint64_t found = tensor == Py_None ? 0 : mgd_torch_number(tensor);
  return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(found);
}

#define MOST_LARGE 64

static PyObject *largest(PyObject *module, PyObject *args) {
  struct mgd_large found[MOST_LARGE];
  PyObject *device;
  Py_ssize_t asked;
  int home, any;
  if (!PyArg_ParseTuple(args, "On:largest", &device, &asked) || mgd_errors_device_id(device, &home, &any) < 0)
    return NULL;
  size_t n = asked < 0 ? 0 : asked > MOST_LARGE ? MOST_LARGE : (size_t)asked;
  const int code = mgd_largest_read(mgd_torch_machine(), home, mgd_torch_identify, found, &n);
  if (code != MGD_OK) return mgd_errors_raise(mgd_state_of(module), code, "looking for large storages"), NULL;
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (size_t i = 0; list && i < n; i++) {
    PyObject *large = large_tuple(home, &found[i]);
    if (large) PyList_SET_ITEM(list, (Py_ssize_t)i, large); /* steals */
    else Py_CLEAR(list);
  }
  return list;
}

static PyObject *keep_events(PyObject *module, PyObject *all) {
  const int on = PyObject_IsTrue(all);
  if (on < 0 || mgd_state_ready() < 0) return NULL;
  const int code = mgd_torch_profile(on);
  if (code != MGD_OK) mgd_errors_raise(mgd_state_of(module), code, "keeping the history");
  return code == MGD_OK ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef mgd_explain_methods[] = {
    {"keep_events", keep_events, METH_O,
     PyDoc_STR("keep_events(all, /)\n--\n\nFor a profile: the ring of events grows and forgets nothing, until it is "
               "told otherwise.")},
    {"stats", (PyCFunction)(void (*)(void))stats, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("stats(reset=False)\n--\n\nCounters since the start or the last reset, bytes per link and per device, "
               "as a plain dict.")},
    {"largest", largest, METH_VARARGS,
     PyDoc_STR("largest(device, n, /)\n--\n\nThe n (at most 64) largest storages of the device's tensors, as "
               "(number, bytes, where, stays, kind, operator, site).")},
    {"number", number, METH_O,
     PyDoc_STR("number(tensor, /)\n--\n\nThe number by which largest() calls the tensor's storage; 0 when its bytes "
               "cannot leave.")},
    {"history", history, METH_O,
     PyDoc_STR("history(tensor, /)\n--\n\n(events, dropped): the tensor's events, oldest first, and how many the ring "
               "has forgotten. None: all tensors.")},
    {"reasons", reasons, METH_NOARGS, PyDoc_STR("reasons()\n--\n\nEvery reason that an event can give, in words.")},
    {"object_id", object_id, METH_O,
     PyDoc_STR("object_id(tensor, /)\n--\n\nThe number under which the tensor's events are kept; 0 when it has none.")},
    {"resume", resume, METH_VARARGS,
     PyDoc_STR("resume(tensor, object_id, /)\n--\n\nThe tensor, which has new contents, goes on with this history; 0 "
               "changes nothing.")},
    {NULL, NULL, 0, NULL}};
