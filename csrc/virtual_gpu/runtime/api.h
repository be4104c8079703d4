/* api.h: what the runtime offers beside CUDA's own functions.
 *
 * Kernels find the first group with dlsym: they compute on the host, at once, after the runtime has run all that their stream
 * waits for. Tests and the launcher find the rest so. Errors are cudaError_t as int; 0 is success.
 */
#ifndef VIRTUAL_GPU_API_H
#define VIRTUAL_GPU_API_H

#include <stddef.h>

/* ---- kernels */
/* Runs what `stream` (a cudaStream_t) waits for and opens a kernel on this thread. `name` is copied. A kernel inside another one
 * of the same stream is a part of it. cudaErrorStreamCaptureUnsupported on a stream that is recorded: see vgpu_kernel_record. */
int vgpu_kernel_begin(void *stream, const char *name);
/* An operand's bytes; checked against the last accesses that conflict. Outside a kernel it does nothing. */
void vgpu_kernel_access(const void *address, size_t bytes, int written);
/* The open kernel fails as on a device: the error is told when somebody waits for its stream, and for good. */
void vgpu_kernel_fail(int error);
int vgpu_kernel_end(void);
/* On a stream that is recorded: opens a kernel that `run(data)` computes at every launch of the graph, and not now. `drop(data)` is
 * called once, when no graph needs it any more. vgpu_kernel_access and vgpu_kernel_end follow as for any other. */
int vgpu_kernel_record(void *stream, const char *name, void (*run)(void *), void (*drop)(void *), void *data);

/* ---- the checker */
/* The host reads or writes pinned bytes itself, now. */
void vgpu_host_access(const void *address, size_t bytes, int written);
/* Accesses that were not ordered, since the last vgpu_clear. */
int vgpu_errors(void);
/* Their text, cut to `size` bytes with the final 0; how many bytes it needs without that. Told like this, the exit is silent. */
size_t vgpu_report(char *text, size_t size);
void vgpu_clear(void);
/* Switches the checker on or off; what it was before. */
int vgpu_check(int on);

/* ---- faults and figures */
/* The n-th call (1 is the next) of the function with this name fails with `error`; n == 0 forgets it. */
void vgpu_fail(const char *name, long n, int error);
/* The n-th call does `act()` first, in its own thread: what another thread could do just then. In the place of vgpu_fail's order. */
void vgpu_before(const char *name, long n, void (*act)(void));
/* Calls of a function of CUDA's since the start, by name; also of those that are refused as not supported. */
long vgpu_count(const char *name);
/* Names of functions that were called and are not supported, a line each; as vgpu_report. */
size_t vgpu_refused(char *text, size_t size);
/* Bytes that a device holds, its context included; device -1 is pinned host memory. */
size_t vgpu_bytes(int device);
/* 1 when the device has a context. */
int vgpu_has_context(int device);
/* Operations that are queued and have not run, of all streams. */
long vgpu_pending(void);
/* Another seed from now on; 0 runs everything as late as it may. */
void vgpu_seed(unsigned long long seed);

#endif
