/* loan.h: calls that read the pointers of their arguments and need them no more when they return: a compiled graph, a
 * launcher of kernels.
 *
 * Pointers that a program takes for good are exposure.h's, those that a serialiser takes saving.h's.
 *
 * Part of what csrc/torch offers to csrc/python; api.h says how these functions fail.
 */
#ifndef MGD_TORCH_LOAN_H
#define MGD_TORCH_LOAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* call(*args, **kwargs), while the tensors of the sequence are home and stay, and the device of the first one on an
 * accelerator is the current device. Those whose positions are in `written`, or all if it is None, count as written
 * when it returns. */
PyObject *mgd_torch_call_lent(PyObject *tensors, PyObject *written, PyObject *call, PyObject *args, PyObject *kwargs);
/* Whether a pointer of the tensor that is read now is given back when such a call of this thread returns. Not where a
 * graph is recorded. */
int mgd_torch_is_lent(PyObject *tensor);

#ifdef __cplusplus
}
#endif

#endif
