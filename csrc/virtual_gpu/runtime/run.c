/* run.c: operations of streams, and what runs when.
 *
 * An operation waits for the one before it in its stream and for those in `waits`. It runs when a caller needs its
 * result: then all that it waits for runs, and nothing else, unless a seed says so. Each begins later than every
 * operation that it waits for, so no waits go in a circle.
 */
#include "virtual_gpu/runtime/internal.h"

static long pending;
static struct stream **busy; /* streams with operations that have not run */
static int busy_count, busy_room;

static bool set_busy(struct stream *s) {
  if (s->index >= 0) return true;
  if (busy_count == busy_room) {
    const int room = busy_room ? 2 * busy_room : 64;
    struct stream **larger = realloc(busy, (size_t)room * sizeof *larger);
    if (!larger) return false;
    busy = larger;
    busy_room = room;
  }
  s->index = busy_count;
  busy[busy_count++] = s;
  return true;
}
static void set_idle(struct stream *s) {
  struct stream *other = busy[--busy_count];
  busy[s->index] = other;
  other->index = s->index;
  s->index = -1;
}

static void *run_callbacks(void *unused);

/* A program may wait for a host callback by means that are not CUDA's: so they run some time. */
static void watch_callbacks(void) {
  static bool started;
  pthread_t thread;
  if (started) return;
  started = pthread_create(&thread, NULL, run_callbacks, NULL) == 0;
  if (started) (void)pthread_detach(thread);
}

cudaError_t enqueue(struct op *op, const struct access *accesses, size_t count) {
  struct stream *s = op->stream;
  if (s->capture) return record_op(op, accesses, count);
  if (!set_busy(s)) return drop_op(op), cudaErrorMemoryAllocation;
  if (s->actor == -2)
    s->actor = s->is_legacy ? new_actor("cuda:%d's default stream", s->device) : new_actor("cuda:%d's stream %llu", s->device, (unsigned long long)s->id);
  before_enqueue(s, op);
  clock_join(&s->clock, host_clock());
  const uint32_t site = op->at.site ? op->at.site : count ? here(NULL) : 0;
  op->at = (struct epoch){s->actor, site, clock_tick(&s->clock, s->actor)};
  if (op->kind == RECORD || op->kind == KERNEL) clock_copy(&op->clock, &s->clock);
  for (size_t i = 0; i < count; i++) check_access(accesses[i], &s->clock, op->at);
  host_ticks();
  if (s->tail) s->tail->next = op;
  else s->head = op;
  s->tail = op;
  drop_op(s->last);
  s->last = op;
  op->references++;
  pending++;
  if (op->kind == HOST) watch_callbacks();
  return cudaSuccess;
}

/* A kernel that this thread computes just now: what it asks for inside cannot wait for it. */
static bool is_mine(const struct op *op) { return op->kind == KERNEL && op->depth && pthread_equal(op->owner, pthread_self()); }
static bool is_over(const struct op *op) { return op->state == DONE || is_mine(op); }

static uint64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sets when the operation ends. With VIRTUAL_GPU_OPERATION_NS it begins when all that it waits for has ended, and only
 * copies, fills, kernels and graphs take time: elapsed times then depend on the program alone, in every order. */
static void set_end(struct op *op) {
  static uint64_t takes = UINT64_MAX;
  if (takes == UINT64_MAX) takes = setting("VIRTUAL_GPU_OPERATION_NS", 0);
  if (takes == 0) {
    op->ends_ns = op->kind == RECORD ? now_ns() : 0;
    return;
  }
  struct stream *s = op->stream;
  if (op->ends_ns < s->ends_ns) op->ends_ns = s->ends_ns;
  for (size_t i = 0; i < op->wait_count; i++)
    if (op->ends_ns < op->waits[i]->ends_ns) op->ends_ns = op->waits[i]->ends_ns;
  if (op->kind == COPY || op->kind == FILL || op->kind == KERNEL) op->ends_ns += takes;
  if (op->kind == GRAPH) op->ends_ns += takes * op->graph->count;
  s->ends_ns = op->ends_ns;
}

void finish_op(struct op *op) {
  struct stream *s = op->stream;
  set_end(op);
  op->state = DONE;
  pending--;
  while (s->head && s->head->state == DONE) {
    struct op *first = s->head;
    s->head = first->next;
    if (!s->head) s->tail = NULL;
    first->next = NULL;
    for (size_t i = 0; i < first->wait_count; i++) drop_op(first->waits[i]);
    first->wait_count = 0;
    drop_op(first);
  }
  if (!s->head) set_idle(s);
  tell_change();
}

static void execute(struct op *op) {
  cudaError_t *sticky = &devices[op->device].sticky;
  op->state = RUNNING;
  op->references++;
  if (*sticky != cudaSuccess && op->kind != FREE) { /* nothing runs any more in a context that has failed */
    finish_op(op);
    drop_op(op);
    return;
  }
  switch (op->kind) {
    case COPY:
    case FILL:
      if (still_there(&op->part, op->kind == FILL)) do_part(&op->part, op->kind == FILL);
      else *sticky = cudaErrorIllegalAddress;
      break;
    case HOST:
      unlock();
      op->run(op->data);
      lock();
      break;
    case FAIL: *sticky = op->error; break;
    case FREE: release(op->part.to); break;
    case GRAPH: run_graph(op->graph); break;
    default: break;
  }
  finish_op(op);
  drop_op(op);
}

static struct op *first_of(const struct stream *s) {
  struct op *op = s->head;
  while (op && is_over(op)) op = op->next;
  return op;
}
static struct op *unmet(const struct op *op) {
  for (size_t i = 0; i < op->wait_count; i++)
    if (!is_over(op->waits[i])) return op->waits[i];
  return NULL;
}
static bool can_run(const struct op *op) { return op && op->state == QUEUED && !(op->kind == KERNEL && op->depth) && !unmet(op); }

void let_run(void) {
  uint64_t r;
  while (busy_count && (r = next_random()) != 0 && (r & 3) == 0) {
    struct op *op = first_of(busy[(r >> 8) % (uint64_t)busy_count]);
    if (can_run(op)) execute(op);
  }
}

/* The operation that must run next for this one, or NULL when other threads have to finish something. */
static struct op *next_for(struct op *op) {
  for (;;) {
    struct op *first = first_of(op->stream);
    if (!first || first->state == RUNNING || (first->kind == KERNEL && first->depth)) return NULL;
    struct op *before = unmet(first);
    if (!before) return first;
    op = before;
  }
}

cudaError_t run_until(struct op *op) {
  if (!op) return cudaSuccess;
  op->references++;
  while (!is_over(op)) {
    let_run();
    if (is_over(op)) break;
    struct op *next = next_for(op);
    if (next) execute(next);
    else wait_for_change();
  }
  const cudaError_t error = devices[op->device].sticky;
  drop_op(op);
  return error;
}

static cudaError_t drain_stream(struct stream *s) { return run_until(s->last); }

cudaError_t host_waits(struct stream *s) {
  struct clock known = {0};
  clock_copy(&known, &s->clock); /* other threads may go on with the stream meanwhile */
  const cudaError_t error = drain_stream(s);
  host_learns(&known);
  clock_free(&known);
  return error;
}

cudaError_t drain_device(int device) {
  for (struct stream *s = streams; s; s = s->next)
    if (s->device == device) (void)drain_stream(s);
  return devices[device].sticky;
}

bool is_ready_after_asking(struct op *op) {
  if (!op || is_over(op)) return true;
  let_run();
  if (!is_over(op) && ++op->asked >= (int)setting("VIRTUAL_GPU_PATIENCE", PATIENCE)) (void)run_until(op);
  return is_over(op);
}

static struct op *oldest_callback(void) {
  for (int i = 0; i < busy_count; i++)
    for (struct op *op = busy[i]->head; op; op = op->next)
      if (op->kind == HOST && op->state == QUEUED) return op;
  return NULL;
}
static void *run_callbacks(void *unused) {
  for (;;) {
    const struct timespec while_ = {0, 20 * 1000 * 1000};
    (void)nanosleep(&while_, NULL);
    lock();
    struct op *op = oldest_callback();
    if (op) (void)run_until(op);
    unlock();
  }
  return unused;
}

long vgpu_pending(void) {
  lock();
  const long n = pending;
  unlock();
  return n;
}
