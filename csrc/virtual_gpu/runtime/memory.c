/* memory.c: CUDA's calls for memory of devices and pinned memory.
 *
 * All of it is the host's: a device's address is a host address that only the runtime and kernels may touch. What is
 * freed is unmapped, so that a use of it shows.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "virtual_gpu/runtime/internal.h"

enum { POISONED = 32 << 20 }; /* larger blocks stay untouched, so that a large device costs no host memory */

static size_t pinned_bytes;

static void *map(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

/* ---- a device's memory */

static cudaError_t allocate(int device, size_t bytes, void **out) {
  *out = NULL;
  if (!bytes) return cudaSuccess;
  if (bytes > SIZE_MAX / 2) return cudaErrorMemoryAllocation;
  const size_t size = round_up(bytes, 512);
  if (!take(device, size)) return cudaErrorMemoryAllocation;
  void *p = map(round_up(size, 4096));
  if (!p || !add_block((struct block){.address = (uintptr_t)p, .bytes = size, .memory = DEVICE, .device = device})) {
    if (p) (void)munmap(p, round_up(size, 4096));
    give(device, size);
    return cudaErrorMemoryAllocation;
  }
  if (size <= POISONED) memset(p, 0xA5, size);
  *out = p;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
  ENTER;
  const cudaError_t unsafe = unsafe_call();
  return leave(unsafe != cudaSuccess ? unsafe : allocate(current_device(), bytes, p));
}

static struct block *own_block(void *p, enum memory memory) {
  struct block *b = find_block(p);
  return b && b->address == (uintptr_t)p && b->memory == memory && !b->physical ? b : NULL;
}

/* The memory is given back at once, so no work may still use it, also none on streams of other devices, for which this
 * call does not wait. */
static void check_free(const struct block *b) { check_access((struct access){(void *)b->address, b->bytes, true}, host_clock(), host_epoch(here(NULL))); }

cudaError_t cudaFree(void *p) {
  ENTER;
  const cudaError_t unsafe = unsafe_call();
  if (unsafe != cudaSuccess || !p) return leave(unsafe);
  const struct block *b = own_block(p, DEVICE);
  if (!b || b->late) return leave(cudaErrorInvalidValue);
  const int device = b->device;
  for (struct stream *s = streams; s; s = s->next)
    if (s->device == device) (void)host_waits(s);
  b = own_block(p, DEVICE);
  if (!b) return leave(cudaErrorInvalidValue);
  check_free(b);
  release(p);
  return leave(devices[device].sticky);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  ENTER;
  const struct device *d = &devices[current_device()];
  *total = d->bytes;
  *available = d->bytes - d->used;
  return leave(cudaSuccess);
}

size_t vgpu_bytes(int device) {
  lock();
  const size_t bytes = device < 0 ? pinned_bytes : device < device_count() ? devices[device].used : 0;
  unlock();
  return bytes;
}

/* ---- in the order of a stream */

static cudaError_t allocate_async(void **p, size_t bytes, struct stream *s) {
  if (s->capture) return s->capture->invalid = true, cudaErrorStreamCaptureUnsupported;
  cudaError_t error = allocate(s->device, bytes, p);
  if (error == cudaErrorMemoryAllocation) { /* what is freed later makes room now */
    error = drain_device(s->device);
    if (error == cudaSuccess) error = allocate(s->device, bytes, p);
  }
  if (error != cudaSuccess || !*p) return error;
  /* no use may begin before the stream has come here */
  struct op *op = new_op(KERNEL, s);
  const struct access whole = {*p, bytes, true};
  return op ? enqueue(op, &whole, 1) : cudaErrorMemoryAllocation;
}
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
  ENTER;
  struct stream *s;
  const cudaError_t error = find_stream(stream, &s);
  return leave(error != cudaSuccess ? error : allocate_async(p, bytes, s));
}
cudaError_t cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  ENTER;
  (void)pool;
  struct stream *s;
  const cudaError_t error = find_stream(stream, &s);
  return leave(error != cudaSuccess ? error : allocate_async(p, bytes, s));
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
  ENTER;
  struct stream *s;
  const cudaError_t error = find_stream(stream, &s);
  if (error != cudaSuccess || !p) return leave(error);
  struct block *b = own_block(p, DEVICE);
  if (!b || b->late) return leave(cudaErrorInvalidValue);
  if (s->capture) return s->capture->invalid = true, leave(cudaErrorStreamCaptureUnsupported);
  struct op *op = new_op(FREE, s);
  if (!op) return leave(cudaErrorMemoryAllocation);
  b->late = true;
  op->part.to = p;
  const struct access whole = {p, b->bytes, true};
  return leave(enqueue(op, &whole, 1));
}

/* Pools: one a device, whose unused memory goes back at once. */
static char pools[DEVICES];
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  ENTER_LIGHT;
  if (device < 0 || device >= device_count()) return leave(cudaErrorInvalidDevice);
  *pool = (cudaMemPool_t)(void *)&pools[device];
  return leave(cudaSuccess);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr a, void *value) {
  ENTER_LIGHT;
  (void)pool;
  (void)a;
  (void)value;
  return leave(cudaSuccess);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr a, void *value) {
  ENTER_LIGHT;
  const size_t device = (size_t)((char *)(void *)pool - pools);
  if (device >= (size_t)device_count()) return leave(cudaErrorInvalidValue);
  if (a <= cudaMemPoolReuseAllowInternalDependencies) *(int *)value = 0;
  else *(uint64_t *)value = a == cudaMemPoolAttrReleaseThreshold ? 0 : devices[device].used;
  return leave(cudaSuccess);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  ENTER_LIGHT;
  (void)pool;
  (void)bytes;
  return leave(cudaSuccess);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count) {
  ENTER_LIGHT;
  (void)pool;
  (void)list;
  (void)count;
  return leave(cudaSuccess);
}

/* ---- pinned memory */

static cudaError_t allocate_pinned(void **p, size_t bytes, unsigned flags) {
  *p = NULL;
  const cudaError_t unsafe = unsafe_call();
  if (unsafe != cudaSuccess || !bytes) return unsafe;
  const size_t size = round_up(bytes, 4096), most = setting("VIRTUAL_GPU_PINNED_BYTES", SIZE_MAX);
  if (size > most - (pinned_bytes < most ? pinned_bytes : most)) return cudaErrorMemoryAllocation;
  void *address = map(size);
  if (!address || !add_block((struct block){.address = (uintptr_t)address, .bytes = size, .memory = PINNED, .device = current_device(), .flags = flags}))
    return cudaErrorMemoryAllocation;
  pinned_bytes += size;
  *p = address;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  ENTER;
  return leave(allocate_pinned(p, bytes, flags));
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
  ENTER;
  return leave(allocate_pinned(p, bytes, 0));
}
/* CUDA does not promise to wait, so the caller must have waited. */
static cudaError_t free_pinned(void *p, bool registered) {
  const cudaError_t unsafe = unsafe_call();
  if (unsafe != cudaSuccess || (!p && !registered)) return unsafe;
  struct block *b = own_block(p, PINNED);
  if (!b || b->registered != registered) return registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
  const size_t bytes = b->bytes;
  check_free(b);
  remove_block(b);
  pinned_bytes -= bytes;
  if (!registered) (void)munmap(p, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
  ENTER;
  return leave(free_pinned(p, false));
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  ENTER;
  if (!p || !bytes) return leave(cudaErrorInvalidValue);
  if (any_block_in(p, bytes)) return leave(cudaErrorHostMemoryAlreadyRegistered);
  const struct block b = {.address = (uintptr_t)p, .bytes = bytes, .memory = PINNED, .device = current_device(), .registered = true, .flags = flags};
  if (!add_block(b)) return leave(cudaErrorMemoryAllocation);
  pinned_bytes += bytes;
  return leave(cudaSuccess);
}
cudaError_t cudaHostUnregister(void *p) {
  ENTER;
  return leave(free_pinned(p, true));
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  ENTER;
  (void)flags;
  const struct block *b = find_block(host);
  if (!b || b->memory != PINNED) return leave(cudaErrorInvalidValue);
  *device = host;
  return leave(cudaSuccess);
}
cudaError_t cudaHostGetFlags(unsigned *flags, void *host) {
  ENTER;
  const struct block *b = find_block(host);
  if (!b || b->memory != PINNED) return leave(cudaErrorInvalidValue);
  *flags = b->flags;
  return leave(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  ENTER;
  const struct block *b = find_block(p);
  memset(a, 0, sizeof *a);
  a->type = !b ? cudaMemoryTypeUnregistered : b->memory == DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  a->device = b ? b->device : cudaInvalidDeviceId;
  if (b) a->devicePointer = (void *)(uintptr_t)p;
  if (b && b->memory == PINNED) a->hostPointer = (void *)(uintptr_t)p;
  return leave(cudaSuccess);
}

/* ---- other processes: a handle can be made, but not opened */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
  ENTER;
  if (!find_block(p)) return leave(cudaErrorInvalidValue);
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &p, sizeof p);
  return leave(cudaSuccess);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  ENTER;
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &event, sizeof event);
  return leave(cudaSuccess);
}
