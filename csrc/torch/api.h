/* api.h: the interface of csrc/torch for csrc/python, in C.
 *
 * Tensors cross as PyObject*. A function that returns int returns 0 (or a
 * truth value) or -1 with a Python exception set; one that returns PyObject*
 * returns a new reference or NULL with an exception set. All are called with the
 * GIL; mgd_torch_in_backward() also without it.
 */
#ifndef MGD_TORCH_API_H
#define MGD_TORCH_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/growth.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- init.cpp: start */
/* Creates the machine and registers the hook; later calls do nothing. -1 if another library has the dispatch key. */
int mgd_torch_init(void);
struct mgd_machine *mgd_torch_machine(void);

/* ---- attach.cpp: adds devices to the machine */
/* Adds CUDA's devices, if torch knows any, at the first call; a driver is initialised only here. Returns the number of
 * accelerators in the machine, or -1. */
int mgd_torch_discover(void);
/* Plans the budget of each device with this index that is added from now on: `part` of its memory, or `bytes` if `part`
 * is negative; `host`: as mgd_torch_let_end_on_host() says. A budget that the device cannot have warns then. ValueError
 * for an index that no device can have. */
int mgd_torch_plan_budget(int index, int64_t bytes, double part, int host);
/* Returns the hook's half of bridge.h as a capsule "managed._C.bridge", for managed._cuda. */
PyObject *mgd_torch_bridge(void);
/* Called when CUDA is being initialised: from now on its tensors may leave, if managed._cuda has filled its half. */
void mgd_torch_cuda_starts(void);
/* Attaches the simulator: `capsule` is managed._sim's bridge; adds its devices. A second call fails. */
int mgd_torch_attach_sim(PyObject *capsule, int devices);

/* ---- device_api.cpp: torch's devices as ids of the machine */
/* Device object, "cuda:1", "sim", "cpu" or int -> id. "cuda" means a simulated device once there are any.
 * *any is set if the device is named without an index ("cuda"). Raises ValueError if it does not exist. */
int mgd_torch_device_id(PyObject *device, int *id, int *any);
PyObject *mgd_torch_device(int id); /* a torch.device */
/* Reads free memory of every accelerator into the ledger. */
int mgd_torch_observe(void);
int64_t mgd_torch_now(void); /* ns, monotonic */
/* Limits the accelerator's allocator to `bytes` from now on, if it supports limits; bytes beyond them are evicted. */
int mgd_torch_set_budget(int device, int64_t bytes);
/* Lets operators on tensors of the accelerator for which it has no room run on the host, or, with 0, only those on
 * tensors with MGD_ADVICE_HOST. Returns what was said before. */
int mgd_torch_let_end_on_host(int device, int all);
/* What torch's allocator has handed out, and what it keeps beside. Returns 0, or -1 without an exception. No GIL. */
int mgd_torch_allocator_usage(int device, int64_t *live, int64_t *cached);

/* ---- waiting.cpp: waits for bytes that other threads hold */
/* How often bytes have been freed. Read it BEFORE looking for room, then wait for it to change. */
uint64_t mgd_torch_freed_count(void);
/* Blocks without the GIL until mgd_torch_freed_count() differs from `seen` or `deadline` (ns of mgd_torch_now) has
 * passed; 1 = woken, 0 = timed out. */
int mgd_torch_wait_freed(uint64_t seen, int64_t deadline);
/* Wakes all waiting threads: a reservation was released. */
void mgd_torch_notify_freed(void);

/* ---- tensor_api.cpp: the state of one tensor */
int mgd_torch_is_tensor(PyObject *o);
int mgd_torch_is_managed(PyObject *tensor);      /* no error: 0 for anything else */
/* Makes the tensor itself managed; `in_module`: a module has it as a parameter or a buffer. */
int mgd_torch_mark(PyObject *tensor, int in_module);
int mgd_torch_unmark(PyObject *tensor); /* makes it plain; its bytes come home and stay there */
int mgd_torch_drop_key(PyObject *tensor); /* makes it plain and leaves its bytes: for an alias that is not read */
int mgd_torch_pin(PyObject *tensor, int pinned); /* 1 pins to its device, 0 unpins */
int mgd_torch_pinned(PyObject *tensor);
int mgd_torch_advise(PyObject *tensor, unsigned advice); /* enum mgd_advice */
int mgd_torch_advice(PyObject *tensor);
/* 1: the program wants the tensor on its accelerator, so it does not move by itself; 0: it may move. */
int mgd_torch_place(PyObject *tensor, int placed);
int mgd_torch_place_here(PyObject *tensor); /* the program has named the accelerator on which the tensor is already */
int mgd_torch_placed(PyObject *tensor);
/* Whether nothing but the tensors of a list has their bytes: no view, alias, graph or pointer. */
int mgd_torch_are_alone(PyObject *tensors);
/* Calls f(context); meanwhile no leaf moves by itself. */
PyObject *mgd_torch_still(PyObject *(*f)(void *), void *context);
/* Brings the tensor's bytes home and keeps no copies of them, because writes may go unseen: expose is for a pointer
 * that leaks, lend for the storage, while the program holds it. */
int mgd_torch_expose(PyObject *tensor);
int mgd_torch_lend(PyObject *tensor);
void mgd_torch_let_leave(PyObject *tensor); /* undoes one expose's pin: no pointer leaked after all */
void mgd_torch_reap_replicas(void); /* frees the copies that a smaller budget has doomed */
uint64_t mgd_torch_object(PyObject *tensor, int create); /* the id under which the trace knows it; 0 if none */
/* Gives the same id for a storage, and the storage's number, which is never used again. Needs no GIL. */
void mgd_torch_identify(const struct mgd_handle *handle, uint64_t *object, uint64_t *number);
uint64_t mgd_torch_number(PyObject *tensor); /* that number for a tensor's bytes; 0 if they cannot leave */
int64_t mgd_torch_nbytes(PyObject *tensor);      /* bytes of the tensor's elements; -1 on error */
int mgd_torch_device_of(PyObject *tensor);       /* id, or -1 on error (meta) */

/* Continues the history of another tensor, which had this id, with this tensor; 0 changes nothing. */
int mgd_torch_resume(PyObject *tensor, uint64_t object);

/* ---- record.cpp: call sites, and warnings that wait to be emitted */
/* Sets the function that gives the id of the running line of Python, or 0. It is called in any thread, with or without
 * the GIL. */
void mgd_torch_set_call_site(uint32_t (*read)(void));
/* on: from now on the trace drops no event, and events name their copies on the clock. off: ends that. Returns one of
 * the core's codes. */
int mgd_torch_profile(int on);
/* Sets the function that is called when a warning begins to wait, in any thread, with or without the GIL. */
void mgd_torch_set_wake(void (*wake)(void));
/* Takes the oldest waiting warning: returns a new str, the site it is about, and whether it is a CopyWarning. NULL
 * without an exception if none waits. */
PyObject *mgd_torch_take_warning(uint32_t *site, int *is_of_copies);
void mgd_torch_end_step(enum mgd_growth_end end); /* may queue a warning */
int mgd_torch_counts_calls(void); /* whether calls of modules are to be reported as steps; then it wakes once */
int mgd_torch_in_backward(void); /* whether this thread is inside a backward pass */

/* ---- graphs, in device_api.cpp: what a plan has laid out is given back before a pool begins */
/* change: +1 when blocks begin to come from a pool of the program's own, -1 when that ends. graph: whether a CUDA
 * graph is recorded. */
void mgd_torch_private_pool(int change, int graph);

/* ---- testing_api.cpp: which storages operators use, for benchmarks */
int mgd_torch_begin_uses(void);
/* Returns the uses since then as a list of (storage, bytes, operator, kind, ns). Uses of one operator have one number;
 * kind is 0 made, 1 read, 2 written, 3 dropped; ns is when the current stream reached the use, since the beginning. */
PyObject *mgd_torch_end_uses(void);

/* ---- torture.cpp: for tests */
/* Before each operator every unused storage of at least `at_least` bytes is evicted with a chance of one in `odds` (0:
 * none is); with `overwrite` simulated devices overwrite the blocks that are freed. */
struct mgd_torture {
  uint32_t odds;
  uint64_t seed;
  int64_t at_least;
  int overwrite;
};
struct mgd_torture mgd_torch_torture(
    struct mgd_torture asked); /* returns the settings before, with their seed as it is now */
int64_t mgd_torch_spill_all(void); /* evicts every storage that may leave; returns how many left */
int mgd_torch_is_spilled(PyObject *tensor);
int mgd_torch_learns(void); /* whether devices that are short of room learn from steps that repeat */
void mgd_torch_learn(int on); /* off: forgets what was learned */
int mgd_torch_load_steps(int device, const int64_t *numbers, size_t n, int *steps); /* mgd_step_file_load() */
int mgd_torch_keeps_maps(void); /* whether a mapped file serves as the host's copy of bytes that went to a device */
void mgd_torch_keep_maps(int on);
int mgd_torch_needs_file(const char *path); /* whether this file holds such a copy */
struct mgd_host_bytes {
  int64_t pinned, pageable; /* that hold what left devices, or copies of it; pinned: page-locked */
  int64_t kept; /* of blocks that are kept for later evictions */
};
struct mgd_host_bytes mgd_torch_host_bytes(void);

/* ---- move.cpp */
/* Returns another tensor over the same bytes, connected by autograd, managed. It serves as_subclass. */
PyObject *mgd_torch_alias(PyObject *tensor);
/* Returns a copy on the device, recorded by autograd, managed, traced, or the tensor itself if it is there. It serves
 * x.to(device). */
PyObject *mgd_torch_to(PyObject *tensor, int device, int non_blocking, enum mgd_reason why);
/* Returns a copy beside other work, recorded by autograd, managed, traced, whose gradient comes home before other work
 * that waits then; or the tensor itself if it is there. */
PyObject *mgd_torch_cross(PyObject *tensor, PyObject *device);
/* Moves the tensor itself (and its .grad) in place; object, ties and hooks stay. Fails for pinned tensors, views and
 * non-leaves. */
int mgd_torch_move(PyObject *tensor, int device, enum mgd_reason why);

/* Gives a meta tensor bytes on a device that holds no values, in place; device -1 turns it into a meta tensor again. */
int mgd_torch_allocate(PyObject *tensor, int device);
uint64_t mgd_torch_move_count(void); /* tensors moved in place so far; never goes back, unlike the trace's totals */

/* A request for room waits so long (ns) for threads that need the GIL: for the collector and for holders together. */
#define MGD_WAIT_FOR_GIL 1000000000LL

/* ---- garbage.cpp */
/* Sets the function that runs Python's collector and returns whether it did, before the deadline (ns of
 * mgd_torch_now). It is called without the GIL, at any point of a thread's work. */
void mgd_torch_set_collector(int (*collect)(int64_t deadline));

/* ---- holders.cpp */
/* These call other allocators, by their ids in the core. They are called without the GIL and return 0, or -1 for a
 * holder that failed, or has not answered when the deadline passes. */
struct mgd_holder_calls {
  void (*find)(int64_t deadline); /* adds allocators of libraries that the program has imported meanwhile */
  int (*report)(int id, int device, int64_t deadline, int64_t *live, int64_t *cached);
  int (*reclaim)(int id, int device, int64_t bytes, int64_t deadline);
};
void mgd_torch_set_holders(const struct mgd_holder_calls *calls);
/* Names the holder whose function this thread runs from now on; 0: none. What the thread needs is not asked of that
 * one. Returns the one before. Needs no GIL. */
int mgd_torch_exchange_requester(int id);
/* Makes idle storages leave, and gives the allocator's cache back, until the device has so many more bytes for other
 * libraries. Returns how many came free. Needs no GIL, and releases it if the caller has it. No holder is asked. */
int64_t mgd_torch_give_back(int device, int64_t bytes);

/* ---- errors.cpp */
/* Sets the exceptions for operands pinned to different devices and for operators without room; keeps references. */
void mgd_torch_set_errors(PyObject *pin_conflict, PyObject *out_of_memory);

/* ---- hook.cpp: knobs */
int mgd_torch_set_frozen(int frozen); /* thread-local; returns the old value */
/* Returns the hook's counters as a dict: misaligned_calls, aligned_calls, grouped_calls, calls_on_host,
 * replica_hits, host_waits. */
PyObject *mgd_torch_counters(void);
int mgd_torch_reset_counters(void);

/* ---- engine.cpp */
/* Runs the given callable (torch's run_backward). If managed tensors take part, the key is included in TLS, and each
 * root gradient is brought to its root's device. */
PyObject *mgd_torch_run_backward(PyObject *callable, PyObject *args, PyObject *kwargs);
/* Returns the gradient on the device, recorded by autograd and traced; the gradient itself if it is plain or already
 * there. */
PyObject *mgd_torch_bring_gradient(PyObject *gradient, PyObject *device);
/* Brings the .grad of each managed leaf of the list to its tensor's device. */
int mgd_torch_gather_gradients(PyObject *parameters);

/* ---- pieces.cpp: a backward pass in pieces, one for each device */
/* Cuts the graph of a loss at the crossings between devices. Returns a list of pieces (device, leaves, crossings), with
 * the accumulators of the leaves, and with (crossing, node, home, next node, its input) for each way out of the piece.
 * If the graph cannot be cut, returns a str that says why. */
PyObject *mgd_torch_cut_backward(PyObject *loss);
/* The next pass ends at the crossing (a capsule), which keeps the gradient; not `ends`: it does so no more. */
int mgd_torch_end_at_crossing(PyObject *crossing, int ends);
/* Returns that gradient on the device of the crossing's source, or None if the pass brought none. */
PyObject *mgd_torch_leave_crossing(PyObject *crossing);

/* ---- spread.cpp: tensors with a local copy on each of several devices (align/buckets.h) */
int mgd_torch_is_recorded(void); /* whether what this thread does is recorded or transformed (values.h) */
PyObject *mgd_torch_new_buckets(PyObject *devices); /* takes a list; returns a capsule */
/* Takes a list of tensors. Returns a list of their local pieces for each device, in their order. */
PyObject *mgd_torch_spread(PyObject *capsule, PyObject *tensors);

/* ---- random.cpp */
/* Returns a number that depends on the state of the stream of this kind of device alone; nothing is drawn. */
int mgd_torch_seed_of_stream(PyObject *device, uint64_t *seed);
/* From now on this thread draws on the device, which is not the first one, from numbers of its own with this seed, as
 * do other threads that draw there meanwhile. mgd_torch_end_own_numbers() ends it. */
int mgd_torch_begin_own_numbers(PyObject *device, uint64_t seed);
int mgd_torch_end_own_numbers(PyObject *device);
int mgd_torch_has_own_numbers(void); /* whether this thread does */
/* Called when a checkpointed function is about to run again, perhaps in a thread of the engine. `own`: it had own
 * numbers when it ran first. Replays set generators that all threads share, so they take turns: waits for this thread's
 * turn. Returns 1, or 0 if mgd_torch_end_replay()
 * must not be called: this thread is in no backward pass of managed tensors, or is replaying already. */
int mgd_torch_begin_replay(int own);
void mgd_torch_end_replay(void);

/* ---- functorch.cpp */
void mgd_torch_above_functorch(
    int change); /* +1 when this thread enters a level of torch.func.grad, -1 when it leaves one */

#ifdef __cplusplus
}
#endif
#endif
