/* saving.h: storages that the program holds only to save them. They may leave, and are copied from where they are.
 *
 * Also declares, for the same callers: mgd_torch_held and mgd_torch_call_hooked (reading.cpp), mgd_torch_explained.
 *
 * It is part of csrc/torch's interface for csrc/python; api.h describes how these functions fail.
 */
#ifndef MGD_TORCH_SAVING_H
#define MGD_TORCH_SAVING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lends the tensor's storage to a saver, so that its bytes may still leave. If the tensor is plain, its storage has no
 * handle, or the program holds the storage already, does what mgd_torch_lend does. */
int mgd_torch_lend_to_saver(PyObject *tensor);
int mgd_torch_is_saved(PyObject *storage); /* no error: 0 for anything else */
int mgd_torch_save_made(PyObject *storage); /* lends a new, unshared storage to a saver */
/* Turns a saved storage into one of the program's: its bytes come home and stay. Does nothing for other storages. */
int mgd_torch_keep_storage(PyObject *storage);
/* Copies all bytes of a saved storage into one of the same size that does not leave. */
int mgd_torch_copy_saved(PyObject *target, PyObject *source);
/* Copies the other way: all bytes of a storage on the host into a saved one. */
int mgd_torch_write_saved(PyObject *target, PyObject *source);
/* Calls set(context), which gives the tensor a saved storage; the bytes are home meanwhile. Then makes the tensor
 * managed, because a plain one could not read bytes that have left. Returns the call's result. */
PyObject *mgd_torch_set_saved(PyObject *tensor, PyObject *storage, PyObject *(*set)(void *), void *context);
/* Calls f(context) while the tensors of the list are home and stay there. */
PyObject *mgd_torch_held(PyObject *tensors, PyObject *(*f)(void *), void *context);
/* Calls call(*args, **kwargs); meanwhile this thread's operators on managed tensors come to the hook, although torch
 * has excluded it. */
PyObject *mgd_torch_call_hooked(PyObject *call, PyObject *args, PyObject *kwargs);
/* Returns a number that replaces the address of the first element and does not change when the bytes leave; 0 if the
 * storage has no handle, so that its bytes never leave. */
uint64_t mgd_torch_identity(PyObject *tensor_or_storage);
PyObject *mgd_torch_explained(PyObject *error); /* an allocator's error text with the table of what holds memory */

#ifdef __cplusplus
}
#endif

#endif
