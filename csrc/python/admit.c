/* admit.c: requests room from the core and waits for it; defines reservations as Python objects.
 *
 * The core decides; this file passes it fresh figures and does the waiting that the core must not do. It never copies a
 * byte. The caller that gets a ticket gives it back when the copy for which it was taken exists.
 */
#include "python/binding.h"

#include <string.h>

/* The length of one wait. Waits are short so that Ctrl-C works; free room ends one at once. */
#define SLICE_NS 200000000LL

/* A simulated machine takes precedence over the real one: while it is on, only its devices count. */
static mgd_mask preferred_devices(struct mgd_machine *machine) {
  mgd_mask all = 0, simulated = 0;
  const int count = mgd_device_count(machine);
  for (int id = 1; id < count; id++) {
    char name[32];
    if (mgd_device_name(machine, id, name) != MGD_OK) continue;
    all |= (mgd_mask)1 << id;
    if (strncmp(name, "sim", 3) == 0) simulated |= (mgd_mask)1 << id;
  }
  return simulated ? simulated : all;
}

mgd_mask mgd_admit_allowed(struct mgd_manager *m) {
  struct mgd_machine *machine = mgd_torch_machine();
  if (mgd_torch_discover() < 0) return 0;
  return m->chosen ? m->chosen : preferred_devices(machine);
}

static void record(enum mgd_event_kind kind, enum mgd_reason why, int device, int64_t bytes, int64_t since) {
  struct mgd_event event = {0};
  const int64_t now = mgd_torch_now();
  event.time = since ? since : now;
  event.duration = since ? now - since : 0;
  event.bytes = bytes;
  event.kind = (int16_t)kind;
  event.reason = (int16_t)why;
  event.from = -1;
  event.to = (int16_t)device;
  event.site = mgd_frames_site();
  mgd_trace_add(mgd_torch_machine(), &event);
}

/* Records a reservation as an event of its device. A ticket for the host holds nothing and is not recorded. */
static void record_reserved(const struct mgd_ticket *ticket, enum mgd_reason why) {
  if (ticket->id) record(MGD_EV_RESERVE, why, ticket->device, ticket->bytes, 0);
}

/* Takes the request out of the queue, or gives the bytes back. */
static void drop(struct mgd_ticket *ticket) {
  mgd_admit_release(mgd_torch_machine(), ticket);
  ticket->id = 0;
  mgd_torch_notify_freed();
}

void mgd_admit_give_back(struct mgd_ticket *ticket) {
  if (!ticket->id) return;
  record(MGD_EV_RELEASE, MGD_WHY_NONE, ticket->device, ticket->bytes, 0);
  drop(ticket);
}

/* ---- waiting */

/* Pauses once between two attempts. `seen` was read before the last attempt, so room that appeared since ends the pause
 * at once. */
static int pause_once(struct mgd_manager *m, uint64_t seen, int64_t deadline) {
  if (!m->own_waiting) {
    PyObject *clock = Py_NewRef(m->comm_interface); /* sleep() may assign another interface */
    PyObject *result = PyObject_CallMethod(clock, "sleep", "d", m->wait_time);
    Py_XDECREF(result);
    Py_DECREF(clock);
    return result ? 0 : -1;
  }
  const int64_t slice = mgd_torch_now() + SLICE_NS;
  if (mgd_torch_wait_freed(seen, slice < deadline ? slice : deadline) < 0) return -1;
  return PyErr_CheckSignals();
}

/* Polls until the ticket is granted or the time is over: a deadline for our own waiting, a number of sleeps for a
 * comm_interface of the user. */
static int wait_granted(struct mgd_manager *m, struct mgd_ticket *ticket, int64_t deadline) {
  for (long tries = 0;; tries++) {
    const uint64_t seen = mgd_torch_freed_count();
    if (mgd_torch_observe() < 0) return -1;
    const int code = mgd_admit_poll(mgd_torch_machine(), ticket, mgd_torch_now());
    if (code != MGD_E_WAIT) return code;
    if (!m->own_waiting && tries >= m->retry_limit) return MGD_E_DEADLINE;
    if (pause_once(m, seen, deadline) < 0) return -1;
  }
}

static int64_t patience(const struct mgd_manager *m) {
  const double ns = (double)m->retry_limit * m->wait_time * 1e9;
  return ns < 9e18 ? (int64_t)ns : INT64_MAX;
}

static int64_t deadline_of(const struct mgd_manager *m, int64_t now) {
  const int64_t ns = patience(m);
  return m->own_waiting && ns < INT64_MAX - now ? now + ns : INT64_MAX;
}

int mgd_admit_wait(struct mgd_manager *m, int device, int64_t bytes, struct mgd_ticket *ticket) {
  if (mgd_torch_observe() < 0) return -1;
  const int64_t now = mgd_torch_now(), deadline = deadline_of(m, now);
  int code = mgd_admit_request(mgd_torch_machine(), device, bytes, m->reserved, now, deadline, ticket);
  const int never = code == MGD_E_NO_ROOM;
  if (code == MGD_E_WAIT) {
    mgd_garbage_collect(); /* frees tensors that only a cycle of objects holds */
    code = wait_granted(m, ticket, deadline);
    record(MGD_EV_WAITED, MGD_WHY_NONE, device, bytes, now);
    if (code != MGD_OK) drop(ticket);
  }
  if (code == MGD_OK) {
    record_reserved(ticket, MGD_WHY_REQUESTED);
    return 0;
  }
  if (PyErr_Occurred()) return -1;
  if (never || code == MGD_E_DEADLINE)
    return mgd_errors_no_room(m->state, device, bytes, m->reserved, never ? 0 : patience(m));
  return mgd_errors_raise(m->state, code, "waiting for room");
}

/* ---- choosing */

/* Whether a copy is under way to a device that could take `bytes`. Until it has
 * ended its bytes count twice there, as reserved and as allocated. */
static int copies_under_way(const struct mgd_manager *m, mgd_mask allowed, int64_t bytes) {
  struct mgd_usage usage;
  for (int id = 1; id < MGD_MAX_DEVICES; id++) {
    if (!(allowed >> id & 1) || mgd_ledger_usage(mgd_torch_machine(), id, &usage) != MGD_OK) continue;
    if (usage.by_owner[MGD_RESERVED] > 0 && (double)bytes <= (1 - m->reserved) * (double)usage.capacity) return 1;
  }
  return 0;
}

/* Tries once. 1: another try is worth it when a copy has ended. */
static int look(struct mgd_manager *m, const struct mgd_object_request *request, struct mgd_ticket *ticket,
                enum mgd_reason *why) {
  if (mgd_torch_observe() < 0) return -1;
  const int busy = copies_under_way(m, request->allowed, request->bytes);
  const int code = mgd_admit_object(mgd_torch_machine(), request, mgd_torch_now(), ticket, why);
  if (code != MGD_OK) return mgd_errors_raise(m->state, code, "choosing a device");
  return busy && ticket->device == MGD_HOST;
}

int mgd_admit_pick(struct mgd_manager *m, int64_t bytes, int disperse, struct mgd_ticket *ticket,
                   enum mgd_reason *why) {
  if (mgd_state_ready() < 0) return -1;
  const mgd_mask allowed = mgd_admit_allowed(m);
  if (PyErr_Occurred()) return -1;
  const struct mgd_object_request request = {bytes, disperse != 0, allowed, m->reserved};
  const int64_t deadline = deadline_of(m, mgd_torch_now());
  for (long tries = 0;; tries++) {
    const uint64_t seen = mgd_torch_freed_count();
    const int again = look(m, &request, ticket, why);
    if (again < 0) return -1;
    const int tired =
        !m->own_waiting && tries >= m->retry_limit; /* our own pauses end with each free, so a deadline limits them */
    if (!again || tired || mgd_torch_now() >= deadline) break;
    if (pause_once(m, seen, deadline) < 0) return -1;
  }
  record(MGD_EV_PLACE, *why, ticket->device, bytes, 0);
  record_reserved(ticket, *why);
  return 0;
}

/* ---- Reservation: a ticket that gives itself back */

struct reservation {
  PyObject_HEAD
  struct mgd_ticket ticket;
  enum mgd_reason why;
};

static PyObject *reservation_new(struct mgd_state *st, struct mgd_ticket ticket, enum mgd_reason why) {
  struct reservation *r = PyObject_New(struct reservation, st->reservation_type);
  if (!r) {
    mgd_admit_give_back(&ticket);
    return NULL;
  }
  r->ticket = ticket;
  r->why = why;
  return (PyObject *)r;
}

static void reservation_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  mgd_admit_give_back(&((struct reservation *)self)->ticket);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyObject *reservation_release(PyObject *self, PyObject *unused) {
  (void)unused;
  mgd_admit_give_back(&((struct reservation *)self)->ticket);
  Py_RETURN_NONE;
}

static PyObject *reservation_enter(PyObject *self, PyObject *unused) {
  (void)unused;
  return Py_NewRef(self);
}

static PyObject *reservation_exit(PyObject *self, PyObject *args) {
  (void)args;
  return reservation_release(self, NULL);
}

static PyObject *reservation_device(PyObject *self, void *unused) {
  (void)unused;
  return mgd_torch_device(((struct reservation *)self)->ticket.device);
}

static PyObject *reservation_bytes(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(((struct reservation *)self)->ticket.bytes);
}

static PyObject *reservation_reason(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromLong(((struct reservation *)self)->why);
}

static PyMethodDef reservation_methods[] = {
    {"release", reservation_release, METH_NOARGS,
     PyDoc_STR("release($self, /)\n--\n\nGives the bytes back; a second call does nothing.")},
    {"__enter__", reservation_enter, METH_NOARGS, NULL},
    {"__exit__", reservation_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef reservation_getset[] = {
    {"device", reservation_device, NULL, PyDoc_STR("The torch.device chosen; cpu when nothing had room."), NULL},
    {"bytes", reservation_bytes, NULL, PyDoc_STR("Bytes held."), NULL},
    {"reason", reservation_reason, NULL, PyDoc_STR("Why this device, as a number that _C.move takes."), NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot reservation_slots[] = {
    {Py_tp_dealloc, reservation_dealloc},
    {Py_tp_methods, reservation_methods},
    {Py_tp_getset, reservation_getset},
    {Py_tp_doc, PyDoc_STR("Bytes of a device that are held until release() or the end of a with block.")},
    {0, NULL}};
static PyType_Spec reservation_spec = {"managed._C.Reservation", sizeof(struct reservation), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, reservation_slots};

/* ---- functions for managed.module */

static int parse_manager(struct mgd_state *st, PyObject *o, struct mgd_manager **out) {
  if (Py_TYPE(o) == st->manager_type) {
    *out = (struct mgd_manager *)o;
    return mgd_state_ready();
  }
  PyErr_Format(PyExc_TypeError, "managed: expected a DeviceManager, not %.100s", Py_TYPE(o)->tp_name);
  return -1;
}

static PyObject *admit(PyObject *module, PyObject *args) {
  struct mgd_state *st = mgd_state_of(module);
  PyObject *o, *size;
  int disperse;
  int64_t bytes;
  struct mgd_manager *m;
  struct mgd_ticket ticket = {0};
  enum mgd_reason why = MGD_WHY_NONE;
  if (!PyArg_ParseTuple(args, "OOp:admit", &o, &size, &disperse) || parse_manager(st, o, &m) < 0) return NULL;
  if (mgd_errors_bytes(size, "bytes", &bytes) < 0 || mgd_admit_pick(m, bytes, disperse, &ticket, &why) < 0) return NULL;
  return reservation_new(st, ticket, why);
}

/* Reserves bytes on one device without waiting; None if they do not fit now. */
static PyObject *reserve(PyObject *module, PyObject *args) {
  struct mgd_state *st = mgd_state_of(module);
  PyObject *o, *device, *size;
  int id, any;
  int64_t bytes;
  struct mgd_manager *m;
  struct mgd_ticket ticket = {0};
  if (!PyArg_ParseTuple(args, "OOO:reserve", &o, &device, &size) || parse_manager(st, o, &m) < 0) return NULL;
  if (mgd_errors_device_id(device, &id, &any) < 0 || mgd_errors_bytes(size, "bytes", &bytes) < 0 ||
      mgd_torch_observe() < 0)
    return NULL;
  const int64_t now = mgd_torch_now();
  const int code = mgd_admit_request(mgd_torch_machine(), id, bytes, m->reserved, now, now, &ticket);
  if (code == MGD_OK) {
    record_reserved(&ticket, MGD_WHY_REQUESTED);
    return reservation_new(st, ticket, MGD_WHY_REQUESTED);
  }
  if (code == MGD_E_WAIT) drop(&ticket);
  if (code == MGD_E_WAIT || code == MGD_E_NO_ROOM || code == MGD_E_DEADLINE) Py_RETURN_NONE;
  mgd_errors_raise(st, code, "reserving");
  return NULL;
}

/* Waits until a copy that is under way on any device has ended. False: there is none, or the time is over. */
static PyObject *settle(PyObject *module, PyObject *o) {
  struct mgd_manager *m;
  if (parse_manager(mgd_state_of(module), o, &m) < 0) return NULL;
  const mgd_mask allowed = mgd_admit_allowed(m);
  const uint64_t seen = mgd_torch_freed_count();
  if (PyErr_Occurred()) return NULL;
  if (!copies_under_way(m, allowed, 0)) Py_RETURN_FALSE;
  if (pause_once(m, seen, deadline_of(m, mgd_torch_now())) < 0) return NULL;
  return PyBool_FromLong(mgd_torch_freed_count() != seen);
}

/* Returns (device, (room, load, speed)) of one accelerator, from which plans are made. */
static PyObject *room_of(struct mgd_manager *m, int id) {
  struct mgd_share share;
  const int code = mgd_place_share(mgd_torch_machine(), id, m->reserved, &share);
  if (code != MGD_OK) {
    mgd_errors_raise(m->state, code, "reading free memory");
    return NULL;
  }
  return Py_BuildValue("(N(LLd))", mgd_torch_device(id), (long long)share.room, (long long)share.load, share.speed);
}

static PyObject *rooms(PyObject *module, PyObject *o) {
  struct mgd_manager *m;
  if (parse_manager(mgd_state_of(module), o, &m) < 0) return NULL;
  const mgd_mask allowed = mgd_admit_allowed(m);
  if (PyErr_Occurred() || mgd_torch_observe() < 0) return NULL;
  PyObject *list = PyList_New(0);
  for (int id = 1; list && id < MGD_MAX_DEVICES; id++) {
    if (!(allowed >> id & 1)) continue;
    PyObject *room = room_of(m, id);
    if (!room || PyList_Append(list, room) < 0) Py_CLEAR(list);
    Py_XDECREF(room);
  }
  return list;
}

PyMethodDef mgd_admit_methods[] = {{"admit", admit, METH_VARARGS,
                                    PyDoc_STR("admit(manager, bytes, disperse, /)\n--\n\nChooses a device for `bytes` "
                                              "as find_device does and holds them there until released.")},
                                   {"reserve", reserve, METH_VARARGS,
                                    PyDoc_STR("reserve(manager, device, bytes, /)\n--\n\nHolds `bytes` on the device; "
                                              "None when they do not fit there now.")},
                                   {"settle", settle, METH_O,
                                    PyDoc_STR("settle(manager, /)\n--\n\nWaits for a copy that is under way; False "
                                              "when there is none or none ended in time.")},
                                   {"rooms", rooms, METH_O,
                                    PyDoc_STR("rooms(manager, /)\n--\n\n(device, (free bytes after what is kept in "
                                              "reserve, bytes in use, speed)) of each of the manager's accelerators.")},
                                   {NULL, NULL, 0, NULL}};

int mgd_admit_init(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  st->reservation_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &reservation_spec, NULL);
  if (!st->reservation_type) return -1;
  return PyModule_AddObjectRef(module, "Reservation", (PyObject *)st->reservation_type);
}
