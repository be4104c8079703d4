/* loan.h: calls that use the pointers of their arguments only until they return: a compiled graph, a launcher of
 * kernels.
 *
 * For pointers that a program takes for good see exposure.h, for those that a serialiser takes saving.h.
 *
 * It is part of csrc/torch's interface for csrc/python; api.h describes how these functions fail.
 */
#ifndef MGD_TORCH_LOAN_H
#define MGD_TORCH_LOAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls call(*args, **kwargs) while the tensors of the sequence are home and stay there, and the device of the first
 * one on an accelerator is the current device. Tensors whose positions are in `written`, or all if it is None, count as
 * written when the call returns. */
PyObject *mgd_torch_call_lent(PyObject *tensors, PyObject *written, PyObject *call, PyObject *args, PyObject *kwargs);
/* Whether a pointer of the tensor that is read now is used only until such a call of this thread returns. 0 while a
 * CUDA graph is recorded. */
int mgd_torch_is_lent(PyObject *tensor);

#ifdef __cplusplus
}
#endif

#endif
