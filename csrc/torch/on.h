/* on.h: threads in which everything that is made is managed (managed.on).
 *
 * Part of what csrc/torch offers to csrc/python; api.h says how these functions fail.
 */
#ifndef MGD_TORCH_ON_H
#define MGD_TORCH_ON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Outside; inside; inside, and what goes to no device in particular goes where least is in use. */
enum { MGD_OFF,
       MGD_ON,
       MGD_ON_DISPERSING };

/* How this thread stands; no error. A thread of autograd's engine stands as the one that called it. */
int mgd_torch_on(void);
/* Changes that and returns the old value. `pick` is called with bytes and gives the torch.device for a new tensor of
 * which the program names only the kind; the first one is kept. */
int mgd_torch_set_on(int mode, PyObject *pick);
/* Whether threads that are on take simulated devices for CUDA's; returns the old value. */
int mgd_torch_cuda_is_simulated(int yes);
/* Whether the tensor, managed or plain, may be managed; no error. */
int mgd_torch_can_be_managed(PyObject *tensor);

#ifdef __cplusplus
}
#endif

#endif
