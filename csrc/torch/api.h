/* api.h: what csrc/torch offers to csrc/python, in C.
 *
 * Tensors cross as PyObject*. A function that returns int gives 0 (or a truth
 * value) or -1 with a Python exception set; one that returns PyObject* gives a
 * new reference or NULL with an exception set. All are called with the GIL;
 * mgd_torch_in_backward() also without.
 */
#ifndef MGD_TORCH_API_H
#define MGD_TORCH_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- api.cpp: start */
/* Registers the hook and creates the machine, once a process; an error text if the key is taken. */
int mgd_torch_init(void);
struct mgd_machine *mgd_torch_machine(void);

/* ---- attach.cpp: how devices get into the machine */
/* Adds the accelerators torch knows now (CUDA, then "sim"); initialises a driver only here. Returns their number or -1.
 */
int mgd_torch_discover(void);
/* The hook's half of bridge.h as a capsule "managed._C.bridge", for managed._cuda. */
PyObject *mgd_torch_bridge(void);
/* CUDA is being initialised: from now on its tensors may leave, where managed._cuda has filled its half. */
void mgd_torch_cuda_starts(void);
/* Attaches the simulator: `capsule` is managed._sim's bridge; adds its devices. A second call fails. */
int mgd_torch_attach_sim(PyObject *capsule, int devices);

/* ---- device_api.cpp: torch's devices as ids of the machine */
/* Device object, "cuda:1", "sim", "cpu" or int -> id. "cuda" means a simulated device once there are any.
 * *any is set when a device type without an index was named ("cuda"). ValueError for what does not exist. */
int mgd_torch_device_id(PyObject *device, int *id, int *any);
PyObject *mgd_torch_device(int id); /* a torch.device */
/* Reads free memory of every accelerator into the ledger. */
int mgd_torch_observe(void);
int64_t mgd_torch_now(void); /* ns, monotonic */
/* Nothing uses more than `bytes` of the accelerator from now on, as far as its allocator takes part; what is beyond
 * leaves. */
int mgd_torch_set_budget(int device, int64_t bytes);

/* ---- waiting.cpp: who needs what others have */
/* How often bytes have come back. Read it BEFORE asking whether there is room, then wait for it to change. */
uint64_t mgd_torch_freed_count(void);
/* Blocks without the GIL until mgd_torch_freed_count() differs from `seen` or `deadline` (ns of mgd_torch_now) has
 * passed; 1 = woken, 0 = time is over. */
int mgd_torch_wait_freed(uint64_t seen, int64_t deadline);
/* Wakes everybody who waits: a reservation was released. */
void mgd_torch_notify_freed(void);

/* ---- tensor_api.cpp: what a tensor carries beside the key */
int mgd_torch_is_tensor(PyObject *o);
int mgd_torch_is_managed(PyObject *tensor);      /* no error: 0 for anything else */
/* Makes this very tensor managed; `in_module`: a module has it as a parameter or a buffer. */
int mgd_torch_mark(PyObject *tensor, int in_module);
int mgd_torch_unmark(PyObject *tensor); /* plain from now on; its bytes stay where they are */
int mgd_torch_drop_key(PyObject *tensor); /* the same for an alias that nobody reads through */
int mgd_torch_pin(PyObject *tensor, int pinned); /* 1 pins to its device, 0 unpins */
int mgd_torch_pinned(PyObject *tensor);
int mgd_torch_advise(PyObject *tensor, unsigned advice); /* enum mgd_advice */
int mgd_torch_advice(PyObject *tensor);
/* 1: the program wants it on its accelerator, so that it does not move by itself; 0: it may. */
int mgd_torch_place(PyObject *tensor, int placed);
int mgd_torch_place_here(PyObject *tensor); /* the program has named the accelerator where the tensor is already */
int mgd_torch_placed(PyObject *tensor);
/* Whether nothing but the tensors of a list has their bytes: no view, alias, graph or pointer. */
int mgd_torch_are_alone(PyObject *tensors);
/* f(context), while no leaf moves by itself. */
PyObject *mgd_torch_still(PyObject *(*f)(void *), void *context);
/* Writes to the tensor's bytes may go unseen, so copies of them are not kept: a pointer leaves, or the storage for as
 * long as the program holds it. */
int mgd_torch_expose(PyObject *tensor);
int mgd_torch_lend(PyObject *tensor);
void mgd_torch_let_leave(PyObject *tensor); /* no pointer left after all */
void mgd_torch_reap_replicas(void); /* frees the copies that a smaller budget has doomed */
uint64_t mgd_torch_object(PyObject *tensor, int create); /* the id under which the trace knows it; 0 if none */
/* Of a storage: the same, and a number of its own, which is never another's. Needs no GIL. */
void mgd_torch_who(const struct mgd_handle *handle, uint64_t *object, uint64_t *number);
uint64_t mgd_torch_number(PyObject *tensor); /* that number for a tensor's bytes; 0 where they cannot leave */
int64_t mgd_torch_nbytes(PyObject *tensor);      /* bytes of the tensor's elements; -1 on error */
int mgd_torch_device_of(PyObject *tensor);       /* id, or -1 on error (meta) */

/* The tensor's history goes on under this id, which was another tensor's; 0 changes nothing. */
int mgd_torch_resume(PyObject *tensor, uint64_t object);

/* ---- record.cpp: call sites, and warnings that wait to be said */
/* `read` gives the id of the running line of Python or 0; it is called in any thread, with or without the GIL. */
void mgd_torch_set_call_site(uint32_t (*read)(void));
/* From now on the trace forgets nothing, and its events name their copies on the clock; or no longer. A core's code. */
int mgd_torch_profile(int on);
/* `wake` is called in any thread, with or without the GIL, when a warning begins to wait. */
void mgd_torch_set_wake(void (*wake)(void));
/* The oldest waiting warning, a new str, the site it is about, and whether it is a CopyWarning. NULL without an
 * exception when none waits. */
PyObject *mgd_torch_take_warning(uint32_t *site, int *is_of_copies);
int mgd_torch_in_backward(void); /* whether this thread is inside a backward pass */

/* ---- graphs.cpp */
/* +1 when blocks begin to come from a pool of the program's own, -1 when that ends; `graph`: because a CUDA graph is
 * recorded. */
void mgd_torch_private_pool(int change, int graph);

/* ---- uses.cpp: which storages operators use, for benchmarks */
int mgd_torch_begin_uses(void);
/* Since then, as a list of (storage, bytes, operator, kind, ns): uses of one operator have one number, kind is 0 made,
 * 1 read, 2 written, 3 dropped, and ns is when the current stream had done what came before, since the beginning. */
PyObject *mgd_torch_end_uses(void);

/* ---- torture.cpp: for tests */
/* Before each operator every storage of `at_least` bytes that nobody uses leaves with a chance of one in `odds` (0:
 * none do); with `overwrite` simulated devices fill what is given back. */
struct mgd_torture {
  uint32_t odds;
  uint64_t seed;
  int64_t at_least;
  int overwrite;
};
struct mgd_torture mgd_torch_torture(
    struct mgd_torture asked); /* returns what was asked for before, with its seed as it is now */
int64_t mgd_torch_spill_all(void); /* how many left */
int mgd_torch_is_spilled(PyObject *tensor);
int mgd_torch_learns(void); /* whether devices that are short of room learn from steps that repeat */
void mgd_torch_learn(int on); /* off: what was learned is forgotten */
int mgd_torch_load_steps(int device, const int64_t *numbers, size_t n, int *steps); /* mgd_step_file_load() */
int64_t mgd_torch_kept_host(void); /* bytes of the host that are kept for what will leave */
int64_t mgd_torch_pageable_host(void); /* bytes so far that the driver did not page-lock for what left */

/* ---- move.cpp */
/* Another tensor over the same bytes, connected by autograd, managed: what as_subclass gives. */
PyObject *mgd_torch_alias(PyObject *tensor);
/* A new tensor on the device, recorded by autograd, managed, traced: what x.to(device) gives. */
PyObject *mgd_torch_to(PyObject *tensor, int device, int non_blocking, enum mgd_reason why);
/* Transfers the tensor itself (and its .grad) in place; object, ties and hooks stay. Refused for pinned tensors and
 * non-leaves. */
int mgd_torch_move(PyObject *tensor, int device, enum mgd_reason why);

/* Gives a meta tensor bytes on a device that holds no values, in place; -1 makes a meta tensor of it again. */
int mgd_torch_allocate(PyObject *tensor, int device);
uint64_t mgd_torch_move_count(void); /* tensors moved in place so far; never goes back, unlike the trace's totals */

/* ---- garbage.cpp */
/* `collect` runs Python's collector and says whether it did. It is called without the GIL, amid whatever a thread does.
 */
void mgd_torch_set_collector(int (*collect)(void));

/* ---- errors.cpp */
/* What operands pinned to different devices raise, and operators without room; keeps references. */
void mgd_torch_set_errors(PyObject *pin_conflict, PyObject *out_of_memory);

/* ---- hook.cpp: knobs */
int mgd_torch_set_frozen(int frozen); /* thread-local; returns the old value */
/* Counters of the hook as a dict: misaligned_calls, aligned_calls, grouped_calls, replica_hits. */
PyObject *mgd_torch_counters(void);
int mgd_torch_reset_counters(void);

/* ---- engine.cpp */
/* Runs the given callable (torch's run_backward) with the key included in TLS and root gradients where their roots are.
 */
PyObject *mgd_torch_run_backward(PyObject *callable, PyObject *args, PyObject *kwargs);
/* The gradient on the device, recorded by autograd and traced; itself where nothing that takes part is managed or it is
 * there. */
PyObject *mgd_torch_bring_gradient(PyObject *gradient, PyObject *device);
/* Puts the .grad of each managed tensor of the list where its tensor is. */
int mgd_torch_gather_gradients(PyObject *parameters);

/* ---- random.cpp */
/* A checkpointed function is about to run again, in a thread of the engine perhaps: replays set generators that all
 * threads share, so they take turns. 0, and then there is nothing to end: this thread is in no backward pass of managed
 * tensors, or replays already. */
int mgd_torch_begin_replay(void);
void mgd_torch_end_replay(void);

/* ---- functorch.cpp */
void mgd_torch_above_functorch(
    int change); /* +1 when this thread enters a level of torch.func.grad, -1 when it leaves one */

#ifdef __cplusplus
}
#endif
#endif
