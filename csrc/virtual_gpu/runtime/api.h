/* api.h: what the runtime offers beside CUDA's own functions.
 *
 * Callers look the functions up with dlsym: kernels the first group, tests and the launcher the rest. Kernels compute
 * on the host, at once, after the runtime has run all that their stream waits for. Errors are cudaError_t as int; 0 is
 * success.
 */
#ifndef VIRTUAL_GPU_API_H
#define VIRTUAL_GPU_API_H

#include <stddef.h>

/* ---- kernels */
/* Runs what `stream` (a cudaStream_t) waits for and opens a kernel on this thread. `name` is copied. A kernel inside
 * another one of the same stream is a part of it. Returns cudaErrorStreamCaptureUnsupported if the stream is recorded:
 * see vgpu_kernel_record. */
int vgpu_kernel_begin(void *stream, const char *name);
/* Checks an operand's bytes against the last accesses that conflict. Outside a kernel it does nothing. */
void vgpu_kernel_access(const void *address, size_t bytes, int written);
/* Makes the open kernel fail as on a device: calls that wait for its stream return the error, and so do later ones. */
void vgpu_kernel_fail(int error);
int vgpu_kernel_end(void);
/* On a stream that is recorded: opens a kernel that `run(data)` computes at every launch of the graph, and not now.
 * `drop(data)` is called once, when no graph needs it any more. vgpu_kernel_access and vgpu_kernel_end follow as for
 * any other kernel. */
int vgpu_kernel_record(void *stream, const char *name, void (*run)(void *), void (*drop)(void *), void *data);

/* ---- the checker */
/* Checks an access of the host itself to pinned bytes, now. */
void vgpu_host_access(const void *address, size_t bytes, int written);
/* Returns the number of errors (accesses that were not ordered, or lie outside) since the last vgpu_clear. */
int vgpu_errors(void);
/* Writes their text, cut to `size` bytes with the final 0, and returns its length without that. The exit does not
 * report these errors again. */
size_t vgpu_report(char *text, size_t size);
void vgpu_clear(void);
/* Switches the checker on or off; returns the previous setting. */
int vgpu_check(int on);

/* ---- faults and figures */
/* The n-th call (1 is the next) of the function with this name fails with `error`; n == 0 cancels that. */
void vgpu_fail(const char *name, long n, int error);
/* The n-th call and all after it fail. It replaces an order of vgpu_fail, which cancels it. */
void vgpu_fail_from(const char *name, long n, int error);
/* The n-th call runs `act()` first, in its own thread, without the lock: this stands for what another thread could do
 * just then. It replaces an order of vgpu_fail. */
void vgpu_before(const char *name, long n, void (*act)(void));
/* Returns how often a function of CUDA's was called since the start; counts refused functions (not supported) too. */
long vgpu_count(const char *name);
/* Writes the names of functions that were called and are not supported, a line each, and returns like vgpu_report. */
size_t vgpu_refused(char *text, size_t size);
/* Returns the bytes in use on a device, its context included; device -1 is pinned host memory. */
size_t vgpu_bytes(int device);
/* Returns 1 if the device has a context, else 0. */
int vgpu_has_context(int device);
/* Returns how many operations are queued and have not run, over all streams. */
long vgpu_pending(void);
/* Sets the seed from now on; with 0 everything runs as late as it may. */
void vgpu_seed(unsigned long long seed);

#endif
