/* manager.c: DeviceManager, the object through which a program requests devices: its arguments, their checks, and its
 * methods.
 *
 * A bad value is a ValueError (a value of the wrong kind a TypeError) and leaves the manager as it was. No decision is
 * taken here: admit.c calls the core.
 */
#include "python/binding.h"

#include <limits.h>
#include <math.h>

static struct mgd_manager *as_manager(PyObject *self) { return (struct mgd_manager *)self; }

/* ---- properties and their checks */

static int refuse_delete(PyObject *value, const char *name) {
  if (value) return 0;
  PyErr_Format(PyExc_AttributeError, "managed: %s cannot be deleted", name);
  return -1;
}

static int set_comm_interface(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  if (refuse_delete(value, "comm_interface") < 0) return -1;
  PyObject *sleep = PyObject_GetAttrString(value, "sleep");
  const int callable = sleep && PyCallable_Check(sleep);
  Py_XDECREF(sleep);
  if (!callable) {
    PyErr_Format(PyExc_ValueError, "managed: comm_interface %R has no sleep(seconds) to wait with", value);
    return -1;
  }
  PyObject *clock = PyImport_ImportModule("time");
  if (!clock) return -1;
  as_manager(self)->own_waiting = value == clock;
  Py_DECREF(clock);
  PyObject *old = as_manager(self)->comm_interface;
  as_manager(self)->comm_interface = Py_NewRef(value);
  Py_XDECREF(old);
  return 0;
}

static PyObject *get_comm_interface(PyObject *self, void *unused) {
  (void)unused;
  return Py_NewRef(as_manager(self)->comm_interface);
}

/* Adds one named accelerator to the mask; "cuda" without an index names them all. */
static int add_device(PyObject *device, mgd_mask *mask) {
  int id, any;
  if (mgd_errors_device_id(device, &id, &any) < 0) return -1;
  if (any || id == MGD_HOST) {
    PyErr_Format(PyExc_ValueError,
                 "managed: cuda_devices lists accelerators with their index (0, \"cuda:0\", \"sim:1\"), not %R",
                 device);
    return -1;
  }
  *mask |= (mgd_mask)1 << id;
  return 0;
}

static int set_cuda_devices(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  if (refuse_delete(value, "cuda_devices") < 0) return -1;
  mgd_mask mask = 0;
  if (value != Py_None) {
    PyObject *list =
        mgd_state_ready() < 0 ? NULL : PySequence_Fast(value, "managed: cuda_devices is a list of devices or None");
    if (!list) return -1;
    int bad = 0;
    for (Py_ssize_t i = 0; !bad && i < PySequence_Fast_GET_SIZE(list); i++)
      bad = add_device(PySequence_Fast_GET_ITEM(list, i), &mask);
    Py_DECREF(list);
    if (bad) return -1;
    if (!mask) {
      PyErr_SetString(PyExc_ValueError, "managed: cuda_devices is empty; None means every accelerator there is");
      return -1;
    }
  }
  as_manager(self)->chosen = mask;
  return 0;
}

static int append_device(PyObject *list, int id) {
  PyObject *device = mgd_torch_device(id);
  const int failed = !device || PyList_Append(list, device) < 0;
  Py_XDECREF(device);
  return failed ? -1 : 0;
}

/* Lists the devices of a mask in the order of their ids; bit 0 is the host. */
static PyObject *list_devices(mgd_mask mask) {
  PyObject *list = PyList_New(0);
  for (int id = 0; list && id < MGD_MAX_DEVICES; id++)
    if ((mask >> id & 1) && append_device(list, id) < 0) Py_CLEAR(list);
  return list;
}

static PyObject *get_cuda_devices(PyObject *self, void *with_host) {
  if (mgd_state_ready() < 0) return NULL;
  const mgd_mask mask = mgd_admit_allowed(as_manager(self));
  if (PyErr_Occurred()) return NULL;
  return list_devices(mask | (with_host ? 1 : 0));
}

static PyObject *get_cpu_device(PyObject *self, void *unused) {
  (void)self;
  (void)unused;
  return mgd_torch_device(MGD_HOST);
}

static int number_of(PyObject *value, const char *name, double *out) {
  const double number = PyFloat_AsDouble(value);
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "managed: %s is a number, not %R", name, value);
    return -1;
  }
  *out = number;
  return 0;
}

static int set_reserved(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  double reserved;
  if (refuse_delete(value, "reserved") < 0 || number_of(value, "reserved", &reserved) < 0) return -1;
  if (!(reserved >= 0 && reserved < 1)) {
    PyErr_Format(PyExc_ValueError,
                 "managed: reserved is %R; it is the fraction of each device to leave free: from 0 to below 1", value);
    return -1;
  }
  as_manager(self)->reserved = reserved;
  return 0;
}

static PyObject *get_reserved(PyObject *self, void *unused) {
  (void)unused;
  return PyFloat_FromDouble(as_manager(self)->reserved);
}

static int set_wait_time(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  double seconds;
  if (refuse_delete(value, "wait_time") < 0 || number_of(value, "wait_time", &seconds) < 0) return -1;
  if (!(seconds >= 0 && isfinite(seconds))) {
    PyErr_Format(PyExc_ValueError, "managed: wait_time is %R; it is a finite number of seconds, 0 or more", value);
    return -1;
  }
  as_manager(self)->wait_time = seconds;
  return 0;
}

static PyObject *get_wait_time(PyObject *self, void *unused) {
  (void)unused;
  return PyFloat_FromDouble(as_manager(self)->wait_time);
}

static int set_retry_limit(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  if (refuse_delete(value, "retry_limit") < 0) return -1;
  if (!PyLong_Check(value) || PyBool_Check(value)) {
    PyErr_Format(PyExc_TypeError, "managed: retry_limit is an int, not %R", value);
    return -1;
  }
  int overflow = 0;
  const long limit = PyLong_AsLongAndOverflow(value, &overflow);
  if (overflow || limit < 0) {
    PyErr_Format(PyExc_ValueError, "managed: retry_limit is %R; it is a number of waits, 0 or more", value);
    return -1;
  }
  as_manager(self)->retry_limit = limit;
  return 0;
}

static PyObject *get_retry_limit(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromLong(as_manager(self)->retry_limit);
}

/* Converts a logging level, such as 20 or "INFO", to an int. */
static int level_of(PyObject *value, int *out) {
  PyObject *logging = PyImport_ImportModule("logging"), *number = NULL;
  if (!logging) return -1;
  if (PyUnicode_Check(value)) number = PyObject_CallMethod(logging, "getLevelName", "O", value);
  else if (PyLong_Check(value) && !PyBool_Check(value)) number = Py_NewRef(value);
  Py_DECREF(logging);
  if (PyErr_Occurred()) return -1;
  int overflow = 0;
  const long level = number && PyLong_Check(number) ? PyLong_AsLongAndOverflow(number, &overflow) : -1;
  Py_XDECREF(number);
  if (overflow || level < 0 || level > INT_MAX) {
    PyErr_Format(PyExc_ValueError,
                 "managed: %R is no logging level; say \"DEBUG\", \"INFO\", \"WARNING\" or a number from 0", value);
    return -1;
  }
  *out = (int)level;
  return 0;
}

static int set_default_level(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  return refuse_delete(value, "default_level") < 0 ? -1 : level_of(value, &as_manager(self)->default_level);
}

static PyObject *get_default_level(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromLong(as_manager(self)->default_level);
}

static PyGetSetDef manager_getset[] = {
    {"comm_interface", get_comm_interface, set_comm_interface,
     PyDoc_STR("Whose sleep(seconds) waits for room; the time module means that room wakes the waiter."), NULL},
    {"cuda_devices", get_cuda_devices, set_cuda_devices,
     PyDoc_STR("The accelerators it may use: CUDA's, or the simulated ones. None sets them to all."), NULL},
    {"cpu_device", get_cpu_device, NULL, PyDoc_STR("torch.device(\"cpu\")"), NULL},
    {"devices", get_cuda_devices, NULL, PyDoc_STR("cpu_device and cuda_devices."), (void *)"with host"},
    {"retry_limit", get_retry_limit, set_retry_limit, PyDoc_STR("How many wait_times to wait for room."), NULL},
    {"reserved", get_reserved, set_reserved, PyDoc_STR("Fraction of each device to leave free, 0 <= reserved < 1."),
     NULL},
    {"wait_time", get_wait_time, set_wait_time, PyDoc_STR("Seconds of one wait."), NULL},
    {"default_level", get_default_level, set_default_level,
     PyDoc_STR("The logging level of log() and of placement's own lines."), NULL},
    {NULL, NULL, NULL, NULL, NULL}};

/* ---- methods */

static PyObject *manager_log(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"message", "level", NULL};
  PyObject *message, *level_object = Py_None;
  int level = as_manager(self)->default_level;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:log", names, &message, &level_object)) return NULL;
  if (level_object != Py_None && level_of(level_object, &level) < 0) return NULL;
  return PyObject_CallMethod(as_manager(self)->state->logger, "log", "isO", level, "%s", message);
}

static PyObject *manager_send(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"tensors", "device", "space_estimate", NULL};
  PyObject *object, *device = Py_None, *space = NULL;
  int64_t estimate = -1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:send", names, &object, &device, &space)) return NULL;
  const int given = space && !(PyLong_Check(space) && PyLong_AsLong(space) == -1 && !PyErr_Occurred());
  PyErr_Clear(); /* an int too large for a long is checked next */
  if (given && mgd_errors_bytes(space, "space_estimate", &estimate) < 0) return NULL;
  return mgd_send_nest(as_manager(self), object, device, estimate);
}

static PyObject *manager_find_device(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"space_estimate", "disperse", NULL};
  PyObject *space;
  int disperse = 0;
  int64_t bytes;
  struct mgd_ticket ticket = {0};
  enum mgd_reason why;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O&:find_device", names, &space, mgd_errors_disperse, &disperse))
    return NULL;
  if (mgd_errors_bytes(space, "space_estimate", &bytes) < 0 ||
      mgd_admit_pick(as_manager(self), bytes, disperse, &ticket, &why) < 0)
    return NULL;
  const int device = ticket.device;
  mgd_admit_give_back(&ticket);
  return mgd_torch_device(device);
}

static PyObject *manager_cuda(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"obj", "disperse", NULL};
  PyObject *object, *disperse = Py_False;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:cuda", names, &object, &disperse)) return NULL;
  return mgd_send_cuda(as_manager(self), object, disperse);
}

#define WITH_KEYWORDS(f) (PyCFunction)(void (*)(void)) f
static PyMethodDef manager_methods[] = {
    {"log", WITH_KEYWORDS(manager_log), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR(
         "log($self, /, message, level=None)\n--\n\nLogs to the logger \"managed\" at `level`, or at default_level.")},
    {"send", WITH_KEYWORDS(manager_send), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("send($self, /, tensors, device=None, space_estimate=-1)\n--\n\n"
               "Brings a tensor, a module or a nest of them to `device` and returns the same structure.\n\n"
               "Without a device find_device chooses. With one, waits up to retry_limit * wait_time seconds for room,\n"
               "then raises OutOfMemoryError and leaves everything as it was. space_estimate is in bytes; -1 lets the\n"
               "heuristic estimate. Tensors come back managed; modules are moved in place.")},
    {"find_device", WITH_KEYWORDS(manager_find_device), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR(
         "find_device($self, /, space_estimate, disperse=False)\n--\n\n"
         "The device for `space_estimate` bytes: the fullest that still fits, or with disperse=True the one with the\n"
         "least in use for its speed. Nothing fits: cpu. ValueError for a negative or non-finite size.")},
    {"cuda", WITH_KEYWORDS(manager_cuda), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("cuda($self, /, obj, disperse=False)\n--\n\nPlaces each tensor of `obj` as find_device says, what fits "
               "nowhere stays; and each module as its cuda() does.")},
    {NULL, NULL, 0, NULL}};

/* ---- the type */

static void set_defaults(struct mgd_manager *m, struct mgd_state *st) {
  m->state = st;
  m->reserved = 0.1;
  m->retry_limit = 10;
  m->wait_time = 0.1;
  m->default_level = 20; /* logging.INFO */
}

/* Sets an argument that was given, with the same check as the property. */
static int set_given(PyObject *self, PyObject *value, setter set) { return value ? set(self, value, NULL) : 0; }

static PyObject *manager_create(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"comm_interface", "cuda_devices", "reserved", "retry_limit", "wait_time", NULL};
  PyObject *comm = NULL, *devices = NULL, *reserved = NULL, *retries = NULL, *wait = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOOO:DeviceManager", names, &comm, &devices, &reserved, &retries,
                                   &wait))
    return NULL;
  PyObject *clock = comm && comm != Py_None ? Py_NewRef(comm) : PyImport_ImportModule("time");
  PyObject *self = clock ? type->tp_alloc(type, 0) : NULL;
  if (self) {
    set_defaults(as_manager(self), mgd_state_of_type(type));
    if (set_comm_interface(self, clock, NULL) < 0 || set_given(self, devices, set_cuda_devices) < 0 ||
        set_given(self, reserved, set_reserved) < 0 || set_given(self, retries, set_retry_limit) < 0 ||
        set_given(self, wait, set_wait_time) < 0)
      Py_CLEAR(self);
  }
  Py_XDECREF(clock);
  return self;
}

PyObject *mgd_manager_new(struct mgd_state *st) { return PyObject_CallNoArgs((PyObject *)st->manager_type); }

static int manager_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_manager(self)->comm_interface);
  return 0;
}

static int manager_clear(PyObject *self) {
  Py_CLEAR(as_manager(self)->comm_interface);
  return 0;
}

static void manager_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  manager_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyObject *manager_repr(PyObject *self) {
  PyObject *reserved = get_reserved(self, NULL), *wait = get_wait_time(self, NULL), *text = NULL;
  if (reserved && wait)
    text = PyUnicode_FromFormat("DeviceManager(reserved=%R, retry_limit=%ld, wait_time=%R)", reserved,
                                as_manager(self)->retry_limit, wait);
  Py_XDECREF(reserved);
  Py_XDECREF(wait);
  return text;
}

static PyType_Slot manager_slots[] = {
    {Py_tp_new, manager_create},
    {Py_tp_dealloc, manager_dealloc},
    {Py_tp_traverse, manager_traverse},
    {Py_tp_clear, manager_clear},
    {Py_tp_repr, manager_repr},
    {Py_tp_methods, manager_methods},
    {Py_tp_getset, manager_getset},
    {Py_tp_doc,
     PyDoc_STR(
         "DeviceManager(comm_interface=None, cuda_devices=None, reserved=0.1, retry_limit=10, wait_time=0.1)\n--\n\n"
         "Finds devices with room and brings tensors, modules and nests of them there.\n\n"
         "comm_interface is whose sleep(seconds) waits for room; None means the time module.")},
    {0, NULL}};
static PyType_Spec manager_spec = {"managed._C.DeviceManager", sizeof(struct mgd_manager), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, manager_slots};

int mgd_manager_init(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  st->manager_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &manager_spec, NULL);
  if (!st->manager_type) return -1;
  return PyModule_AddObjectRef(module, "DeviceManager", (PyObject *)st->manager_type);
}
