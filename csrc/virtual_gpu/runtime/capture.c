/* capture.c: recording streams into graphs, what is forbidden meanwhile, and launching what was recorded.
 *
 * A recorded operation does not run. A graph keeps its operations in the order in which they were recorded, which is one that their
 * streams and events allow; a launch runs them so.
 */
#include "virtual_gpu/runtime/internal.h"

struct capture *captures;
static unsigned long long made;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* A call that may touch what is being recorded. Which recordings forbid it depends on their mode and on this thread's. */
cudaError_t unsafe_call(void) {
  cudaError_t error = cudaSuccess;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
  for (struct capture *c = captures; c; c = c->next) {
    const bool own = pthread_equal(c->thread, pthread_self()) != 0;
    const bool forbids = own ? c->mode != cudaStreamCaptureModeRelaxed : c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    c->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t refuse_recorded(struct stream *s, int device) {
  cudaError_t error = s ? refuse_legacy(s) : cudaSuccess;
  for (struct stream *other = s ? s : streams; other; other = s ? NULL : other->next) {
    if (!other->capture || other->device != device) continue;
    other->capture->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

/* The legacy default stream waits for all streams that do not say otherwise, and a recorded one cannot be waited for. */
cudaError_t refuse_legacy(struct stream *s) {
  cudaError_t error = cudaSuccess;
  for (struct stream *other = s->is_legacy ? streams : NULL; other; other = other->next) {
    if (!other->capture || other->device != s->device || (other->flags & cudaStreamNonBlocking)) continue;
    other->capture->invalid = true;
    error = cudaErrorStreamCaptureImplicit;
  }
  return error;
}

#define ON(handle)                                         \
  ENTER;                                                   \
  struct stream *s;                                        \
  const cudaError_t no_stream = find_stream((handle), &s); \
  if (no_stream != cudaSuccess) return leave(no_stream)

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  ON(stream);
  if (s->is_legacy) return leave(cudaErrorStreamCaptureUnsupported);
  if (s->capture) return leave(cudaErrorIllegalState);
  struct capture *c = calloc(1, sizeof *c);
  struct graph *g = calloc(1, sizeof *g);
  if (!c || !g) return free(c), free(g), leave(cudaErrorMemoryAllocation);
  g->references = 1;
  *c = (struct capture){.next = captures, .id = ++made, .mode = mode, .thread = pthread_self(), .origin = s, .graph = g};
  captures = s->capture = c;
  return leave(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  ON(stream);
  *graph = NULL;
  struct capture *c = s->capture;
  if (!c) return leave(cudaErrorIllegalState);
  if (c->origin != s) return c->invalid = true, leave(cudaErrorStreamCaptureUnmatched);
  if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self())) return leave(cudaErrorStreamCaptureWrongThread);
  for (struct stream *other = streams; other; other = other->next)
    if (other->capture == c) other->capture = NULL;
  struct capture **p = &captures;
  while (*p != c) p = &(*p)->next;
  *p = c->next;
  const bool invalid = c->invalid;
  if (invalid) drop_graph(c->graph);
  else *graph = (cudaGraph_t)(void *)c->graph;
  free(c);
  return leave(invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

static enum cudaStreamCaptureStatus status_of(const struct stream *s) {
  return !s->capture ? cudaStreamCaptureStatusNone : s->capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  ON(stream);
  /* one may not even ask the default stream while it would have to wait for a recorded one */
  for (struct stream *other = s->is_legacy ? streams : NULL; other; other = other->next)
    if (other->capture && other->device == s->device && !(other->flags & cudaStreamNonBlocking)) return leave(cudaErrorStreamCaptureImplicit);
  *status = status_of(s);
  return leave(cudaSuccess);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
  ON(stream);
  *status = status_of(s);
  if (id) *id = s->capture ? s->capture->id : 0;
  if (graph) *graph = s->capture ? (cudaGraph_t)(void *)s->capture->graph : NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return leave(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  ENTER_LIGHT;
  const enum cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return leave(cudaSuccess);
}

/* ---- graphs; what can be launched is the graph itself, which nothing here changes once it is recorded */

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  ENTER;
  const struct graph *g = (const void *)graph;
  size_t n = 0;
  for (struct op *op = nodes ? g->first : NULL; op && n < *count; op = op->next) nodes[n++] = (cudaGraphNode_t)(void *)op;
  *count = nodes ? n : g->count;
  return leave(cudaSuccess);
}
static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph) {
  struct graph *g = (void *)graph;
  if (!g) return cudaErrorInvalidValue;
  g->references++;
  *out = (cudaGraphExec_t)(void *)g;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  ENTER;
  (void)flags;
  return leave(instantiate(out, graph));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  ENTER;
  (void)flags;
  return leave(instantiate(out, graph));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ENTER;
  drop_graph((void *)graph);
  return leave(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  ENTER;
  drop_graph((void *)graph);
  return leave(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ON(stream);
  struct graph *g = (void *)graph;
  if (s->capture) return s->capture->invalid = true, leave(cudaErrorStreamCaptureUnsupported);
  size_t count = 0, i = 0;
  for (const struct op *n = g->first; n; n = n->next) count += n->access_count;
  struct access *accesses = malloc((count + 1) * sizeof *accesses);
  struct op *op = accesses ? new_op(GRAPH, s) : NULL;
  if (!op) return free(accesses), leave(cudaErrorMemoryAllocation);
  for (const struct op *n = g->first; n; n = n->next)
    for (size_t k = 0; k < n->access_count; k++) accesses[i++] = n->accesses[k];
  op->graph = g;
  g->references++;
  const cudaError_t error = enqueue(op, accesses, count);
  free(accesses);
  return leave(error);
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType a, void *value) {
  ENTER_LIGHT;
  (void)device, (void)a;
  *(uint64_t *)value = 0; /* graphs own no memory here */
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType a, void *value) {
  ENTER_LIGHT;
  (void)device, (void)a, (void)value;
  return leave(cudaSuccess);
}

/* What torch hangs on a graph dies with the program: the objects are few. */
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *p, cudaHostFn_t destroy, unsigned references, unsigned flags) {
  ENTER;
  (void)p, (void)destroy, (void)references, (void)flags;
  *object = NULL;
  return leave(cudaErrorNotSupported);
}
