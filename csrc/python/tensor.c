/* tensor.c: what importing managed adds to torch.Tensor, but for Python's methods: register_hook
 * (managed/_torch_patches/functions.py), apply_, map_ and map2_ (managed/_torch_patches/written.py).
 *
 *   __class__               says ManagedTensor for a managed tensor
 *   pin(), unpin(), pinned, unplace(), placed
 *                           exist for managed tensors only
 *   as_subclass             as_subclass(ManagedTensor) gives a managed alias
 *   cuda, to                for managed tensors the manager picks a device, and
 *                           simulated devices serve where there is no CUDA
 *   new, new_tensor         torch derives their result's type from the key set
 *                           and does not know our key, so they work on an alias
 *                           without it, and their result is managed
 *   numpy, data_ptr,        the bytes are accessible from outside, and writes go
 *   __dlpack__,             unseen: copies of them are no longer kept, also for plain
 *   untyped_storage         tensors, which may share their bytes with managed ones
 *   set_                    a tensor over a storage that may leave is managed
 *
 * For a plain tensor, one bit is tested and torch's own function is called. torch.Tensor refuses setattr for some of
 * these names, so they are put into its own dict, as a class statement would do.
 */
#include "torch/loan.h"
#include "torch/on.h"
#include "torch/saving.h"
#include "python/binding.h"

#include <string.h>

enum original { AS_SUBCLASS,
                CUDA,
                TO,
                NEW,
                NEW_TENSOR,
                NUMPY,
                DATA_PTR,
                DLPACK,
                STORAGE,
                SET,
                ORIGINALS };

/* This is static because there is one torch.Tensor in a process. It is written once, before the descriptors that read
 * it can be reached. */
static struct {
  struct mgd_state *state;
  PyObject *object_class; /* object.__dict__["__class__"] */
  PyObject *original[ORIGINALS];
  PyObject *listens; /* torch.overrides.has_torch_function_unary */
  PyObject *hand_over; /* torch.overrides.handle_torch_function */
} patch;

/* Tensor subclasses keep their own behaviour; wrappers such as FakeTensor need it. */
int mgd_tensor_is_own(PyObject *self) {
  PyObject *type = (PyObject *)Py_TYPE(self);
  return type == patch.state->tensor_type || type == patch.state->parameter_type;
}

static int is_ours(PyObject *self) { return mgd_tensor_is_own(self) && mgd_torch_is_managed(self); }

/* Whether the manager handles transfers of the tensor. Inside of managed.on it handles plain tensors, too. */
static int is_sent_by_us(PyObject *self) {
  return mgd_tensor_is_own(self) && (mgd_torch_is_managed(self) || (mgd_torch_on() && mgd_torch_can_be_managed(self)));
}

/* Calls torch's own function of this name. */
static PyObject *call_original(enum original which, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  PyObject *small[8], **all = small;
  if (total + 1 > (Py_ssize_t)(sizeof small / sizeof *small)) all = PyMem_New(PyObject *, (size_t)total + 1);
  if (!all) return PyErr_NoMemory();
  all[0] = self;
  if (total) memcpy(all + 1, args, (size_t)total * sizeof *args);
  PyObject *result = PyObject_Vectorcall(patch.original[which], all, (size_t)nargs + 1, kwnames);
  if (all != small) PyMem_Free(all);
  return result;
}

/* ---- __class__ */

static PyObject *class_get(PyObject *self, void *unused) {
  (void)unused;
  return Py_NewRef(is_ours(self) ? patch.state->managed_tensor : (PyObject *)Py_TYPE(self));
}

/* Being managed is no type: `x.__class__ = y.__class__` with a managed y leaves x's type alone.
 * torch.utils.swap_tensors does that. */
static int class_set(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  if (value && value == patch.state->managed_tensor) return 0;
  return Py_TYPE(patch.object_class)->tp_descr_set(patch.object_class, self, value);
}

static PyGetSetDef class_getset = {"__class__", class_get, class_set,
                                   PyDoc_STR("ManagedTensor for a managed tensor, otherwise its type."), NULL};

/* ---- as_subclass */

static PyObject *tensor_as_subclass(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (total == 1 && args[0] == patch.state->managed_tensor) return mgd_torch_alias(self);
  return call_original(AS_SUBCLASS, self, args, nargs, kwnames);
}

/* ---- cuda and to */

static const char plain_advice[] =
    "managed: this tensor is plain, and only managed ones take simulated devices for CUDA. Say "
    "x.as_subclass(ManagedTensor).cuda(), "
    "ManagedModule.from_module(model).cuda(), or x.to(\"sim:0\") for a plain tensor there.";

/* Returns advice on an error of torch's that says there is no CUDA: accelerators that exist then are simulated. */
static const char *advice_for(const char *text) {
  const int no_cuda = strstr(text, "not compiled with CUDA") || strstr(text, "NVIDIA driver") ||
      strstr(text, "No CUDA GPUs") || strstr(text, "must be cuda device");
  return no_cuda && mgd_device_count(mgd_torch_machine()) > 1 ? plain_advice : NULL;
}

static PyObject *torchs_own(enum original which, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames) {
  PyObject *result = call_original(which, self, args, nargs, kwnames);
  if (!result) mgd_errors_advise(PyExc_Exception, advice_for);
  return result;
}

/* Converts a vectorcall's arguments to the tuple and the dict that PyArg_Parse... needs. */
static int collect(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **tuple, PyObject **dict) {
  *tuple = PyTuple_New(nargs);
  *dict = PyDict_New();
  for (Py_ssize_t i = 0; *tuple && i < nargs; i++) PyTuple_SET_ITEM(*tuple, i, Py_NewRef(args[i]));
  int failed = !*tuple || !*dict;
  for (Py_ssize_t i = 0; !failed && kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
    failed = PyDict_SetItem(*dict, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0;
  if (!failed) return 0;
  Py_CLEAR(*tuple);
  Py_CLEAR(*dict);
  return -1;
}

/* Passes cuda() and to() of managed tensors to an active mode of torch.overrides, as torch does with its own functions.
 * 1: *answer is the mode's result. 0: no mode is active. */
static int hand_to_mode(const char *name, PyObject *self, PyObject *tuple, PyObject *dict, PyObject **answer) {
  PyObject *listens = PyObject_CallOneArg(patch.listens, self);
  const int yes = listens ? PyObject_IsTrue(listens) : -1;
  Py_XDECREF(listens);
  if (yes <= 0) return yes;
  PyObject *api = PyObject_GetAttrString(patch.state->tensor_type, name);
  PyObject *head = api ? Py_BuildValue("(O(O)O)", api, self, self) : NULL;
  PyObject *all = head ? PySequence_Concat(head, tuple) : NULL;
  *answer = all ? PyObject_Call(patch.hand_over, all, dict) : NULL;
  Py_XDECREF(all);
  Py_XDECREF(head);
  Py_XDECREF(api);
  return 1;
}

/* Brings the tensor to the named device, or to one that the manager picks if none or only a kind is named. */
static PyObject *transfer(PyObject *self, PyObject *device, int disperse, int non_blocking) {
  struct mgd_state *st = patch.state;
  int id = -1, any = 1;
  const int named = device && device != Py_None;
  if (named && mgd_errors_device_id(device, &id, &any) < 0) return NULL;
  if (any) {
    PyObject *manager = Py_NewRef(st->manager); /* another manager may be assigned while this one waits */
    PyObject *placed =
        mgd_send_place((struct mgd_manager *)manager, self, disperse || mgd_torch_on() == MGD_ON_DISPERSING,
                       non_blocking);
    Py_DECREF(manager);
    return placed;
  }
  if (disperse || id == MGD_HOST) {
    PyErr_Format(PyExc_ValueError,
                 id == MGD_HOST ? "managed: cuda(%R) names no accelerator; use cpu()"
                                : "managed: disperse=True chooses a device; it cannot go with %R",
                 device);
    return NULL;
  }
  return mgd_send_carry(st, self, id, non_blocking, MGD_WHY_REQUESTED);
}

/* Calls torch's tensor.to(...); the result of a placed tensor is placed as well. Steals `tensor`, returns a new
 * reference. */
static PyObject *then_to(PyObject *tensor, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  if (!tensor) return NULL;
  PyObject *result = call_original(TO, tensor, args, nargs, kwnames);
  const int placed = result ? mgd_torch_placed(tensor) : 0;
  if (placed < 0 || (placed && mgd_torch_place(result, 1) < 0)) Py_CLEAR(result);
  Py_DECREF(tensor);
  return result;
}

static PyObject *cuda_parsed(PyObject *self, PyObject *tuple, PyObject *dict) {
  static char *names[] = {"device", "non_blocking", "memory_format", "disperse", NULL};
  PyObject *device = Py_None, *format = Py_None, *answer = NULL;
  int non_blocking = 0, disperse = 0;
  const int taken = hand_to_mode("cuda", self, tuple, dict, &answer);
  if (taken) return answer;
  if (!PyArg_ParseTupleAndKeywords(tuple, dict, "|OpO$O&:cuda", names, &device, &non_blocking, &format,
                                   mgd_errors_disperse, &disperse))
    return NULL;
  PyObject *moved = transfer(self, device, disperse, non_blocking);
  if (format == Py_None) return moved;
  PyObject *kwnames = Py_BuildValue("(s)", "memory_format");
  PyObject *result = kwnames ? then_to(moved, &format, 0, kwnames) : NULL;
  if (!kwnames) Py_XDECREF(moved);
  Py_XDECREF(kwnames);
  return result;
}

static PyObject *tensor_cuda(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  if (!is_sent_by_us(self)) return torchs_own(CUDA, self, args, nargs, kwnames);
  PyObject *tuple, *dict;
  if (collect(args, nargs, kwnames, &tuple, &dict) < 0) return NULL;
  PyObject *result = cuda_parsed(self, tuple, dict);
  Py_DECREF(tuple);
  Py_DECREF(dict);
  return result;
}

/* Returns the position of the device among the arguments of to(), or -1. */
static Py_ssize_t device_position(Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < named; i++)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "device") == 0) return nargs + i;
  return nargs ? 0 : -1;
}

/* Whether an argument names an accelerator: an index, or a device or a string of the kind "cuda" or "sim". */
static int names_accelerator(PyObject *device) {
  if (PyLong_Check(device)) return !PyBool_Check(device);
  PyObject *kind = PyUnicode_Check(device) ? Py_NewRef(device) : NULL;
  if (!kind && strcmp(Py_TYPE(device)->tp_name, "torch.device") == 0) kind = PyObject_GetAttrString(device, "type");
  const char *text = kind ? PyUnicode_AsUTF8(kind) : NULL;
  const int yes = text && (strncmp(text, "cuda", 4) == 0 || strncmp(text, "sim", 3) == 0);
  Py_XDECREF(kind);
  return PyErr_Occurred() ? -1 : yes;
}

/* 1: to(device, ...) has no other argument than non_blocking, which is read. 0: it has more. */
static int bare_transfer(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, int *non_blocking) {
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nargs > 1) return 0;
  for (Py_ssize_t i = 0; i < named; i++) {
    PyObject *name = PyTuple_GET_ITEM(kwnames, i);
    if (PyUnicode_CompareWithASCIIString(name, "non_blocking") == 0) *non_blocking = PyObject_IsTrue(args[nargs + i]);
    else if (PyUnicode_CompareWithASCIIString(name, "device") != 0) return 0;
  }
  return *non_blocking < 0 ? -1 : 1;
}

/* Returns the position of `copy` among the arguments of to(), or -1. */
static Py_ssize_t copy_position(Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < named; i++)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "copy") == 0) return nargs + i;
  return nargs > 3 ? 3 : -1; /* to(device, dtype, non_blocking, copy) */
}

/* Does the rest of to(device, dtype, ...) on the device where the tensor has arrived. A moved tensor is a copy already.
 * Steals `moved`. */
static PyObject *finish_to(PyObject *moved, bool copied, Py_ssize_t at, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  PyObject *device = PyObject_GetAttrString(moved, "device");
  PyObject **all = PyMem_New(PyObject *, (size_t)total);
  PyObject *result = NULL;
  if (device && all) {
    memcpy(all, args, (size_t)total * sizeof *args);
    all[at] = device;
    const Py_ssize_t copy = copied ? copy_position(nargs, kwnames) : -1;
    if (copy >= 0) all[copy] = Py_False;
    result = then_to(Py_NewRef(moved), all, nargs, kwnames);
  } else if (!all) {
    PyErr_NoMemory();
  }
  PyMem_Free(all);
  Py_DECREF(moved);
  Py_XDECREF(device);
  return result;
}

/* Like hand_to_mode(), for to(). */
static int modes_answer(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **answer) {
  PyObject *tuple, *dict;
  if (collect(args, nargs, kwnames, &tuple, &dict) < 0) return -1;
  const int taken = hand_to_mode("to", self, tuple, dict, answer);
  Py_DECREF(tuple);
  Py_DECREF(dict);
  return taken;
}

static PyObject *tensor_to(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t at = is_sent_by_us(self) ? device_position(nargs, kwnames) : -1;
  const int ours = at < 0 ? 0 : names_accelerator(args[at]);
  if (ours < 0) return NULL;
  if (!ours) return torchs_own(TO, self, args, nargs, kwnames);
  PyObject *answer = NULL;
  if (modes_answer(self, args, nargs, kwnames, &answer)) return answer;
  int non_blocking = 0;
  const int bare = bare_transfer(args, nargs, kwnames, &non_blocking);
  if (bare < 0) return NULL;
  PyObject *moved = transfer(self, args[at], 0, non_blocking);
  return !moved || bare ? moved : finish_to(moved, moved != self, at, args, nargs, kwnames);
}

/* ---- new and new_tensor */
/* A meta tensor has no bytes to manage and stays plain. */
static int mark_result(PyObject *result) {
  if (!mgd_torch_is_tensor(result)) return 0;
  PyObject *meta = PyObject_GetAttrString(result, "is_meta");
  const int is_meta = meta ? PyObject_IsTrue(meta) : -1;
  Py_XDECREF(meta);
  return is_meta ? (is_meta < 0 ? -1 : 0) : mgd_torch_mark(result, 0);
}

/* Calls torch's function on an alias without the key, so that no other thread ever sees this tensor without it. */
static PyObject *call_unmarked(enum original which, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames) {
  if (!is_ours(self)) return call_original(which, self, args, nargs, kwnames);
  PyObject *plain = mgd_torch_alias(self), *result = NULL;
  if (plain && mgd_torch_drop_key(plain) == 0) result = call_original(which, plain, args, nargs, kwnames);
  Py_XDECREF(plain);
  if (result && mark_result(result) < 0) Py_CLEAR(result);
  return result;
}

struct call {
  enum original which;
  int (*note)(PyObject *); /* NULL: there is nothing to note of self */
  PyObject *self, *const *args;
  Py_ssize_t nargs;
  PyObject *kwnames;
};

static PyObject *call_unmarked_now(void *context) {
  const struct call *c = context;
  return call_unmarked(c->which, c->self, c->args, c->nargs, c->kwnames);
}

static PyObject *call_held(enum original which, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames) {
  struct call c = {which, NULL, self, args, nargs, kwnames};
  return mgd_lists_call(args, nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), call_unmarked_now, &c);
}

static PyObject *tensor_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  return call_held(NEW, self, args, nargs, kwnames);
}

static PyObject *tensor_new_tensor(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  return call_held(NEW_TENSOR, self, args, nargs, kwnames);
}

/* ---- numpy, data_ptr, __dlpack__ and untyped_storage */
/* Notes the access, then calls torch's function: between the two the bytes stay where they are. A loan is noted again
 * when the program holds the storage: before that, another thread may find that the storage is not held, and drop the
 * note. */
static PyObject *call_noted_now(void *context) {
  const struct call *c = context;
  const int noted = mgd_tensor_is_own(c->self);
  if (noted && c->note(c->self) < 0) return NULL;
  PyObject *result = call_original(c->which, c->self, c->args, c->nargs, c->kwnames);
  if (noted && !result && c->note == mgd_torch_expose) mgd_torch_let_leave(c->self);
  if (noted && result && c->note == mgd_torch_lend && c->note(c->self) < 0) Py_CLEAR(result);
  return result;
}

static PyObject *call_noted(enum original which, int (*note)(PyObject *), PyObject *self, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames) {
  struct call call = {which, note, self, args, nargs, kwnames};
  return mgd_torch_still(call_noted_now, &call);
}

static PyObject *tensor_numpy(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  return call_noted(NUMPY, mgd_torch_expose, self, args, nargs, kwnames);
}

/* A caller that only compares addresses gets a number that stays the same when the bytes leave, and that no other
 * storage ever gets. */
static PyObject *tensor_data_ptr(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  if (mgd_tensor_is_own(self) && mgd_torch_is_lent(self)) return call_original(DATA_PTR, self, args, nargs, kwnames);
  const uint64_t identity = mgd_tensor_is_own(self) ? mgd_torch_identity(self) : 0;
  if (identity && mgd_frames_is_saver()) return PyLong_FromUnsignedLongLong(identity);
  return call_noted(DATA_PTR, mgd_torch_expose, self, args, nargs, kwnames);
}

static PyObject *tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  return call_noted(DLPACK, mgd_torch_expose, self, args, nargs, kwnames);
}

static PyObject *tensor_storage(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  const int saver = is_ours(self) && mgd_frames_is_saver();
  return call_noted(STORAGE, saver ? mgd_torch_lend_to_saver : mgd_torch_lend, self, args, nargs, kwnames);
}

static PyObject *call_set(void *context) {
  const struct call *c = context;
  return call_original(c->which, c->self, c->args, c->nargs, c->kwnames);
}

static PyObject *tensor_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  struct call call = {SET, NULL, self, args, nargs, kwnames};
  PyObject *saved = NULL;
  for (Py_ssize_t i = 0; i < total && !saved; i++)
    if (mgd_storage_find_saved(args[i], &saved) < 0) return NULL;
  if (!saved) return call_set(&call);
  PyObject *result = mgd_torch_set_saved(self, saved, call_set, &call);
  Py_DECREF(saved);
  return result;
}

/* ---- installation */

#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL | METH_KEYWORDS
/* The docstrings are torch's own: they are filled in at installation. */
static PyMethodDef methods[ORIGINALS] = {
    [AS_SUBCLASS] = {"as_subclass", FAST(tensor_as_subclass), NULL},
    [CUDA] = {"cuda", FAST(tensor_cuda), NULL},
    [TO] = {"to", FAST(tensor_to), NULL},
    [NEW] = {"new", FAST(tensor_new), NULL},
    [NEW_TENSOR] = {"new_tensor", FAST(tensor_new_tensor), NULL},
    [NUMPY] = {"numpy", FAST(tensor_numpy), NULL},
    [DATA_PTR] = {"data_ptr", FAST(tensor_data_ptr), NULL},
    [DLPACK] = {"__dlpack__", FAST(tensor_dlpack), NULL},
    [STORAGE] = {"untyped_storage", FAST(tensor_storage), NULL},
    [SET] = {"set_", FAST(tensor_set), NULL},
};

/* torch.Tensor's own dict, borrowed. */
static PyObject *dict_of(PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject *dict = PyType_GetDict(type);
  Py_XDECREF(dict); /* the type keeps it */
  return dict;
#else
  return type->tp_dict;
#endif
}

static int find_original(enum original which) {
  PyObject *found = PyObject_GetAttrString(patch.state->tensor_type, methods[which].ml_name);
  PyObject *doc = found ? PyObject_GetAttrString(found, "__doc__") : NULL;
  if (!doc) {
    Py_XDECREF(found);
    return -1;
  }
  if (PyUnicode_Check(doc)) methods[which].ml_doc = PyUnicode_AsUTF8(doc);
  patch.original[which] = found; /* `doc` is kept too: ml_doc points into it */
  return 0;
}

static int find_originals(void) {
  PyObject *dict = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, "__dict__");
  patch.object_class = dict ? PyMapping_GetItemString(dict, "__class__") : NULL;
  Py_XDECREF(dict);
  PyObject *overrides = patch.object_class ? PyImport_ImportModule("torch.overrides") : NULL;
  if (!overrides) return -1;
  patch.listens = PyObject_GetAttrString(overrides, "has_torch_function_unary");
  patch.hand_over = PyObject_GetAttrString(overrides, "handle_torch_function");
  Py_DECREF(overrides);
  for (int which = 0; which < ORIGINALS; which++)
    if (find_original((enum original)which) < 0) return -1;
  return patch.listens && patch.hand_over ? 0 : -1;
}

/* Steals `descriptor`. */
static int put(PyObject *dict, const char *name, PyObject *descriptor) {
  const int failed = !descriptor || PyDict_SetItemString(dict, name, descriptor) < 0;
  Py_XDECREF(descriptor);
  return failed ? -1 : 0;
}

int mgd_tensor_install(struct mgd_state *st) {
  patch.state = st;
  if (find_originals() < 0) return -1;
  PyTypeObject *type = (PyTypeObject *)st->tensor_type;
  PyObject *dict = dict_of(type);
  int failed = put(dict, class_getset.name, PyDescr_NewGetSet(type, &class_getset));
  for (PyGetSetDef *g = mgd_pin_getsets; !failed && g->name; g++)
    failed = put(dict, g->name, PyDescr_NewGetSet(type, g));
  for (int which = 0; !failed && which < ORIGINALS; which++)
    failed = put(dict, methods[which].ml_name, PyDescr_NewMethod(type, &methods[which]));
  PyType_Modified(type);
  return failed;
}
