/* errors.c: the one mapping from the core's codes to Python exceptions, and the checks of arguments that several files
 * share.
 *
 * Nothing is decided here. An error's text says what was requested, what is available and what to do next.
 */
#include "python/binding.h"

#include <math.h>
#include <string.h>

int mgd_errors_init(struct mgd_state *st) {
  PyObject *module = PyImport_ImportModule("managed.errors");
  if (!module) return -1;
  st->managed_error = PyObject_GetAttrString(module, "ManagedError");
  st->pin_conflict = PyObject_GetAttrString(module, "PinConflictError");
  st->out_of_memory = PyObject_GetAttrString(module, "OutOfMemoryError");
  Py_DECREF(module);
  mgd_torch_set_errors(st->pin_conflict, st->out_of_memory);
  return st->managed_error && st->pin_conflict && st->out_of_memory ? 0 : -1;
}

/* Returns a borrowed reference. */
static PyObject *exception_of(struct mgd_state *st, int code) {
  switch (code) {
    case MGD_E_NOMEM:
      return PyExc_MemoryError;
    case MGD_E_INVALID:
    case MGD_E_NO_DEVICE:
    case MGD_E_EXISTS:
    case MGD_E_FULL:
      return PyExc_ValueError;
    case MGD_E_NO_ROOM:
    case MGD_E_WAIT:
    case MGD_E_DEADLINE:
      return st->out_of_memory;
    case MGD_E_PIN_CONFLICT:
      return st->pin_conflict;
    case MGD_E_OVERFLOW:
      return PyExc_OverflowError;
    default:
      return st->managed_error;
  }
}

int mgd_errors_raise(struct mgd_state *st, int code, const char *attempted) {
  /* If the heuristic raised, its own exception is more precise and stays. */
  if (code == MGD_E_CALLBACK && PyErr_Occurred()) return -1;
  PyErr_Format(exception_of(st, code), "managed: %s: %s", attempted, mgd_text_error(code));
  return -1;
}

/* Formats bytes, for example as "12.00 MiB". */
static void readable(int64_t bytes, char out[32]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1024;
    unit++;
  }
  PyOS_snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
}

static void describe_wait(int64_t waited, char out[64]) {
  if (waited > 0)
    PyOS_snprintf(out, 64, "no room appeared within %.3g s", (double)waited / 1e9);
  else
    PyOS_snprintf(out, 64, "so many never fit there");
}

int mgd_errors_no_room(struct mgd_state *st, int device, int64_t bytes, double reserved, int64_t waited) {
  struct mgd_usage usage;
  char name[32], asked[32], free_bytes[32], capacity[32], wait[64], text[512];
  struct mgd_machine *machine = mgd_torch_machine();
  if (mgd_device_name(machine, device, name) || mgd_ledger_usage(machine, device, &usage))
    return mgd_errors_raise(st, MGD_E_NO_ROOM, "sending");
  readable(bytes, asked);
  readable(usage.free, free_bytes);
  readable(usage.capacity, capacity);
  describe_wait(waited, wait);
  PyOS_snprintf(text, sizeof text,
                "%s out of memory. Asked for %s (%lld bytes); %s of %s are free, %.3g %% of the device are kept in "
                "reserve, and %s. "
                "Free tensors there, send to another device, or lower DeviceManager.reserved.",
                name, asked, (long long)bytes, free_bytes, capacity, reserved * 100, wait);
  PyErr_SetString(st->out_of_memory, text);
  return -1;
}

int mgd_errors_pinned(struct mgd_state *st, PyObject *tensor, int device) {
  char here[32] = "its device", there[32] = "the other";
  const int home = mgd_torch_device_of(tensor);
  if (home < 0) return -1;
  mgd_device_name(mgd_torch_machine(), home, here);
  if (device >= 0) mgd_device_name(mgd_torch_machine(), device, there);
  PyObject *shape = PyObject_GetAttrString(tensor, "shape");
  if (!shape) return -1;
  PyErr_Format(st->pin_conflict,
               "managed: a tensor of shape %S is pinned to %s and was asked to go to %s; call unpin() first", shape,
               here, device >= 0 ? there : "an accelerator");
  Py_DECREF(shape);
  return -1;
}

int mgd_errors_device_id(PyObject *device, int *id, int *any) {
  if (mgd_torch_device_id(device, id, any) == 0) return 0;
  /* torch raises a RuntimeError for a word that names no device. */
  if (!PyUnicode_Check(device) || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
  PyErr_Clear();
  PyErr_Format(PyExc_ValueError,
               "managed: %R names no device; say \"cpu\", \"cuda\", \"cuda:1\", \"sim:1\", an index or a torch.device. "
               "Simulated devices exist after managed.simulate(devices=4)",
               device);
  return -1;
}

static int bytes_of_float(double value, PyObject *shown, const char *name, int64_t *bytes) {
  if (!isfinite(value) || value < 0 || value >= 9223372036854775808.0) {
    PyErr_Format(PyExc_ValueError, "managed: %s is %R; it is a finite number of bytes, 0 or more", name, shown);
    return -1;
  }
  *bytes = (int64_t)ceil(value);
  return 0;
}

int mgd_errors_bytes(PyObject *value, const char *name, int64_t *bytes) {
  if (PyFloat_Check(value)) return bytes_of_float(PyFloat_AS_DOUBLE(value), value, name, bytes);
  PyObject *index = PyNumber_Index(value);
  if (!index) {
    if (PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Format(PyExc_TypeError, "managed: %s is a number of bytes, not %.100s", name, Py_TYPE(value)->tp_name);
    return -1;
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index, &overflow);
  Py_DECREF(index);
  if (overflow || number < 0) {
    PyErr_Format(PyExc_ValueError, "managed: %s is %R; it is a number of bytes from 0 to 2**63 - 1", name, value);
    return -1;
  }
  *bytes = number;
  return 0;
}

int mgd_errors_disperse(PyObject *value, void *disperse) {
  const int yes = PyObject_RichCompareBool(value, Py_True, Py_EQ),
            no = yes ? 0 : PyObject_RichCompareBool(value, Py_False, Py_EQ);
  if (yes < 0 || no < 0) return 0;
  if (!yes && !no)
    PyErr_Format(PyExc_ValueError,
                 "managed: disperse is True or False here, not %R; modules take \"layers\" and \"parameters\" as well",
                 value);
  *(int *)disperse = yes;
  return yes || no;
}

void mgd_errors_advise(PyObject *kind, const char *(*advice_for)(const char *text)) {
  if (!PyErr_ExceptionMatches(kind)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject *text = value ? PyObject_Str(value) : NULL;
  const char *utf8 = text ? PyUnicode_AsUTF8(text) : NULL;
  const char *more = utf8 ? advice_for(utf8) : NULL;
  PyObject *args = more ? Py_BuildValue("(N)", PyUnicode_FromFormat("%U\n%s", text, more)) : NULL;
  if (args) (void)PyObject_SetAttrString(value, "args", args);
  Py_XDECREF(args);
  Py_XDECREF(text);
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
}
