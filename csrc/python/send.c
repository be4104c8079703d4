/* send.c: brings tensors, modules and nests of them to a device.
 *
 * A tensor gives a new tensor, a module is moved in place, a nest (whatever torch's pytree flattens) gives the same
 * nest. Room is reserved before the first byte is copied, and nothing of the program changes when a copy fails. The
 * core chooses the device; managed._modules.placement walks modules.
 */
#include "python/binding.h"

/* ---- one tensor */

PyObject *mgd_send_carry(struct mgd_state *st, PyObject *tensor, int device, int non_blocking, enum mgd_reason why) {
  const int here = mgd_torch_device_of(tensor);
  if (here < 0) return NULL;
  if (here == device) {
    PyObject *same = mgd_torch_is_managed(tensor) ? Py_NewRef(tensor) : mgd_torch_alias(tensor);
    if (same && mgd_torch_place_here(same) < 0) Py_CLEAR(same);
    return same;
  }
  const int pinned = mgd_torch_pinned(tensor);
  if (pinned > 0) mgd_errors_pinned(st, tensor, device);
  return pinned ? NULL : mgd_torch_to(tensor, device, non_blocking, why);
}

static int estimate_of(struct mgd_state *st, PyObject *tensor, int64_t *out) {
  const int64_t bytes = mgd_torch_nbytes(tensor);
  return bytes < 0 ? -1 : mgd_settings_estimate(st, bytes, out);
}

/* Logs why nothing moved, unless there is no accelerator at all. */
static void log_no_room(struct mgd_manager *m, int64_t bytes) {
  if (mgd_device_count(mgd_torch_machine()) > 1)
    mgd_state_log(m->state, m->default_level, "%lld bytes fit on no accelerator now: they stay where they are",
                  (long long)bytes);
}

PyObject *mgd_send_place(struct mgd_manager *m, PyObject *tensor, int disperse, int non_blocking) {
  const mgd_mask allowed = mgd_admit_allowed(m);
  const int here = PyErr_Occurred() ? -1 : mgd_torch_device_of(tensor);
  if (here < 0) return NULL;
  if (allowed >> here & 1) return mgd_send_carry(m->state, tensor, here, non_blocking, MGD_WHY_ONLY);
  const int pinned = mgd_torch_pinned(tensor);
  if (pinned > 0) mgd_errors_pinned(m->state, tensor, -1);
  if (pinned) return NULL;
  struct mgd_ticket ticket = {0};
  enum mgd_reason why = MGD_WHY_NONE;
  int64_t bytes = 0;
  if (estimate_of(m->state, tensor, &bytes) < 0 || mgd_admit_pick(m, bytes, disperse, &ticket, &why) < 0) return NULL;
  const int target = ticket.device == MGD_HOST ? here : ticket.device;
  if (ticket.device == MGD_HOST) log_no_room(m, bytes);
  PyObject *result = mgd_send_carry(m->state, tensor, target, non_blocking, why);
  mgd_admit_give_back(&ticket);
  return result;
}

/* ---- nests */

/* A flattened nest: strong references to its leaves (a list) and to the spec that rebuilds it. */
struct nest {
  PyObject *pytree;
  PyObject *leaves;
  PyObject *spec;
};

static void nest_clear(struct nest *n) {
  Py_CLEAR(n->pytree);
  Py_CLEAR(n->leaves);
  Py_CLEAR(n->spec);
}

static int nest_open(struct nest *n, PyObject *object) {
  *n = (struct nest){0};
  n->pytree = PyImport_ImportModule("torch.utils._pytree");
  PyObject *pair = n->pytree ? PyObject_CallMethod(n->pytree, "tree_flatten", "(O)", object) : NULL;
  if (pair && PyArg_ParseTuple(pair, "O!O", &PyList_Type, &n->leaves, &n->spec)) {
    n->leaves = PyList_GetSlice(n->leaves, 0, PY_SSIZE_T_MAX);
    Py_INCREF(n->spec);
  }
  Py_XDECREF(pair);
  if (!PyErr_Occurred()) return 0;
  nest_clear(n);
  return -1;
}

static PyObject *nest_close(struct nest *n) {
  return PyObject_CallMethod(n->pytree, "tree_unflatten", "OO", n->leaves, n->spec);
}

enum leaf { LEAF_OTHER,
            LEAF_TENSOR,
            LEAF_MODULE };

/* Returns the kind of a leaf, or -1; `module_type` is torch.nn.Module. */
static int leaf_kind(PyObject *leaf, PyObject *module_type) {
  if (mgd_torch_is_tensor(leaf)) return LEAF_TENSOR;
  const int module = PyObject_IsInstance(leaf, module_type);
  return module < 0 ? -1 : module ? LEAF_MODULE
                                  : LEAF_OTHER;
}

static PyObject *module_type(void) {
  PyObject *nn = PyImport_ImportModule("torch.nn");
  PyObject *type = nn ? PyObject_GetAttrString(nn, "Module") : NULL;
  Py_XDECREF(nn);
  return type;
}

/* Raises TypeError if the object itself is no tensor, no module and no container of them. */
static int check_sendable(struct nest *n, PyObject *object, PyObject *modules) {
  if (PyList_GET_SIZE(n->leaves) != 1 || PyList_GET_ITEM(n->leaves, 0) != object) return 0;
  const int kind = leaf_kind(object, modules);
  if (kind == LEAF_OTHER)
    PyErr_Format(PyExc_TypeError, "managed: a tensor, a module or a nest of them can be sent, not %.100s",
                 Py_TYPE(object)->tp_name);
  return kind > LEAF_OTHER ? 0 : -1;
}

/* Returns the modules among the leaves, as a list. */
static PyObject *modules_of(struct nest *n, PyObject *type) {
  PyObject *found = PyList_New(0);
  for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(n->leaves); i++) {
    PyObject *leaf = PyList_GET_ITEM(n->leaves, i);
    const int kind = leaf_kind(leaf, type);
    if (kind < 0 || (kind == LEAF_MODULE && PyList_Append(found, leaf) < 0)) Py_CLEAR(found);
  }
  return found;
}

/* Calls managed._modules.placement.<name>(...); `format` is as for Py_BuildValue and gives a tuple. */
static PyObject *call_walker(const char *name, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyObject *walker = PyImport_ImportModule("managed._modules.placement");
  PyObject *function = walker ? PyObject_GetAttrString(walker, name) : NULL;
  PyObject *tuple = Py_VaBuildValue(format, arguments);
  PyObject *result = function && tuple ? PyObject_CallObject(function, tuple) : NULL;
  va_end(arguments);
  Py_XDECREF(tuple);
  Py_XDECREF(function);
  Py_XDECREF(walker);
  return result;
}

/* Adds the leaf to `seen`, the ids of earlier leaves. 1: it was not there. */
static int first_time(PyObject *seen, PyObject *leaf) {
  PyObject *id = PyLong_FromVoidPtr(leaf);
  const int known = id ? PySet_Contains(seen, id) : -1;
  const int failed = known < 0 || (!known && PySet_Add(seen, id) < 0);
  Py_XDECREF(id);
  return failed ? -1 : !known;
}

static int add_bytes(struct mgd_state *st, int64_t bytes, int64_t *total) {
  if (bytes > INT64_MAX - *total) return mgd_errors_raise(st, MGD_E_OVERFLOW, "adding up sizes");
  *total += bytes;
  return 0;
}

/* Adds the room that one tensor needs on the device, which is 0 if it is there already. */
static int add_room(struct mgd_state *st, PyObject *tensor, int device, int64_t *total) {
  int64_t bytes = 0;
  const int here = mgd_torch_device_of(tensor);
  if (here < 0 || (here != device && estimate_of(st, tensor, &bytes) < 0)) return -1;
  return add_bytes(st, bytes, total);
}

/* Adds up the room that the tensors need, each counted once; device -1 counts all of them. */
static int tensors_room(struct mgd_state *st, struct nest *n, int device, int64_t *total) {
  PyObject *seen = PySet_New(NULL);
  int failed = !seen;
  for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(n->leaves); i++) {
    PyObject *leaf = PyList_GET_ITEM(n->leaves, i);
    const int fresh = mgd_torch_is_tensor(leaf) ? first_time(seen, leaf) : 0;
    failed = fresh < 0 || (fresh && add_room(st, leaf, device, total) < 0);
  }
  Py_XDECREF(seen);
  return failed ? -1 : 0;
}

/* Adds up the room that tensors and modules together need. */
static int room_needed(struct mgd_state *st, struct nest *n, PyObject *modules, int device, int64_t *total) {
  *total = 0;
  if (tensors_room(st, n, device, total) < 0) return -1;
  if (PyList_GET_SIZE(modules) == 0) return 0;
  PyObject *target = device < 0 ? Py_NewRef(Py_None) : mgd_torch_device(device);
  PyObject *more = target ? call_walker("room_needed", "(ON)", modules, target) : NULL;
  int64_t bytes = 0;
  const int ok = more && mgd_errors_bytes(more, "the size of a module", &bytes) == 0;
  Py_XDECREF(more);
  return ok ? add_bytes(st, bytes, total) : -1;
}

/* ---- replacing leaves */

typedef PyObject *(*bring_fn)(PyObject *leaf, const void *context); /* new reference */

/* Appends the leaf's replacement; a leaf that occurs again gets the same one. */
static int replace_leaf(PyObject *results, PyObject *known, PyObject *leaf, bring_fn bring, const void *context) {
  PyObject *id = PyLong_FromVoidPtr(leaf);
  PyObject *result = id ? Py_XNewRef(PyDict_GetItemWithError(known, id)) : NULL;
  if (id && !result && !PyErr_Occurred()) {
    result = bring(leaf, context);
    if (result && PyDict_SetItem(known, id, result) < 0) Py_CLEAR(result);
  }
  const int failed = !result || PyList_Append(results, result) < 0;
  Py_XDECREF(result);
  Py_XDECREF(id);
  return failed ? -1 : 0;
}

/* Replaces all leaves. The old ones live until the end, because their ids tell them apart. */
static int replace_leaves(struct nest *n, bring_fn bring, const void *context) {
  PyObject *results = PyList_New(0), *known = PyDict_New();
  int failed = !results || !known;
  for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(n->leaves); i++)
    failed = replace_leaf(results, known, PyList_GET_ITEM(n->leaves, i), bring, context);
  Py_XDECREF(known);
  if (failed) {
    Py_XDECREF(results);
    return -1;
  }
  Py_SETREF(n->leaves, results);
  return 0;
}

struct carrying {
  struct mgd_state *st;
  int device;
  enum mgd_reason why;
};

static PyObject *carry_leaf(PyObject *leaf, const void *context) {
  const struct carrying *c = context;
  return mgd_torch_is_tensor(leaf) ? mgd_send_carry(c->st, leaf, c->device, 0, c->why) : Py_NewRef(leaf);
}

/* Replaces tensor leaves by their copies, then moves the modules. If that fails, the copies are dropped, and the walker
 * puts modules back. */
static int carry_leaves(struct mgd_state *st, struct nest *n, PyObject *modules, int device, enum mgd_reason why) {
  const struct carrying c = {st, device, why};
  if (replace_leaves(n, carry_leaf, &c) < 0) return -1;
  if (PyList_GET_SIZE(modules) == 0) return 0;
  PyObject *target = mgd_torch_device(device);
  PyObject *done = target ? call_walker("move", "(ONi)", modules, target, (int)why) : NULL;
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* Reserves room for a nest on the requested device. If none is requested, the manager picks one; that may be the
 * host, so no request waits in a queue. */
static int admit_nest(struct mgd_manager *m, struct nest *n, PyObject *modules, PyObject *device, int64_t estimate,
                      struct mgd_ticket *ticket, enum mgd_reason *why) {
  int id = -1, any = 1;
  if (device && device != Py_None && mgd_errors_device_id(device, &id, &any) < 0) return -1;
  int64_t bytes = estimate;
  if (bytes < 0 && room_needed(m->state, n, modules, any ? -1 : id, &bytes) < 0) return -1;
  if (any) return mgd_admit_pick(m, bytes, 0, ticket, why);
  *why = MGD_WHY_REQUESTED;
  ticket->device = id;
  return id == MGD_HOST || bytes == 0 ? 0 : mgd_admit_wait(m, id, bytes, ticket);
}

PyObject *mgd_send_nest(struct mgd_manager *m, PyObject *object, PyObject *device, int64_t estimate) {
  struct nest n;
  struct mgd_ticket ticket = {0};
  enum mgd_reason why = MGD_WHY_NONE;
  PyObject *result = NULL, *modules = NULL, *type = module_type();
  if (!type || mgd_state_ready() < 0 || nest_open(&n, object) < 0) goto end;
  modules = modules_of(&n, type);
  if (modules && check_sendable(&n, object, type) == 0 &&
      admit_nest(m, &n, modules, device, estimate, &ticket, &why) == 0 &&
      carry_leaves(m->state, &n, modules, ticket.device, why) == 0)
    result = nest_close(&n);
  mgd_admit_give_back(&ticket);
  nest_clear(&n);
end:
  Py_XDECREF(modules);
  Py_XDECREF(type);
  return result;
}

struct placing {
  struct mgd_manager *m;
  PyObject *module_type;
  PyObject *disperse; /* as given, for modules */
  int spreads;        /* the same, for a tensor */
};

/* Places a leaf: each tensor by itself; modules are planned one after the other. */
static PyObject *place_leaf(PyObject *leaf, const void *context) {
  const struct placing *p = context;
  const int kind = leaf_kind(leaf, p->module_type);
  if (kind < 0) return NULL;
  if (kind == LEAF_OTHER) return Py_NewRef(leaf);
  if (kind == LEAF_TENSOR) return mgd_send_place(p->m, leaf, p->spreads, 0);
  return call_walker("place", "(OOO)", leaf, p->m, p->disperse);
}

/* Converts `disperse` for tensors. The ways to spread a module are valid for them too, since a nest may have both. */
static int parse_way(PyObject *disperse, int *spreads) {
  *spreads = PyUnicode_Check(disperse) &&
      (PyUnicode_CompareWithASCIIString(disperse, "layers") == 0 ||
       PyUnicode_CompareWithASCIIString(disperse, "parameters") == 0);
  return *spreads || mgd_errors_disperse(disperse, spreads) ? 0 : -1;
}

PyObject *mgd_send_cuda(struct mgd_manager *m, PyObject *object, PyObject *disperse) {
  struct nest n;
  int spreads;
  if (parse_way(disperse, &spreads) < 0) return NULL;
  PyObject *result = NULL, *type = module_type();
  const struct placing p = {m, type, disperse, spreads};
  if (type && mgd_state_ready() == 0 && nest_open(&n, object) == 0) {
    if (check_sendable(&n, object, type) == 0 && replace_leaves(&n, place_leaf, &p) == 0) result = nest_close(&n);
    nest_clear(&n);
  }
  Py_XDECREF(type);
  return result;
}
