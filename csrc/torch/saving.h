/* saving.h: storages in the hands of somebody who only saves them. They may leave, and are copied from where they are.
 *
 * Also here, for callers that need them beside it: mgd_torch_held and mgd_torch_call_hooked (reading.cpp),
 * mgd_torch_explained.
 *
 * Part of what csrc/torch offers to csrc/python; api.h says how these functions fail.
 */
#ifndef MGD_TORCH_SAVING_H
#define MGD_TORCH_SAVING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As mgd_torch_lend, to a saver; the storage of a plain tensor, and one that the program holds already, is lent as it
 * is there. */
int mgd_torch_lend_to_saver(PyObject *tensor);
int mgd_torch_is_saved(PyObject *storage); /* no error: 0 for anything else */
int mgd_torch_save_made(PyObject *storage); /* a fresh one that nobody else has is in a saver's hands */
/* A storage that was a saver's is the program's from now on: its bytes come home and stay. */
int mgd_torch_keep_storage(PyObject *storage);
/* Copies all bytes of a saved storage into one of the same size that does not leave. */
int mgd_torch_copy_saved(PyObject *target, PyObject *source);
/* The other way: from the host into a saved storage. */
int mgd_torch_write_saved(PyObject *target, PyObject *source);
/* set(context), which gives the tensor a saved storage, whose bytes are home meanwhile. The tensor is managed then: a
 * plain one would not find its bytes. */
PyObject *mgd_torch_set_saved(PyObject *tensor, PyObject *storage, PyObject *(*set)(void *), void *context);
/* f(context), while the tensors of the list are home and stay. */
PyObject *mgd_torch_held(PyObject *tensors, PyObject *(*f)(void *), void *context);
/* call(*args, **kwargs), while operators of this thread on managed tensors come to the hook although torch has shut it
 * out. */
PyObject *mgd_torch_call_hooked(PyObject *call, PyObject *args, PyObject *kwargs);
/* A number that stands for the address of the first element, whether or not the bytes are there; 0 where they never
 * leave. */
uint64_t mgd_torch_identity(PyObject *tensor_or_storage);
PyObject *mgd_torch_explained(PyObject *error); /* the text of an allocator's error, with who holds what */

#ifdef __cplusplus
}
#endif

#endif
