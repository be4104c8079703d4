/* binding.h: the table of contents of the Python binding.
 *
 * It declares every function that several files of csrc/python use, under the
 * name of the file that defines it. Functions that return int return 0 (or a
 * truth value), or -1 with a Python exception set; those of type PyObject *
 * return a new reference, or NULL with an exception set. All are called with
 * the GIL. Tensors are touched only through torch/api.h.
 */
#ifndef MGD_BINDING_H
#define MGD_BINDING_H

#include "torch/api.h"

/* What the module owns. It is stored in the module object and freed with it.
 * All object members are strong references, or NULL before exec has filled them. */
struct mgd_state {
  PyObject *tensor_type;    /* torch.Tensor */
  PyObject *parameter_type; /* torch.nn.Parameter */
  PyObject *managed_tensor; /* a class without instances; NULL until install() */
  PyObject *managed_error;
  PyObject *pin_conflict;
  PyObject *out_of_memory;
  PyObject *logger;            /* logging.getLogger("managed") */
  PyObject *default_heuristic; /* the built-in formula as a callable */
  PyObject *heuristic;         /* HEURISTIC_FUNCTION as the user set it, or NULL */
  PyObject *manager;           /* the DeviceManager that x.cuda() asks; NULL until install() */
  PyTypeObject *manager_type;
  PyTypeObject *reservation_type;
  PyTypeObject *engine_type;
  int use_heuristic;
};

/* DeviceManager. Invariant: 0 <= reserved < 1, retry_limit >= 0,
 * wait_time >= 0 seconds, own_waiting says that comm_interface is the time module. */
struct mgd_manager {
  PyObject_HEAD
  struct mgd_state *state;  /* borrowed: the type keeps the module alive */
  PyObject *comm_interface; /* strong */
  int own_waiting;
  mgd_mask chosen; /* the accelerators that the user named; 0 means all there are */
  double reserved;
  long retry_limit;
  double wait_time;
  int default_level;
};

/* ---- state.c: what the module holds */
struct mgd_state *mgd_state_of(PyObject *module);
struct mgd_state *mgd_state_of_type(PyTypeObject *type); /* of the module that defines the type */
int mgd_state_ready(void);                               /* -1 and RuntimeError before install() has run */
/* Logs a line to the logger "managed" at the given level. Errors of its handlers are reported as unraisable. */
void mgd_state_log(struct mgd_state *st, int level, const char *format, ...);
int mgd_state_traverse(PyObject *module, visitproc visit, void *arg);
int mgd_state_clear(PyObject *module);

/* ---- errors.c: one mapping from the core's codes to exceptions */
int mgd_errors_init(struct mgd_state *st);
/* Sets the exception of `code`, which says what was attempted; always returns -1. */
int mgd_errors_raise(struct mgd_state *st, int code, const char *attempted);
/* Sets an OutOfMemoryError that names the device, the request and the room; `waited` is in ns. Returns -1. */
int mgd_errors_no_room(struct mgd_state *st, int device, int64_t bytes, double reserved, int64_t waited);
int mgd_errors_pinned(struct mgd_state *st, PyObject *tensor, int device);
/* Turns a device object, name or index into an id like mgd_torch_device_id, but every bad name is a ValueError. */
int mgd_errors_device_id(PyObject *device, int *id, int *any);
/* Makes a count of bytes of an int or a finite float (rounded up); ValueError if it is negative or not finite. */
int mgd_errors_bytes(PyObject *value, const char *name, int64_t *bytes);
/* A converter for PyArg_Parse...: turns True or False into an int, and raises ValueError for anything else. */
int mgd_errors_disperse(PyObject *value, void *disperse);
/* If an exception of this kind is set, adds the line that `advice_for` returns for its text; NULL: no line. */
void mgd_errors_advise(PyObject *kind, const char *(*advice_for)(const char *text));

/* ---- settings.c: settings that reach the core */
int mgd_settings_init(PyObject *module);
int mgd_settings_estimate(struct mgd_state *st, int64_t size, int64_t *out);
extern PyMethodDef mgd_settings_methods[];

/* ---- admit.c: requests room from the core, and waits for it */
int mgd_admit_init(PyObject *module);
mgd_mask mgd_admit_allowed(struct mgd_manager *m); /* accelerators that it may use; looks for devices first */
/* Chooses a device for `bytes` and reserves them; ticket->device is the host if nothing fits. */
int mgd_admit_pick(struct mgd_manager *m, int64_t bytes, int disperse, struct mgd_ticket *ticket, enum mgd_reason *why);
/* Waits until `bytes` fit on `device` and reserves them; OutOfMemoryError if the time is over. */
int mgd_admit_wait(struct mgd_manager *m, int device, int64_t bytes, struct mgd_ticket *ticket);
void mgd_admit_give_back(struct mgd_ticket *ticket); /* keeps an exception that is set */
extern PyMethodDef mgd_admit_methods[];

/* ---- send.c: sends tensors, modules and nests of them to a device */
/* Returns a managed tensor on `device`; the tensor itself if it is managed and there already. */
PyObject *mgd_send_carry(struct mgd_state *st, PyObject *tensor, int device, int non_blocking, enum mgd_reason why);
/* Sends the tensor to a device that the manager picks; one that is on one of its accelerators stays. */
PyObject *mgd_send_place(struct mgd_manager *m, PyObject *tensor, int disperse, int non_blocking);
PyObject *mgd_send_nest(struct mgd_manager *m, PyObject *nest, PyObject *device, int64_t estimate);
PyObject *mgd_send_cuda(struct mgd_manager *m, PyObject *nest, PyObject *disperse);

/* ---- manager.c: DeviceManager */
int mgd_manager_init(PyObject *module);
PyObject *mgd_manager_new(struct mgd_state *st); /* has default arguments */

/* ---- pin.c: attributes that only managed tensors have */
extern PyGetSetDef mgd_pin_getsets[]; /* ends with an empty one */

/* ---- tensor.c: all that import adds to torch.Tensor */
int mgd_tensor_install(struct mgd_state *st);
/* Whether it is a torch.Tensor or a Parameter, and of no subclass. */
int mgd_tensor_is_own(PyObject *tensor);

/* ---- engine.c: the object that replaces the autograd engine in Python */
int mgd_engine_init(PyObject *module);
int mgd_engine_install(struct mgd_state *st);

/* ---- frames.c: which line of the program runs */
int mgd_frames_init(void);
/* Returns the id of the innermost line outside torch's and managed's own files; 0 if there is none. Needs no GIL. */
uint32_t mgd_frames_site(void);
/* Whether the caller of torch's innermost Python function about storages or addresses only saves or compares them. */
int mgd_frames_is_saver(void);
/* Whether this thread runs code that an exception between two instructions would leave half done. */
int mgd_frames_in_transaction(void);

/* ---- warn.c: warnings of repeated copies */
int mgd_warn_install(struct mgd_state *st);
int mgd_warn_flush(void); /* issues pending warnings; -1 if a filter makes an error of one */
int mgd_warn_end_step(enum mgd_growth_end end); /* ends a step, then calls mgd_warn_flush() */
extern PyMethodDef mgd_warn_methods[];

/* ---- explain.c: what happened, in numbers and in order; memory.c: bytes that leave devices and come back */
extern PyMethodDef mgd_explain_methods[], mgd_memory_methods[];
PyObject *mgd_memory_host(void); /* {"used": bytes, ...}, the host's memory for them */

/* ---- test_hooks.c: what only tests and benchmarks call; empty in packages */
extern PyMethodDef mgd_test_hooks_methods[];

/* ---- storage.c: storages that serialisers hold */
/* If `o` is a storage, untyped or typed, that a saver holds, writes a new reference to the untyped one. */
int mgd_storage_find_saved(PyObject *o, PyObject **saved);
extern PyMethodDef mgd_storage_methods[];

/* ---- exchange.c: tensors that C functions of other libraries take */
extern PyMethodDef mgd_exchange_methods[];

/* ---- lists.c: lists of tensors that torch reads number by number */
int mgd_lists_install(void);
/* Returns f(context). Meanwhile the managed tensors in the lists among the arguments are held on their devices. */
PyObject *mgd_lists_call(PyObject *const *args, Py_ssize_t n, PyObject *(*f)(void *), void *context);

/* ---- holders.c: other allocators, which keep memory; garbage.c: runs Python's collector when a device is full */
void mgd_holders_init(void);
extern PyMethodDef mgd_holders_methods[];
void mgd_garbage_init(void);
void mgd_garbage_collect(void); /* does nothing if it has just run; releases the GIL meanwhile */

/* ---- on.c: threads in which everything is managed */
extern PyMethodDef mgd_on_methods[];

/* ---- walk.c: what managed.module needs to walk a module; layers.c: which device for each layer */
extern PyMethodDef mgd_walk_methods[], mgd_layers_methods[];

#endif
