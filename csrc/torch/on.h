/* on.h: threads in which every new tensor is managed (managed.on).
 *
 * It is part of csrc/torch's interface for csrc/python; api.h describes how these functions fail.
 */
#ifndef MGD_TORCH_ON_H
#define MGD_TORCH_ON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Outside of managed.on(); inside; inside, and tensors for no particular device go to the device with least in use. */
enum { MGD_OFF,
       MGD_ON,
       MGD_ON_DISPERSING };

/* The mode of this thread; no error. A thread of autograd's engine has MGD_ON_DISPERSING if the thread that called it
 * is inside, in either mode. */
int mgd_torch_on(void);
/* Sets the mode of this thread and returns the old one. `pick` is called with a number of bytes and returns the
 * torch.device for a new tensor if the program names only the kind of device; only the first `pick` is kept. */
int mgd_torch_set_on(int mode, PyObject *pick);
/* Sets whether threads in managed.on() take simulated devices for CUDA's; returns the old value. */
int mgd_torch_cuda_is_simulated(int yes);
/* Whether the tensor, managed or plain, may be managed; no error. */
int mgd_torch_can_be_managed(PyObject *tensor);

#ifdef __cplusplus
}
#endif

#endif
