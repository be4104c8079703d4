/* copy.c: copies and fills, and when the host waits for them.
 *
 * A copy keeps its pointers and reads them when it runs, unless the host's bytes are pageable: then CUDA has read them
 * when the call returns, or has written them. Pinned memory is the host's only after a wait.
 */
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

static size_t extent(size_t bytes, size_t rows, size_t pitch) { return rows ? (rows - 1) * pitch + bytes : 0; }

static bool fits_kind(enum cudaMemcpyKind kind, enum memory to, enum memory from) {
  const bool host_to = kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost;
  const bool host_from = kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice;
  if (kind == cudaMemcpyDefault) return true;
  /* a device reaches pinned memory too, so that may be called either */
  return (host_to ? to != DEVICE : to != PAGEABLE) && (host_from ? from != DEVICE : from != PAGEABLE);
}

/* The bytes of a pageable source as they are now. */
static bool stage(struct op *op) {
  struct part *p = &op->part;
  op->staged = malloc(p->rows * p->bytes);
  if (!op->staged) return false;
  const struct part now = {.to = op->staged, .from = p->from, .bytes = p->bytes, .rows = p->rows, .to_pitch = p->bytes, .from_pitch = p->from_pitch};
  do_part(&now, false);
  p->from = op->staged;
  p->from_pitch = p->bytes;
  return true;
}

/* `waits`: one of the functions without "Async". */
static cudaError_t copy(struct part p, enum cudaMemcpyKind kind, struct stream *s, bool waits) {
  enum memory to, from;
  int to_device, from_device;
  if (!p.bytes || !p.rows) return cudaSuccess;
  cudaError_t error = refuse_legacy(s);
  if (error == cudaSuccess && waits) error = unsafe_call();
  if (error != cudaSuccess) return error;
  if (!p.to || !p.from || !memory_at(p.to, extent(p.bytes, p.rows, p.to_pitch), &to, &to_device) ||
      !memory_at(p.from, extent(p.bytes, p.rows, p.from_pitch), &from, &from_device))
    return cudaErrorInvalidValue;
  if (!fits_kind(kind, to, from)) return cudaErrorInvalidValue;
  if (s->capture && (to == PAGEABLE || from == PAGEABLE)) return s->capture->invalid = true, cudaErrorStreamCaptureUnsupported;
  const bool inside = to == DEVICE && from == DEVICE, host_only = to != DEVICE && from != DEVICE;
  const struct access accesses[] = {{p.from, extent(p.bytes, p.rows, p.from_pitch), false}, {p.to, extent(p.bytes, p.rows, p.to_pitch), true}};
  if (waits && from == PAGEABLE && to == DEVICE) error = host_waits(s);
  struct op *op = error == cudaSuccess ? new_op(COPY, s) : NULL;
  if (!op) return error != cudaSuccess ? error : cudaErrorMemoryAllocation;
  op->part = p;
  op->part.to_block = block_number(p.to);
  op->part.from_block = block_number(p.from);
  if (from == PAGEABLE && to == DEVICE && !stage(op)) return drop_op(op), cudaErrorMemoryAllocation;
  error = enqueue(op, accesses, 2);
  if (error != cudaSuccess || s->capture) return error;
  const bool pageable_in = from == PAGEABLE && to == DEVICE;
  if (to == PAGEABLE || host_only || (waits && !inside && !pageable_in)) return host_waits(s);
  return cudaSuccess;
}

static cudaError_t fill(struct part p, struct stream *s, bool waits) {
  enum memory to;
  int device;
  if (!p.bytes || !p.rows) return cudaSuccess;
  cudaError_t error = refuse_legacy(s);
  if (error == cudaSuccess && waits) error = unsafe_call();
  if (error != cudaSuccess) return error;
  const struct access access = {p.to, extent(p.bytes, p.rows, p.to_pitch), true};
  if (!memory_at(p.to, access.bytes, &to, &device) || to == PAGEABLE) return cudaErrorInvalidValue;
  struct op *op = new_op(FILL, s);
  if (!op) return cudaErrorMemoryAllocation;
  op->part = p;
  op->part.to_block = block_number(p.to);
  error = enqueue(op, &access, 1);
  return error == cudaSuccess && waits && to == PINNED ? host_waits(s) : error;
}

static struct part flat(void *to, const void *from, size_t bytes) { return (struct part){.to = to, .from = from, .bytes = bytes, .rows = 1, .to_pitch = bytes, .from_pitch = bytes}; }
static struct part filling(void *to, int value, int width, size_t bytes) { return (struct part){.to = to, .bytes = bytes, .rows = 1, .to_pitch = bytes, .value = value, .width = width}; }

#define ON(handle)                                         \
  ENTER;                                                   \
  struct stream *s;                                        \
  const cudaError_t no_stream = find_stream((handle), &s); \
  if (no_stream != cudaSuccess) return leave(no_stream)

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  ON(stream);
  return leave(copy(flat(to, from, bytes), kind, s, false));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  ON(NULL);
  return leave(copy(flat(to, from, bytes), kind, s, true));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
  ON(stream);
  (void)to_device;
  (void)from_device;
  return leave(copy(flat(to, from, bytes), cudaMemcpyDeviceToDevice, s, false));
}
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  ON(NULL);
  (void)to_device;
  (void)from_device;
  return leave(copy(flat(to, from, bytes), cudaMemcpyDeviceToDevice, s, true));
}
static struct part rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
  return (struct part){.to = to, .from = from, .bytes = width, .rows = height, .to_pitch = to_pitch, .from_pitch = from_pitch};
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  ON(stream);
  if (width > to_pitch || width > from_pitch) return leave(cudaErrorInvalidValue);
  return leave(copy(rows(to, to_pitch, from, from_pitch, width, height), kind, s, false));
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind) {
  ON(NULL);
  if (width > to_pitch || width > from_pitch) return leave(cudaErrorInvalidValue);
  return leave(copy(rows(to, to_pitch, from, from_pitch, width, height), kind, s, true));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  ON(stream);
  return leave(fill(filling(to, value, 1, bytes), s, false));
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  ON(NULL);
  return leave(fill(filling(to, value, 1, bytes), s, true));
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  DRIVER_ENTER;
  struct stream *s;
  const cudaError_t no_stream = find_stream((cudaStream_t)stream, &s);
  return leave_driver(no_stream != cudaSuccess ? no_stream : fill(filling((void *)to, (int)value, 4, 4 * count), s, false));
}
