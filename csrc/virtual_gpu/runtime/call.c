/* call.c: what every call begins and ends with: its count, the faults that were ordered, errors that stay.
 *
 * Owns the figures of calls and the last error of each thread.
 */
#include <stdio.h>
#include <unistd.h>

#include "virtual_gpu/runtime/internal.h"

enum { FAULTS = 16 };

static struct call *calls;
static struct fault {
  char name[64];
  long n;
  int error;
  bool lasts; /* all later calls fail too */
  void (*act)(void); /* instead of the error */
} faults[FAULTS];
static int fault_count;
static bool forked; /* CUDA that has been called does not outlive a fork */
static _Thread_local cudaError_t last;

static void in_child(void) {
  forked = forked || calls;
  unlock();
}

static void order_fault(const char *name, size_t length, struct fault ordered) {
  int i = 0;
  while (i < fault_count && (strncmp(faults[i].name, name, length) != 0 || faults[i].name[length])) i++;
  if (i == FAULTS || length >= sizeof faults[0].name) return;
  faults[i] = ordered;
  (void)snprintf(faults[i].name, sizeof faults[i].name, "%.*s", (int)length, name);
  if (i == fault_count) fault_count++;
}

/* VIRTUAL_GPU_FAIL=name:n:error,... */
__attribute__((constructor)) static void start(void) {
  (void)pthread_atfork(lock, unlock, in_child);
  const char *text = getenv("VIRTUAL_GPU_FAIL");
  while (text && *text) {
    const size_t length = strcspn(text, ":");
    long n = 0;
    int error = 0;
    if (sscanf(text + length, ":%ld:%d", &n, &error) == 2)
      order_fault(text, length, (struct fault){.n = n, .error = error});
    text += strcspn(text, ",");
    text += *text == ',';
  }
}

static void count(struct call *call) {
  if (!call->known) {
    call->known = true;
    call->next = calls;
    calls = call;
  }
  call->count++;
  set_call_name(call->name);
}

/* Returns the error ordered for this call; an act is done here, without the lock, so that it may make any call. */
static cudaError_t ordered_fault(const struct call *call) {
  for (int i = 0; i < fault_count; i++) {
    if (faults[i].n <= 0 || strcmp(faults[i].name, call->name) != 0 || --faults[i].n > 0) continue;
    if (faults[i].lasts) faults[i].n = 1;
    void (*const act)(void) = faults[i].act;
    if (!act) return (cudaError_t)faults[i].error;
    unlock();
    act();
    lock();
    set_call_name(call->name);
    break;
  }
  return cudaSuccess;
}

/* Errors after which a context is no longer of use. */
static bool stays(cudaError_t e) {
  return e == cudaErrorAssert || e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorLaunchTimeout ||
         e == cudaErrorHardwareStackError || e == cudaErrorIllegalInstruction || e == cudaErrorMisalignedAddress || e == cudaErrorECCUncorrectable;
}

cudaError_t enter(struct call *call, bool needs_context) {
  lock();
  count(call);
  const cudaError_t error = ordered_fault(call);
  if (error != cudaSuccess) {
    if (stays(error)) devices[current_device()].sticky = error;
    return error;
  }
  if (!needs_context) return cudaSuccess;
  if (forked) return cudaErrorInitializationError;
  let_run();
  const cudaError_t sticky = devices[current_device()].sticky;
  return sticky != cudaSuccess ? sticky : make_context(current_device());
}

cudaError_t leave(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  unlock();
  return error;
}

CUresult leave_driver(cudaError_t error) {
  unlock();
  return (CUresult)error; /* the numbers are the same */
}

static void count_refusal(struct call *call) {
  lock();
  call->count -= call->known ? 0 : 1L << 40; /* a mark that tells what is refused from what is there */
  count(call);
}
int refuse(struct call *call) {
  count_refusal(call);
  return (int)leave(cudaErrorNotSupported);
}
int refuse_driver(struct call *call) {
  count_refusal(call);
  return (int)leave_driver(cudaErrorNotSupported);
}

/* ---- CUDA's own functions for errors */

static cudaError_t last_error(bool forget) {
  lock();
  const cudaError_t sticky = devices[current_device()].sticky;
  const cudaError_t e = last != cudaSuccess && sticky != cudaSuccess ? sticky : last;
  if (forget) last = cudaSuccess;
  unlock();
  return e;
}
cudaError_t cudaGetLastError(void) { return last_error(true); }
cudaError_t cudaPeekAtLastError(void) { return last_error(false); }

static const struct {
  cudaError_t error;
  const char *name, *text;
} errors[] = {
#define E(name, text) {name, #name, text}
    E(cudaSuccess, "no error"),
    E(cudaErrorInvalidValue, "invalid argument"),
    E(cudaErrorMemoryAllocation, "out of memory"),
    E(cudaErrorInitializationError, "initialization error"),
    E(cudaErrorInvalidDevice, "invalid device ordinal"),
    E(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    E(cudaErrorInvalidDeviceFunction, "invalid device function"),
    E(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    E(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    E(cudaErrorNotReady, "device not ready"),
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    E(cudaErrorAssert, "device-side assert triggered"),
    E(cudaErrorLaunchFailure, "unspecified launch failure"),
    E(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    E(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    E(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    E(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    E(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    E(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    E(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    E(cudaErrorNotSupported, "operation not supported"),
    E(cudaErrorNotPermitted, "operation not permitted"),
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    E(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    E(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    E(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    E(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream"),
    E(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
    E(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    E(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    E(cudaErrorUnknown, "unknown error"),
#undef E
};
const char *cudaGetErrorString(cudaError_t e) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == e) return errors[i].text;
  return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t e) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == e) return errors[i].name;
  return "unrecognized error code";
}

/* ---- for tests */

void vgpu_fail(const char *name, long n, int error) {
  lock();
  order_fault(name, strlen(name), (struct fault){.n = n, .error = error});
  unlock();
}

void vgpu_fail_from(const char *name, long n, int error) {
  lock();
  order_fault(name, strlen(name), (struct fault){.n = n, .error = error, .lasts = true});
  unlock();
}

void vgpu_before(const char *name, long n, void (*act)(void)) {
  lock();
  order_fault(name, strlen(name), (struct fault){.n = n, .act = act});
  unlock();
}

long vgpu_count(const char *name) {
  long n = 0;
  lock();
  for (const struct call *c = calls; c; c = c->next)
    if (strcmp(c->name, name) == 0) n = c->count < 0 ? c->count + (1L << 40) : c->count;
  unlock();
  return n;
}

size_t vgpu_refused(char *text, size_t size) {
  size_t length = 0;
  lock();
  for (const struct call *c = calls; c; c = c->next) {
    if (c->count >= 0) continue;
    const int n = snprintf(length < size ? text + length : NULL, length < size ? size - length : 0, "%s\n", c->name);
    length += (size_t)n;
  }
  unlock();
  if (size && !length) *text = 0;
  return length;
}
