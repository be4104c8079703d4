/* layers.c: plans that assign layers, stages of a pipeline and parameters to devices.
 *
 * These functions are private to the package. They check their arguments, because a private function that crashes is
 * still a crash.
 */
#include "python/binding.h"

/* ---- arguments */

/* Reads an element of a sequence; `name` is for the text of an error. */
typedef int (*element_reader)(PyObject *o, const char *name, void *out);

static int read_bytes(PyObject *o, const char *name, void *out) { return mgd_errors_bytes(o, name, out); }

static int read_integer(PyObject *o, const char *Py_UNUSED(name), void *out) {
  PyObject *index = PyNumber_Index(o);
  const long long number = index ? PyLong_AsLongLong(index) : -1;
  Py_XDECREF(index);
  *(int64_t *)out = number;
  return number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_rate(PyObject *o, const char *Py_UNUSED(name), void *out) {
  const double rate = PyFloat_AsDouble(o);
  *(double *)out = rate;
  return rate == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* Reads a device's share: a tuple (room, load, speed), or the room of an empty device. */
static int read_share(PyObject *o, const char *Py_UNUSED(name), void *out) {
  struct mgd_share *share = out;
  *share = (struct mgd_share){.speed = 1.0};
  if (!PyTuple_Check(o)) return mgd_errors_bytes(o, "room", &share->room);
  PyObject *room, *load;
  if (!PyArg_ParseTuple(o, "OOd:plan", &room, &load, &share->speed)) return -1;
  return mgd_errors_bytes(room, "room", &share->room) < 0 ? -1 : mgd_errors_bytes(load, "load", &share->load);
}

/* Converts a sequence to a new array of *n elements, which the caller frees with PyMem_Free. */
static void *array_of(PyObject *o, const char *name, element_reader read, size_t size, size_t *n) {
  PyObject *tuple = PySequence_Tuple(o); /* an element may run code that changes a list */
  if (!tuple) return NULL;
  *n = (size_t)PyTuple_GET_SIZE(tuple);
  char *array = PyMem_Calloc(*n + 1, size); /* never empty: NULL is an error */
  if (!array) PyErr_NoMemory();
  for (size_t i = 0; array && i < *n; i++) {
    if (read(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), name, array + i * size) == 0) continue;
    PyMem_Free(array);
    array = NULL;
  }
  Py_DECREF(tuple);
  return array;
}

/* Works like array_of() for a sequence that must have n elements. */
static void *array_of_n(PyObject *o, const char *name, element_reader read, size_t size, size_t n) {
  size_t found = 0;
  void *array = array_of(o, name, read, size, &found);
  if (!array || found == n) return array;
  PyErr_Format(PyExc_ValueError, "managed: a plan needs %zu numbers for %s, not %zu", n, name, found);
  PyMem_Free(array);
  return NULL;
}

/* ---- answers */

static PyObject *plan_list(const int *plan, size_t n) {
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (size_t i = 0; list && i < n; i++) {
    PyObject *index = PyLong_FromLong(plan[i]);
    if (index) PyList_SET_ITEM(list, (Py_ssize_t)i, index); /* steals */
    else Py_CLEAR(list);
  }
  return list;
}

static PyObject *finish_plan(PyObject *module, int code, const int *out, size_t n, const char *attempted) {
  if (code == MGD_OK) return plan_list(out, n);
  if (code == MGD_E_NO_ROOM) Py_RETURN_NONE;
  mgd_errors_raise(mgd_state_of(module), code, attempted);
  return NULL;
}

/* ---- parameters and layers by their bytes */

static PyObject *plan_spread(PyObject *module, PyObject *args) {
  PyObject *sizes, *rooms, *result = NULL;
  size_t n = 0, devices = 0;
  int64_t *bytes = NULL;
  struct mgd_share *shares = NULL;
  if (!PyArg_ParseTuple(args, "OO:plan_spread", &sizes, &rooms) || mgd_state_ready() < 0) return NULL;
  if (!(bytes = array_of(sizes, "a parameter", read_bytes, sizeof *bytes, &n)) ||
      !(shares = array_of(rooms, "a share", read_share, sizeof *shares, &devices)))
    goto end;
  if (n == 0 || devices == 0) {
    result = n == 0 ? PyList_New(0) : Py_NewRef(Py_None);
    goto end;
  }
  int *out = PyMem_New(int, n);
  result = out ? finish_plan(module, mgd_place_plan_spread(mgd_torch_machine(), bytes, n, shares, devices, out), out, n,
                             "planning parameters")
               : PyErr_NoMemory();
  PyMem_Free(out);
end:
  PyMem_Free(bytes);
  PyMem_Free(shares);
  return result;
}

static PyObject *plan(PyObject *module, const int64_t *bytes, const int64_t *border, size_t n,
                      const struct mgd_share *shares, size_t devices) {
  int *out = PyMem_New(int, n + 1);
  if (!out) return PyErr_NoMemory();
  const int code = mgd_place_plan_layers(mgd_torch_machine(), bytes, border, n, shares, devices, out);
  PyObject *result = finish_plan(module, code, out, n, "planning layers");
  PyMem_Free(out);
  return result;
}

static PyObject *plan_layers(PyObject *module, PyObject *args) {
  PyObject *sizes, *crossing, *rooms, *result = NULL;
  size_t n = 0, borders = 0, devices = 0;
  int64_t *bytes = NULL, *border = NULL;
  struct mgd_share *shares = NULL;
  if (!PyArg_ParseTuple(args, "OOO:plan_layers", &sizes, &crossing, &rooms) || mgd_state_ready() < 0) return NULL;
  if (!(bytes = array_of(sizes, "a layer", read_bytes, sizeof *bytes, &n)) ||
      !(shares = array_of(rooms, "a share", read_share, sizeof *shares, &devices)))
    goto end;
  if (crossing != Py_None && !(border = array_of(crossing, "a border", read_bytes, sizeof *border, &borders))) goto end;
  if (border && borders + 1 != n) {
    PyErr_Format(PyExc_ValueError, "managed: %zu layers have %zu borders between them, not %zu", n, n ? n - 1 : 0,
                 borders);
    goto end;
  }
  result = n == 0 ? PyList_New(0) : devices == 0 ? Py_NewRef(Py_None) : plan(module, bytes, border, n, shares, devices);
end:
  PyMem_Free(bytes);
  PyMem_Free(border);
  PyMem_Free(shares);
  return result;
}

/* ---- stages of a pipeline by their time */

/* The arrays of a request, which the binding owns. */
struct stages {
  size_t n, devices;
  int64_t *ns, *bytes, *part_bytes, *border, *in_flight;
  struct mgd_share *shares;
  double *bandwidth;
  int *out;
};

static void free_stages(struct stages *s) {
  PyMem_Free(s->ns);
  PyMem_Free(s->bytes);
  PyMem_Free(s->part_bytes);
  PyMem_Free(s->border);
  PyMem_Free(s->in_flight);
  PyMem_Free(s->shares);
  PyMem_Free(s->bandwidth);
  PyMem_Free(s->out);
}

/* Reads the arguments of both functions; the format names one of them. After an error, too, the caller frees. */
static int read_stages(PyObject *args, const char *format, struct stages *s) {
  PyObject *ns, *bytes, *part_bytes, *border, *shares, *in_flight, *rates;
  const size_t each = sizeof(int64_t);
  if (!PyArg_ParseTuple(args, format, &ns, &bytes, &part_bytes, &border, &shares, &in_flight, &rates)) return -1;
  if (mgd_state_ready() < 0) return -1;
  if (!(s->ns = array_of(ns, "ns", read_integer, each, &s->n))) return -1;
  if (!(s->shares = array_of(shares, "shares", read_share, sizeof *s->shares, &s->devices))) return -1;
  const size_t cuts = s->n ? s->n - 1 : 0, links = s->devices ? s->devices - 1 : 0;
  if (!(s->bytes = array_of_n(bytes, "bytes", read_bytes, each, s->n))) return -1;
  if (!(s->part_bytes = array_of_n(part_bytes, "part_bytes", read_bytes, each, s->n))) return -1;
  if (!(s->in_flight = array_of_n(in_flight, "in_flight", read_integer, each, s->devices))) return -1;
  if (border != Py_None && !(s->border = array_of_n(border, "border", read_bytes, each, cuts))) return -1;
  if (rates != Py_None && !(s->bandwidth = array_of_n(rates, "bandwidth", read_rate, sizeof(double), links))) return -1;
  if (!(s->out = PyMem_New(int, s->n + 1))) PyErr_NoMemory();
  return s->out ? 0 : -1;
}

static int solve_stages(const struct stages *s, int64_t *missing) {
  const struct mgd_stages_request request = {.n = s->n,
                                             .devices = s->devices,
                                             .ns = s->ns,
                                             .bytes = s->bytes,
                                             .part_bytes = s->part_bytes,
                                             .border = s->border,
                                             .shares = s->shares,
                                             .in_flight = s->in_flight,
                                             .bandwidth = s->bandwidth};
  return mgd_place_plan_stages(mgd_torch_machine(), &request, s->out, missing);
}

static PyObject *plan_stages(PyObject *module, PyObject *args) {
  PyObject *result = NULL;
  struct stages s = {0};
  if (read_stages(args, "OOOOOOO:plan_stages", &s) == 0) {
    const int code = s.n == 0 ? MGD_OK : s.devices == 0 ? MGD_E_NO_ROOM : solve_stages(&s, NULL);
    result = finish_plan(module, code, s.out, s.n, "planning stages");
  }
  free_stages(&s);
  return result;
}

static PyObject *plan_spilled_stages(PyObject *module, PyObject *args) {
  PyObject *result = NULL;
  struct stages s = {0};
  if (read_stages(args, "OOOOOOO:plan_spilled_stages", &s) == 0) {
    int64_t missing = 0;
    const int code = s.n == 0 ? MGD_OK : solve_stages(&s, &missing);
    PyObject *list = finish_plan(module, code, s.out, s.n, "planning stages");
    result = list ? Py_BuildValue("NL", list, (long long)missing) : NULL;
  }
  free_stages(&s);
  return result;
}

static PyObject *bandwidth(PyObject *module, PyObject *args) {
  PyObject *first, *second;
  int from, to, any;
  struct mgd_link link = {0, 0.0};
  if (!PyArg_ParseTuple(args, "OO:bandwidth", &first, &second) || mgd_state_ready() < 0) return NULL;
  if (mgd_errors_device_id(first, &from, &any) < 0 || mgd_errors_device_id(second, &to, &any) < 0) return NULL;
  const int code = mgd_link_get(mgd_torch_machine(), from, to, &link);
  if (code != MGD_OK) {
    mgd_errors_raise(mgd_state_of(module), code, "looking for a link");
    return NULL;
  }
  return PyFloat_FromDouble(link.bytes_per_ns);
}

PyMethodDef mgd_layers_methods[] = {
    {"bandwidth", bandwidth, METH_VARARGS,
     PyDoc_STR("bandwidth(source, target, /)\n--\n\nBytes per ns between two devices, as placement reckons; 0: no "
               "limit.")},
    {"plan_layers", plan_layers, METH_VARARGS,
     PyDoc_STR("plan_layers(bytes, border, shares, /)\n--\n\n"
               "Contiguous layers over devices: an index into `shares` for each layer, or None when no contiguous plan "
               "fits.\n"
               "A share is (room, bytes in use, speed) or the room of an empty device. border[i] are the bytes that "
               "cross between layers i and i + 1; None means that all borders are alike.")},
    {"plan_spread", plan_spread, METH_VARARGS,
     PyDoc_STR("plan_spread(bytes, shares, /)\n--\n\nEach by itself, the largest first, where least is in use for the "
               "speed: an "
               "index into `shares` for each, or None when one fits nowhere.")},
    {"plan_stages", plan_stages, METH_VARARGS,
     PyDoc_STR("plan_stages(ns, bytes, part_bytes, border, shares, in_flight, bandwidth, /)\n--\n\n"
               "Layers of a pipeline over devices, so that the slowest stage or link takes the least time: an index "
               "into `shares` for each layer, or None when no contiguous plan fits.\n"
               "Of each layer: ns of one part of a batch, forward and backward, on the fastest device; bytes that "
               "stay; bytes that each part in flight holds; bytes that cross a cut behind it (not of the last; or "
               "None). Of each device: a share as in plan_layers(), the most parts in flight there, and bytes/ns of "
               "the link behind it (not of the last; or None; 0 takes no time).")},
    {"plan_spilled_stages", plan_spilled_stages, METH_VARARGS,
     PyDoc_STR("plan_spilled_stages(ns, bytes, part_bytes, border, shares, in_flight, bandwidth, /)\n--\n\n"
               "What plan_stages() returns if room is no limit, and the bytes for which devices have no room then.")},
    {NULL, NULL, 0, NULL}};
