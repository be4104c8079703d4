/* stream.c: CUDA's calls for streams, events and host callbacks. */
#include "virtual_gpu/runtime/internal.h"

/* CUDA does not say how soon a destroyed stream's handle stands for another one. Here the next one gets it, also while
 * the old one still has work. */
struct handle {
  struct handle *next;
};
static struct handle *spare_handles;

struct event {
  unsigned flags;
  int device;
  struct op *record; /* the newest, a reference */
  struct capture *capture;
};
static struct event **events; /* live ones, to tell a handle from nonsense */
static size_t event_count, event_room;

/* ---- streams */

static cudaError_t create_stream(cudaStream_t *out, unsigned flags, int priority) {
  if (!out || (flags & ~(unsigned)cudaStreamNonBlocking)) return cudaErrorInvalidValue;
  sweep_streams();
  struct handle *handle = spare_handles ? spare_handles : calloc(1, sizeof *handle);
  struct stream *s = handle ? new_stream(current_device(), flags, priority > 0 ? 0 : priority < -5 ? -5 : priority) : NULL;
  if (!s) {
    if (handle != spare_handles) free(handle);
    return cudaErrorMemoryAllocation;
  }
  if (handle == spare_handles) spare_handles = handle->next;
  s->handle = handle;
  *out = (cudaStream_t)(void *)handle;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *out) {
  ENTER;
  return leave(create_stream(out, 0, 0));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  ENTER;
  return leave(create_stream(out, flags, 0));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  ENTER;
  return leave(create_stream(out, flags, priority));
}
#define FIND_STREAM(handle)                              \
  struct stream *s;                                      \
  const cudaError_t no_stream = find_stream((handle), &s); \
  if (no_stream != cudaSuccess) return leave(no_stream)
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  ENTER;
  FIND_STREAM(handle);
  if (s->is_legacy || handle == cudaStreamPerThread) return leave(cudaErrorInvalidResourceHandle);
  if (s->capture) return leave(cudaErrorStreamCaptureUnsupported);
  s->is_dead = true;
  s->handle->next = spare_handles;
  spare_handles = s->handle;
  s->handle = NULL;
  sweep_streams();
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  ENTER;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return leave(cudaSuccess);
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  ENTER;
  FIND_STREAM(handle);
  *priority = s->priority;
  return leave(cudaSuccess);
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
  ENTER;
  FIND_STREAM(handle);
  *flags = s->flags;
  return leave(cudaSuccess);
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
  ENTER;
  FIND_STREAM(handle);
  *device = s->device;
  return leave(cudaSuccess);
}
cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id) {
  ENTER;
  FIND_STREAM(handle);
  *id = s->id;
  return leave(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ENTER;
  FIND_STREAM(handle);
  cudaError_t error = refuse_recorded(s, s->device);
  if (error == cudaSuccess) error = unsafe_call();
  return leave(error != cudaSuccess ? error : host_waits(s));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ENTER;
  FIND_STREAM(handle);
  cudaError_t error = refuse_recorded(s, s->device);
  if (error == cudaSuccess) error = unsafe_call();
  if (error != cudaSuccess) return leave(error);
  if (!is_ready_after_asking(s->last)) return leave(cudaErrorNotReady);
  host_learns(&s->clock);
  return leave(devices[s->device].sticky);
}
cudaError_t cudaDeviceSynchronize(void) {
  ENTER;
  const int device = current_device();
  cudaError_t error = refuse_recorded(NULL, device);
  if (error == cudaSuccess) error = unsafe_call();
  if (error != cudaSuccess) return leave(error);
  for (struct stream *s = streams; s; s = s->next)
    if (s->device == device) (void)host_waits(s);
  return leave(devices[device].sticky);
}

/* ---- events */

static cudaError_t find_event(cudaEvent_t handle, struct event **out) {
  for (size_t i = event_count; i-- > 0;)
    if ((void *)events[i] == (void *)handle) return *out = events[i], devices[events[i]->device].sticky;
  return cudaErrorInvalidResourceHandle;
}
#define FIND_EVENT(handle)                               \
  struct event *e;                                       \
  const cudaError_t no_event = find_event((handle), &e); \
  if (no_event != cudaSuccess) return leave(no_event)

static cudaError_t create_event(cudaEvent_t *out, unsigned flags) {
  struct event *e = calloc(1, sizeof *e);
  if (e && event_count == event_room) {
    struct event **larger = realloc(events, (event_room ? 2 * event_room : 64) * sizeof *larger);
    if (!larger) return free(e), cudaErrorMemoryAllocation;
    events = larger;
    event_room = event_room ? 2 * event_room : 64;
  }
  if (!e) return cudaErrorMemoryAllocation;
  e->flags = flags;
  e->device = current_device();
  events[event_count++] = e;
  *out = (cudaEvent_t)(void *)e;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  ENTER;
  return leave(create_event(out, flags));
}
cudaError_t cudaEventCreate(cudaEvent_t *out) {
  ENTER;
  return leave(create_event(out, 0));
}
/* Operations that wait for the event hold its operation. */
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  ENTER;
  FIND_EVENT(handle);
  size_t i = 0;
  while (events[i] != e) i++;
  events[i] = events[--event_count];
  drop_op(e->record);
  free(e);
  return leave(cudaSuccess);
}
static cudaError_t record_event(cudaEvent_t handle, cudaStream_t stream) {
  FIND_EVENT(handle);
  FIND_STREAM(stream);
  if (e->device != s->device) return leave(cudaErrorInvalidResourceHandle);
  const cudaError_t implicit = refuse_legacy(s);
  if (implicit != cudaSuccess) return leave(implicit);
  struct op *op = new_op(RECORD, s);
  if (!op) return leave(cudaErrorMemoryAllocation);
  op->references++;
  drop_op(e->record);
  e->record = op;
  e->capture = s->capture;
  return leave(enqueue(op, NULL, 0));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER;
  return record_event(event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  ENTER;
  (void)flags;
  return record_event(event, stream);
}
static bool is_live(const struct capture *c) {
  const struct capture *live = captures;
  while (live && live != c) live = live->next;
  return live != NULL;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  ENTER;
  (void)flags;
  FIND_STREAM(stream);
  FIND_EVENT(event);
  const cudaError_t implicit = refuse_legacy(s);
  if (implicit != cudaSuccess) return leave(implicit);
  if (!e->record) return leave(cudaSuccess);
  if (e->capture && is_live(e->capture)) { /* the stream joins the recording */
    if (s->is_legacy) return leave(cudaErrorStreamCaptureImplicit);
    s->capture = e->capture;
    return leave(cudaSuccess);
  }
  if (e->capture) return leave(cudaErrorCapturedEvent);
  if (s->capture) {
    s->capture->invalid = true;
    return leave(cudaErrorStreamCaptureIsolation);
  }
  struct op *op = new_op(WAIT, s);
  if (!op) return leave(cudaErrorMemoryAllocation);
  op_waits(op, e->record);
  clock_join(&s->clock, &e->record->clock); /* also of one that has run */
  return leave(enqueue(op, NULL, 0));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER;
  FIND_EVENT(event);
  if (e->capture) return leave(cudaErrorCapturedEvent);
  const cudaError_t unsafe = unsafe_call();
  if (unsafe != cudaSuccess) return leave(unsafe);
  if (!is_ready_after_asking(e->record)) return leave(cudaErrorNotReady);
  if (e->record) host_learns(&e->record->clock);
  return leave(devices[e->device].sticky);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER;
  FIND_EVENT(event);
  if (e->capture) return leave(cudaErrorCapturedEvent);
  const cudaError_t unsafe = unsafe_call();
  if (unsafe != cudaSuccess || !e->record) return leave(unsafe);
  struct op *record = e->record;
  record->references++; /* another thread may record the event anew, or destroy it */
  const cudaError_t error = run_until(record);
  host_learns(&record->clock);
  drop_op(record);
  return leave(error);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  ENTER;
  struct event *a, *b;
  cudaError_t error = find_event(start, &a);
  if (error == cudaSuccess) error = find_event(end, &b);
  if (error != cudaSuccess) return leave(error);
  if (!a->record || !b->record || ((a->flags | b->flags) & cudaEventDisableTiming)) return leave(cudaErrorInvalidResourceHandle);
  if (a->record->state != DONE || b->record->state != DONE) return leave(cudaErrorNotReady);
  *ms = (float)((double)(int64_t)(b->record->ends_ns - a->record->ends_ns) / 1e6);
  return leave(cudaSuccess);
}

/* ---- host callbacks */

struct callback {
  cudaStream_t stream;
  cudaStreamCallback_t function;
  void *data;
};
static void call_back(void *data) {
  const struct callback *c = data;
  c->function(c->stream, cudaSuccess, c->data);
}
static cudaError_t enqueue_host(struct stream *s, void (*run)(void *), void (*drop)(void *), void *data) {
  const cudaError_t implicit = refuse_legacy(s);
  struct op *op = implicit == cudaSuccess ? new_op(HOST, s) : NULL;
  if (!op) return implicit != cudaSuccess ? implicit : cudaErrorMemoryAllocation;
  op->run = run;
  op->drop = drop;
  op->data = data;
  return enqueue(op, NULL, 0);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  ENTER;
  FIND_STREAM(stream);
  return leave(enqueue_host(s, function, NULL, data));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  ENTER;
  FIND_STREAM(stream);
  if (flags || !function) return leave(cudaErrorInvalidValue);
  if (s->capture) return s->capture->invalid = true, leave(cudaErrorStreamCaptureUnsupported);
  struct callback *c = malloc(sizeof *c);
  if (!c) return leave(cudaErrorMemoryAllocation);
  *c = (struct callback){stream, function, data};
  return leave(enqueue_host(s, call_back, free, c));
}
