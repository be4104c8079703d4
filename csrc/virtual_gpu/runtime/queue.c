/* queue.c: the streams that there are, and which of them wait for each other by themselves.
 *
 * Streams are never taken from the list while anything of theirs is queued; a destroyed one ends when it has run.
 */
#include "virtual_gpu/runtime/internal.h"

struct stream *streams;
static uint64_t made;
static _Thread_local struct stream *own[DEVICES]; /* this thread's default streams */

struct stream *new_stream(int device, unsigned flags, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->device = device;
  s->flags = flags;
  s->priority = priority;
  s->actor = -2; /* when it is used first: torch makes many that it never uses */
  s->index = -1;
  s->id = ++made;
  s->next = streams;
  return streams = s;
}

static struct stream *legacy_stream(int device) {
  struct stream **s = &devices[device].legacy;
  if (!*s && (*s = new_stream(device, 0, 0))) (*s)->is_legacy = true;
  return *s;
}

void sweep_streams(void) {
  for (struct stream **p = &streams; *p;) {
    struct stream *s = *p;
    if (!s->is_dead || s->head) {
      p = &s->next;
      continue;
    }
    *p = s->next;
    drop_op(s->last);
    free_actor(s->actor);
    clock_free(&s->clock);
    free(s);
  }
}

cudaError_t find_stream(cudaStream_t handle, struct stream **out) {
  const int device = current_device();
  *out = NULL;
  if (handle == NULL || handle == cudaStreamLegacy) {
    *out = legacy_stream(device);
  } else if (handle == cudaStreamPerThread) {
    if (!own[device]) own[device] = new_stream(device, 0, 0);
    *out = own[device];
  } else {
    struct stream *s = streams;
    while (s && (void *)s->handle != (void *)handle) s = s->next;
    if (!s) return cudaErrorInvalidResourceHandle;
    *out = s;
  }
  return *out ? devices[(*out)->device].sticky : cudaErrorMemoryAllocation;
}

/* A stream that does not say otherwise waits for the default stream of its device, which waits for all such streams. */
void before_enqueue(struct stream *s, struct op *op) {
  if (s->flags & cudaStreamNonBlocking) return;
  if (!s->is_legacy) {
    struct stream *legacy = devices[s->device].legacy;
    if (!legacy) return;
    op_waits(op, legacy->last);
    clock_join(&s->clock, &legacy->clock);
    return;
  }
  for (struct stream *other = streams; other; other = other->next) {
    if (other == s || other->device != s->device || (other->flags & cudaStreamNonBlocking)) continue;
    op_waits(op, other->last);
    clock_join(&s->clock, &other->clock);
  }
}
