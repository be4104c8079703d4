/* cudart.c: a CUDA runtime without a device, preloaded before the real one.
 *
 * Owns just enough for torch's allocators, streams and copies to work on the
 * host's memory: FAKE_CUDA_DEVICES devices (1) of FAKE_CUDA_MEMORY MiB (1024).
 * Kernels do nothing; memory, copies, streams, events and stream capture behave.
 * Work is done at once, so nothing here shows that somebody forgot to wait: it
 * writes each wait to FAKE_CUDA_LOG instead.
 */
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 8, BLOCKS = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block {
  void *address;
  size_t bytes;
  int device;
} blocks[BLOCKS];
static size_t used[DEVICES];
static _Thread_local int current;
static _Thread_local cudaError_t last;
static cudaStream_t capturing;
static long streams;
static unsigned contexts; /* a bit for each device that has one */
static size_t pinned;
static int broken;
static long room_reads[DEVICES];

/* After a device-side assert every call that has to do with kernels reports it. */
static cudaError_t state(void) { return broken ? (last = cudaErrorAssert) : cudaSuccess; }

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}
static int count(void) { return (int)number("FAKE_CUDA_DEVICES", 1); }
static size_t capacity(void) { return (size_t)number("FAKE_CUDA_MEMORY", 1024) << 20; }

static void tell(const char *what) {
  const char *path = getenv("FAKE_CUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", what);
  fclose(file);
}

/* What needs a context makes it. */
static void touch(int device) { __atomic_or_fetch(&contexts, 1u << device, __ATOMIC_RELAXED); }

/* ---- devices */
cudaError_t cudaGetDeviceCount(int *n) { return *n = count(), cudaSuccess; }
cudaError_t cudaGetDevice(int *d) { return *d = current, cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return touch(d), current = d, cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return tell("wait device"), state(); }
cudaError_t cudaDriverGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last;
  last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  (void)d;
  memset(p, 0, sizeof *p);
  strcpy(p->name, "fake");
  p->totalGlobalMem = capacity();
  p->major = 8;
  p->multiProcessorCount = 1;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->warpSize = 32;
  p->maxGridSize[0] = p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = p->maxThreadsDim[2] = 1024;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  (void)a;
  (void)d;
  return *v = 0, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *v, int a, int b) {
  (void)a;
  (void)b;
  return *v = 0, cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int *v, enum cudaDeviceP2PAttr what, int a, int b) {
  (void)what;
  (void)a;
  (void)b;
  return *v = 0, cudaSuccess;
}

/* ---- memory */
cudaError_t cudaMalloc(void **p, size_t bytes) {
  touch(current);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < BLOCKS && blocks[i].address) i++;
  const int fits = i < BLOCKS && used[current] + bytes <= capacity();
  *p = fits ? aligned_alloc(512, (bytes + 511) / 512 * 512) : NULL;
  if (*p) {
    blocks[i] = (struct block){*p, bytes, current};
    used[current] += bytes;
    memset(*p, 0xA5, bytes);
  }
  pthread_mutex_unlock(&lock);
  return last = *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
  pthread_mutex_lock(&lock);
  for (int i = 0; p && i < BLOCKS; i++) {
    if (blocks[i].address != p) continue;
    used[blocks[i].device] -= blocks[i].bytes;
    memset(p, 0xCB, blocks[i].bytes);
    blocks[i].address = NULL;
    free(p);
    break;
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  touch(current);
  pthread_mutex_lock(&lock);
  *total = capacity();
  *available = *total - used[current];
  room_reads[current]++;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
/* Pinned bytes begin behind a page that says how many they are. */
enum { PAGE = 4096 };
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  (void)flags;
  touch(current);
  size_t *head = aligned_alloc(PAGE, PAGE + (bytes + PAGE - 1) / PAGE * PAGE);
  if (!head) return last = cudaErrorMemoryAllocation;
  *head = bytes;
  __atomic_add_fetch(&pinned, bytes, __ATOMIC_RELAXED);
  return *p = (char *)head + PAGE, cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
  size_t *head = p ? (size_t *)((char *)p - PAGE) : NULL;
  if (head) __atomic_sub_fetch(&pinned, *head, __ATOMIC_RELAXED);
  return free(head), cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BLOCKS; i++) {
    const char *start = blocks[i].address;
    if (!start || (const char *)p < start || (const char *)p >= start + blocks[i].bytes) continue;
    a->type = cudaMemoryTypeDevice;
    a->device = blocks[i].device;
    break;
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
  static const char *const names[] = {"copy host", "copy in", "copy out", "copy within", "copy"};
  if (s && s == capturing) return last = cudaErrorStreamCaptureUnsupported;
  tell(names[kind]);
  return memmove(to, from, bytes), state();
}
cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t bytes, cudaStream_t s) {
  (void)a;
  (void)b;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, bytes, kind, NULL); }
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
  (void)s;
  return memset(p, value, bytes), cudaSuccess;
}

/* ---- streams and events */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  (void)flags;
  (void)priority;
  return *s = (cudaStream_t)(0x1000 + 16 * __atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED)), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (s && s == capturing) return last = cudaErrorStreamCaptureUnsupported;
  tell(s ? "wait side" : "wait default");
  return state();
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return (void)s, cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  (void)s;
  (void)e;
  (void)flags;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = s && s == capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *n) {
  if (id) *id = 1;
  if (graph) *graph = NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (n) *n = 0;
  return cudaStreamIsCapturing(s, status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return (void)mode, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  (void)flags;
  return *e = (cudaEvent_t)malloc(1), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return free((void *)e), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  (void)e;
  if (s) tell("record side");
  return state();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) { return (void)flags, cudaEventRecord(e, s); }
/* An event of a side stream is ready when it has been waited for. */
cudaError_t cudaEventQuery(cudaEvent_t e) { return (void)e, getenv("FAKE_CUDA_BUSY") ? (last = cudaErrorNotReady) : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return (void)e, tell("wait event"), state(); }

/* ---- kernels */
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  (void)f;
  (void)grid;
  (void)block;
  (void)arguments;
  (void)shared;
  (void)s;
  return cudaSuccess;
}
/* What the compiler's launches call since CUDA 13. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *f);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *f) { return *kernel = (cudaKernel_t)f, cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s);
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return cudaLaunchKernel((const void *)k, grid, block, arguments, shared, s);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  (void)f;
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

/* ---- what torch asks for on its way, and may be refused or need not do anything */
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int d) { return (void)d, *pool = NULL, cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr a, void *v) { return (void)pool, (void)a, (void)v, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int d) { return snprintf(id, (size_t)n, "0000:%02x:00.0", d), cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { return (void)s, *priority = 0, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return (void)f, (void)a, (void)v, cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) {
  return (void)f, (void)block, (void)shared, (void)flags, *n = 1, cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : "fake error"; }
const char *cudaGetErrorName(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorFake"; }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) { return (void)p, memset(handle, 0, sizeof *handle), cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t e) { return (void)e, memset(handle, 0, sizeof *handle), cudaSuccess; }

/* For the tests: devices that have a context, as bits; bytes of pinned memory. */
unsigned fake_contexts(void);
unsigned fake_contexts(void) { return contexts; }
size_t fake_pinned(void);
size_t fake_pinned(void) { return pinned; }

/* For the tests: the stream that records a graph, or NULL. */
void fake_capture(cudaStream_t s) { capturing = s; }
/* Whether a kernel has failed. */
void fake_break(int is_broken) { broken = is_broken; }
/* How often it was asked what is free on a device. */
long fake_room_reads(int device) { return room_reads[device]; }

/* ---- the driver, as far as c10 asks it; this library also stands where libcuda.so.1 is looked for */
typedef int driver_result;
static driver_result unsupported(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }
driver_result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
driver_result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = device < count() && (contexts >> device & 1);
  return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  (void)version;
  (void)flags;
  *f = strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)unsupported : (void *)cuDevicePrimaryCtxGetState;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
