/* kernel.c: kernels: those that compute on the host, and those that the compiler made for a device, which cannot run.
 *
 * A host kernel computes at once, on the thread that launches it, after all that its stream waits for. So it never
 * reads what is not there yet, and that a wait is missing shows in the checker. VIRTUAL_GPU_KERNELS=empty makes device
 * code do nothing instead of failing.
 */
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

static _Thread_local struct op *open_kernel; /* the innermost of this thread */
static _Thread_local bool recording;         /* it is a node of a graph, and gets its accesses when it ends */

static cudaError_t stream_for_kernel(void *handle, struct stream **s) {
  const cudaError_t error = find_stream((cudaStream_t)handle, s);
  if (error != cudaSuccess) return error;
  if ((*s)->device != current_device()) return cudaErrorInvalidResourceHandle;
  return refuse_legacy(*s);
}

static void end(void) {
  struct op *op = open_kernel;
  if (!op || --op->depth) return;
  open_kernel = op->outer;
  finish_op(op);
  drop_op(op);
}

static cudaError_t begin(struct stream *s, const char *name) {
  if (open_kernel && open_kernel->stream == s) return open_kernel->depth++, cudaSuccess;
  if (s->capture) {
    s->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  struct op *op = new_op(KERNEL, s), *before = s->last;
  if (!op) return cudaErrorMemoryAllocation;
  if (before) before->references++;
  op->depth = 1;
  op->owner = pthread_self();
  op->at.site = here(name);
  op->references++;
  cudaError_t error = enqueue(op, NULL, 0);
  if (error != cudaSuccess) return drop_op(op), drop_op(before), error;
  error = run_until(before);
  drop_op(before);
  for (size_t i = 0; i < op->wait_count; i++) (void)run_until(op->waits[i]);
  op->outer = open_kernel;
  open_kernel = op;
  op->state = RUNNING;
  if (error != cudaSuccess) end();
  return error;
}

int vgpu_kernel_begin(void *stream, const char *name) {
  ENTER_AS(true, (int)leave);
  struct stream *s;
  cudaError_t error = stream_for_kernel(stream, &s);
  if (error == cudaSuccess) error = begin(s, name);
  return (int)leave(error);
}

void vgpu_kernel_access(const void *address, size_t bytes, int written) {
  lock();
  struct op *op = open_kernel;
  enum memory memory;
  int device;
  if (!op || !bytes) {
    unlock();
    return;
  }
  const struct access a = {address, bytes, written != 0};
  if (recording) {
    struct access *larger = realloc(op->accesses, (op->access_count + 1) * sizeof *larger);
    if (larger) {
      op->accesses = larger;
      larger[op->access_count++] = a;
    }
  } else if (checking() && (!memory_at(address, bytes, &memory, &device) || memory == PAGEABLE)) {
    char text[4096];
    (void)describe(op->at.site, text, sizeof text);
    report("outside: %zu bytes at %p are %s on %s but no device and no pinned memory has them (freed, or the host's own), by %s", bytes, address,
           written ? "written" : "read", actor_name(op->at.actor), text);
  } else {
    check_access(a, &op->clock, op->at);
  }
  unlock();
}

void vgpu_kernel_fail(int error) {
  lock();
  if (open_kernel && !recording) {
    struct op *op = new_op(FAIL, open_kernel->stream);
    if (op) {
      op->error = (cudaError_t)error;
      (void)enqueue(op, NULL, 0);
    }
  }
  unlock();
}

int vgpu_kernel_record(void *stream, const char *name, void (*run)(void *), void (*drop)(void *), void *data) {
  ENTER_AS(true, (int)leave);
  struct stream *s;
  const cudaError_t error = stream_for_kernel(stream, &s);
  if (error != cudaSuccess) return (int)leave(error);
  if (!s->capture || recording) return (int)leave(cudaErrorIllegalState);
  struct op *op = new_op(KERNEL, s);
  if (!op) return (int)leave(cudaErrorMemoryAllocation);
  op->at.site = here(name);
  op->run = run;
  op->drop = drop;
  op->data = data;
  op->depth = 1;
  op->outer = open_kernel;
  open_kernel = op;
  recording = true;
  return (int)leave(cudaSuccess);
}

int vgpu_kernel_end(void) {
  lock();
  cudaError_t error = cudaSuccess;
  if (!open_kernel) error = cudaErrorIllegalState;
  else if (!recording) end();
  else if (--open_kernel->depth == 0) {
    struct op *op = open_kernel;
    open_kernel = op->outer;
    recording = false;
    error = record_op(op, NULL, 0);
  }
  unlock();
  return (int)error;
}

/* ---- device code */

static struct name {
  struct name *next;
  const void *function;
  const char *name;
} *names[1 << 14];

static struct name **slot(const void *function) { return &names[((uintptr_t)function * 0x9e3779b97f4a7c15u) >> 50]; }

#pragma GCC visibility push(default) /* what the compiler calls stands in no header */

/* Called before main by every library that has device code. */
void **__cudaRegisterFatBinary(void *binary);
void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  (void)binary;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle);
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle);
char __cudaInitModule(void **handle) { return (void)handle, 1; }
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global) {
  (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int threads, void *a, void *b, void *c, void *d, int *e);
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int threads, void *a, void *b, void *c, void *d, int *e) {
  (void)handle, (void)device, (void)threads, (void)a, (void)b, (void)c, (void)d, (void)e;
  struct name *n = malloc(sizeof *n);
  if (!n) return;
  lock();
  *n = (struct name){*slot(function), function, name}; /* the name is a constant of the library */
  *slot(function) = n;
  unlock();
}

static const char *name_of(const void *function) {
  for (const struct name *n = *slot(function); n; n = n->next)
    if (n->function == function) return n->name;
  return "a kernel without a name";
}

static bool empty_kernels(void) {
  const char *text = getenv("VIRTUAL_GPU_KERNELS");
  return text && strcmp(text, "empty") == 0;
}

static cudaError_t launch(const char *name, struct stream *s) {
  cudaError_t error = refuse_legacy(s);
  if (error != cudaSuccess) return error;
  if (!empty_kernels()) {
    static const char *told;
    if (told != name) complain("the kernel %s is code for a real GPU and cannot run here", told = name);
    return cudaErrorInvalidDeviceFunction;
  }
  struct op *op = new_op(KERNEL, s);
  return op ? enqueue(op, NULL, 0) : cudaErrorMemoryAllocation;
}
static cudaError_t launch_on(const char *name, void *stream) {
  struct stream *s;
  const cudaError_t error = find_stream((cudaStream_t)stream, &s);
  return error != cudaSuccess ? error : launch(name, s);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  ENTER;
  (void)grid, (void)block, (void)arguments, (void)shared;
  return leave(launch_on(name_of(function), stream));
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  ENTER;
  (void)grid, (void)block, (void)arguments, (void)shared;
  return leave(launch_on(name_of(function), stream));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  ENTER;
  (void)arguments;
  return leave(launch_on(name_of(function), config->stream));
}
/* What the compiler's launches call since CUDA 13. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { return *kernel = (cudaKernel_t)(uintptr_t)function, cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  ENTER;
  (void)grid, (void)block, (void)arguments, (void)shared;
  return leave(launch_on(name_of((const void *)kernel), stream));
}
static _Thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
  memcpy(stream, &pushed.stream, sizeof pushed.stream);
  return cudaSuccess;
}
/* NCCL's kernels are device code as well. torch asks for one of these when a call of NCCL's has failed, and puts it
 * into its error. */
#define NO_NCCL                                                                              \
  "NCCL's kernels are code for a real GPU and cannot run on virtual GPUs. The backend gloo " \
  "can: torch.distributed.init_process_group(\"gloo\")."
const char *ncclGetLastError(void *communicator);
const char *ncclGetLastError(void *communicator) {
  (void)communicator;
  return NO_NCCL;
}
const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return result ? NO_NCCL : "no error"; }
#pragma GCC visibility pop

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
  ENTER;
  (void)function;
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->ptxVersion = a->binaryVersion = 80;
  return leave(cudaSuccess);
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute a, int value) {
  ENTER;
  (void)function, (void)a, (void)value;
  return leave(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *function, int block, size_t shared, unsigned flags) {
  ENTER;
  (void)function, (void)block, (void)shared, (void)flags;
  *n = 1;
  return leave(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *function, int block, size_t shared) {
  ENTER;
  (void)function, (void)block, (void)shared;
  *n = 1;
  return leave(cudaSuccess);
}
