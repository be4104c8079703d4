/* clock.c: virtual time of simulated devices: issues operations, and answers queries of times.
 *
 * Each thread of the program, each stream of each device and each directed link has its own time, which only moves
 * forward. An operation starts when all that it needs are free, and occupies them until its end; the thread only issues
 * it, which takes a while, and goes on until it waits. The same calls give the same times: no real clock is read here,
 * and the clock uses neither a machine nor real memory.
 *
 * Threads wait for each other in ways that the clock does not see: the engine's for the backward call, that call for
 * the engine's, workers for their start. They share the devices, so a thread that issues to a device moves to the time
 * at which any thread issued there last. Threads that share no device share the interpreter's lock, if it is simulated
 * (clock_lock.c), and are independent otherwise.
 *
 * An operator's time is the roofline max(flops / rate, bytes / bandwidth) (Williams, Waterman, Patterson, CACM 52(4),
 * 2009) plus a fixed launch. The rate depends on the kind of arithmetic and on the numbers it works on. clock_flow.c
 * finds when a copy begins and ends.
 */
#include "clock/internal_clock.h"
#include "clock/clock_testing.h"

#define HOST MGD_CLOCK_HOST

/* Finds the stream, or returns an error code. */
static int find_stream(const struct mgd_clock *c, int device, int stream, struct mgd_clock_stream **out) {
  if (!mgd_clock_is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  if (stream < 0 || stream >= MGD_MAX_STREAMS) {
    return MGD_E_INVALID;
  }
  *out = &mgd_clock_place_of(c, device)->streams[stream];
  return MGD_OK;
}

static bool is_work(const struct mgd_work *w) {
  return (unsigned)w->kind < MGD_WORK_KINDS && (unsigned)w->precision < MGD_PRECISIONS && mgd_is_amount(w->flops) &&
         mgd_is_amount(w->bytes);
}

/* ---- create and destroy */

static int fill_clock(struct mgd_clock *c) {
  const size_t places = (size_t)c->devices + 1;
  c->places = mgd_alloc_new(&c->alloc, places, sizeof *c->places);
  c->links = mgd_alloc_new(&c->alloc, places * places, sizeof *c->links);
  for (size_t i = 0; c->places && i < places; i++) {
    c->places[i].capacity = INT64_MAX;
  }
  return c->places && c->links ? mgd_alloc_mutex(&c->alloc, &c->mutex) : MGD_E_NOMEM;
}

static void discard(struct mgd_clock *c) {
  mgd_alloc_free(c->places);
  mgd_alloc_free(c->links);
  mgd_alloc_free(c);
}

int mgd_clock_create_failing(int devices, int64_t fail_allocation, struct mgd_clock **out) {
  if (devices < 0 || devices >= MGD_MAX_DEVICES || fail_allocation < 0) {
    return MGD_E_INVALID;
  }
  struct mgd_alloc alloc;
  mgd_alloc_init(&alloc, fail_allocation);
  struct mgd_clock *c = mgd_alloc_new(&alloc, 1, sizeof *c);
  if (!c) {
    return MGD_E_NOMEM;
  }
  mgd_alloc_init(&c->alloc, fail_allocation ? fail_allocation - 1 : 0);
  c->devices = devices;
  c->pause = MGD_CLOCK_PAUSE;
  int code = fill_clock(c);
  if (code != MGD_OK) {
    discard(c);
    return code;
  }
  *out = c;
  return MGD_OK;
}

int mgd_clock_create(int devices, struct mgd_clock **out) { return mgd_clock_create_failing(devices, 0, out); }

void mgd_clock_destroy(struct mgd_clock *c) {
  if (!c) {
    return;
  }
  mgd_clock_flow_settle_all(c);
  mgd_clock_log_discard(c);
  mgd_alloc_free(c->lock.turns);
  for (int d = 0; d < c->devices; d++) {
    for (int s = 0; s < MGD_MAX_STREAMS; s++) {
      (void)mgd_clock_flow_time(c, &mgd_clock_place_of(c, d)->streams[s].half); /* it holds no task any more */
    }
    mgd_clock_hold_discard_all(c, d);
  }
  (void)pthread_mutex_destroy(&c->mutex);
  discard(c);
}

void mgd_clock_before_fork(struct mgd_clock *c) {
  mgd_clock_enter(c);
  mgd_clock_flow_settle_all(c);
}

void mgd_clock_after_fork(struct mgd_clock *c) { (void)mgd_clock_leave(c, MGD_OK); }

/* ---- issuing */

/* How a thread issues an operation: from `begin` on, with the interpreter's lock for `python` ns, until `at`. */
struct issuing {
  int64_t begin, python, at;
};

/* Computes the times of an issue to both places, which may be the same; one of them may be the host. */
static int issue_time(const struct mgd_clock *c, const struct mgd_clock_stream *thread, int from, int to,
                      struct issuing *i) {
  const struct mgd_clock_place *a = mgd_clock_place_of(c, from), *b = mgd_clock_place_of(c, to);
  const struct mgd_speed *speed = &(to == HOST ? a : b)->speed;
  i->begin = mgd_max(thread->free_at, mgd_max(a->issued, b->issued));
  i->python = thread->unlocked ? 0 : speed->python_ns;
  const int64_t free = mgd_clock_lock_end(&c->lock, i->begin, i->python);
  return mgd_add(free, speed->issue_ns - i->python, &i->at) && i->at < INT64_MAX ? MGD_OK : MGD_E_OVERFLOW;
}

static void issue(struct mgd_clock *c, struct mgd_clock_stream *thread, int from, int to, const struct issuing *i) {
  mgd_clock_lock_take(&c->lock, &c->alloc, i->begin, i->python);
  mgd_clock_move(c, thread, i->at);
  mgd_clock_place_of(c, from)->issued = from == HOST ? 0 : i->at;
  mgd_clock_place_of(c, to)->issued = to == HOST ? 0 : i->at;
}

/* Queues an operator behind unsettled ones. False: there is no memory, and the stream has been settled instead. */
static bool queue_run(struct mgd_clock *c, int device, int stream, int64_t issued, int64_t cost, const char *name) {
  struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[stream];
  mgd_clock_flow_limit(c, s);
  struct mgd_task *t = s->first ? mgd_clock_queue_new(c, MGD_TASK_RUN, device, stream) : NULL;
  if (!t) {
    mgd_clock_flow_settle_stream(c, s);
    return false;
  }
  t->issued = issued;
  t->cost = cost;
  t->name = name;
  mgd_clock_queue_append(c, t);
  return true;
}

static int run(struct mgd_clock *c, int thread, int device, int stream, const struct mgd_work *work) {
  struct mgd_clock_stream *host, *s;
  struct issuing i;
  int64_t cost, end;
  int code = find_stream(c, HOST, thread, &host);
  code = code == MGD_OK ? find_stream(c, device, stream, &s) : code;
  if (code == MGD_OK) {
    (void)mgd_clock_lead_limit(c, thread, device, stream);
    code = issue_time(c, host, device, device, &i);
  }
  if (code != MGD_OK) {
    return code;
  }
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  const double arithmetic = mgd_duration(work->flops, place->speed.flops_per_ns[work->kind][work->precision]);
  const double memory = mgd_duration(work->bytes, place->speed.bytes_per_ns);
  code = mgd_to_ns(place->speed.launch_ns, fmax(arithmetic, memory), &cost);
  if (code != MGD_OK || !mgd_add(mgd_max(s->free_at, i.at), cost, &end)) {
    return MGD_E_OVERFLOW;
  }
  issue(c, host, device, device, &i);
  place->worked = mgd_about_sum(place->worked, cost);
  if (s->first && queue_run(c, device, stream, i.at, cost, work->name)) {
    return MGD_OK;
  }
  const int64_t begin = mgd_max(s->free_at, i.at);
  end = mgd_about_sum(begin, cost);
  place->busy = mgd_about_sum(place->busy, cost);
  mgd_clock_move(c, s, end);
  mgd_clock_log_add(c, &(struct mgd_span){MGD_SPAN_RUN, device, device, stream, begin, end, 0, 0, work->name});
  return MGD_OK;
}

int mgd_clock_run(struct mgd_clock *c, int thread, int device, int stream, const struct mgd_work *work) {
  if (!is_work(work)) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  return mgd_clock_leave(c, run(c, thread, device, stream, work));
}

/* A copy that is being issued. */
struct issue {
  struct mgd_clock_stream *host, *streams[2]; /* [1]: if both ends have streams */
  struct mgd_clock_link *link;
  struct issuing when;
  int64_t cost; /* ns when no other copy uses its buses */
};

static int prepare_copy(const struct mgd_clock *c, int thread, const struct mgd_transfer *t, struct issue *i) {
  struct mgd_clock_stream *source = NULL, *sink = NULL;
  int64_t end;
  int code = find_stream(c, HOST, thread, &i->host);
  code = code == MGD_OK ? mgd_clock_wiring_check_ends(c, t->from, t->to) : code;
  code = code == MGD_OK && t->from != HOST ? find_stream(c, t->from, t->from_stream, &source) : code;
  code = code == MGD_OK && t->to != HOST ? find_stream(c, t->to, t->to_stream, &sink) : code;
  code = code == MGD_OK ? issue_time(c, i->host, t->from, t->to, &i->when) : code;
  if (code != MGD_OK) {
    return code;
  }
  i->streams[0] = source ? source : sink;
  i->streams[1] = source ? sink : NULL;
  i->link = mgd_clock_link_of(c, t->from, t->to);
  code = mgd_to_ns(i->link->cost.latency_ns, mgd_duration((double)t->bytes, i->link->cost.bytes_per_ns), &i->cost);
  const int64_t free_at = mgd_max(i->streams[0]->free_at, sink && source ? sink->free_at : 0);
  const int64_t begin = mgd_max(mgd_max(i->when.at, i->link->free_at), free_at);
  return code == MGD_OK && mgd_add(begin, i->cost, &end) ? MGD_OK : MGD_E_OVERFLOW;
}

/* Whether the copy is ready now and no other copy is queued for its link or shares a bus with it: then no operation
 * that is issued later can change its end. */
static bool is_certain(const struct issue *i) {
  bool certain = !i->link->queued && !i->link->buses;
  for (int k = 0; k < 2 && i->streams[k]; k++) {
    certain = certain && !i->streams[k]->first && i->streams[k]->free_at <= i->when.at;
  }
  return certain;
}

static int64_t copy_now(struct mgd_clock *c, const struct mgd_transfer *t, const struct issue *i) {
  const int64_t begin = mgd_max(i->when.at, i->link->free_at), end = mgd_about_sum(begin, i->cost);
  mgd_clock_log_copy(c, i->link, &(struct mgd_span){.begin = begin, .end = end, .bytes = t->bytes,
                                                    .number = ++c->issued, .name = t->name});
  i->link->free_at = end;
  i->link->busy = mgd_about_sum(i->link->busy, i->cost);
  for (int k = 0; k < 2 && i->streams[k]; k++) { mgd_clock_move(c, i->streams[k], end); }
  return end;
}

/* Queues a copy whose end is not certain. NULL: there is no memory. */
static struct mgd_task *queue_copy(struct mgd_clock *c, const struct mgd_transfer *t, const struct issue *i) {
  for (int k = 0; k < 2 && i->streams[k]; k++) {
    mgd_clock_flow_limit(c, i->streams[k]);
  }
  struct mgd_task *task = mgd_clock_queue_new(c, MGD_TASK_COPY, t->from != HOST ? t->from : t->to, 0);
  if (task) {
    task->other = t->to != HOST ? t->to : t->from;
    task->streams[0] = i->streams[0];
    task->streams[1] = i->streams[1];
    task->issued = i->when.at;
    task->link = i->link;
    task->bytes = t->bytes;
    task->name = t->name;
    i->link->queued++;
    mgd_clock_queue_append(c, task);
  }
  return task;
}

static int copy(struct mgd_clock *c, int thread, const struct mgd_transfer *t) {
  struct issue i = {0};
  struct mgd_task *task = NULL;
  int code = prepare_copy(c, thread, t, &i);
  if (code == MGD_OK) {
    const bool source = t->from != HOST && mgd_clock_lead_limit(c, thread, t->from, t->from_stream);
    const bool sink = t->to != HOST && mgd_clock_lead_limit(c, thread, t->to, t->to_stream);
    code = source || sink ? prepare_copy(c, thread, t, &i) : MGD_OK; /* the thread has waited */
  }
  if (code != MGD_OK) {
    return code;
  }
  const bool certain = is_certain(&i);
  if (!certain && !(task = queue_copy(c, t, &i))) {
    return MGD_E_NOMEM;
  }
  issue(c, i.host, t->from, t->to, &i.when);
  struct mgd_moment end = {certain ? copy_now(c, t, &i) : 0, task};
  i.host->last_copy = certain ? c->issued : task->number;
  if (t->blocking) {
    if (task) {
      task->references++;
    }
    const int64_t until = mgd_max(i.when.at, mgd_clock_flow_time(c, &end));
    mgd_clock_log_wait(c, HOST, thread, i.when.at, until, t->name);
    mgd_clock_move(c, i.host, until);
  }
  return MGD_OK;
}

int mgd_clock_copy(struct mgd_clock *c, int thread, const struct mgd_transfer *t) {
  if (t->bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  return mgd_clock_leave(c, copy(c, thread, t));
}

int mgd_clock_last_copy(struct mgd_clock *c, int thread, uint64_t *number) {
  struct mgd_clock_stream *host;
  mgd_clock_enter(c);
  const int code = find_stream(c, HOST, thread, &host);
  if (code == MGD_OK) {
    *number = host->last_copy;
  }
  return mgd_clock_leave(c, code);
}

int mgd_clock_begin_thread(struct mgd_clock *c, int thread) {
  struct mgd_clock_stream *host;
  mgd_clock_enter(c);
  const int code = find_stream(c, HOST, thread, &host);
  if (code == MGD_OK) {
    host->free_at = 0;
    host->last_copy = 0;
    host->unlocked = false;
  }
  return mgd_clock_leave(c, code);
}

/* ---- moments */

int mgd_clock_record(struct mgd_clock *c, int thread, int device, int stream, struct mgd_moment *m) {
  struct mgd_clock_stream *host, *s;
  mgd_clock_enter(c);
  int code = find_stream(c, HOST, thread, &host);
  code = code == MGD_OK ? find_stream(c, device, stream, &s) : code;
  if (code == MGD_OK) {
    struct mgd_moment now = mgd_clock_flow_mark(c, device, stream, host->free_at);
    mgd_clock_queue_drop(m->task);
    *m = now;
  }
  return mgd_clock_leave(c, code);
}

int mgd_clock_end(struct mgd_clock *c, int device, int stream, struct mgd_moment *m) {
  struct mgd_clock_stream *s;
  mgd_clock_enter(c);
  const int code = device == HOST ? MGD_E_NO_DEVICE : find_stream(c, device, stream, &s);
  if (code == MGD_OK) {
    if (s->last) { s->last->references++; }
    mgd_clock_queue_drop(m->task);
    *m = (struct mgd_moment){s->free_at, s->last};
  }
  return mgd_clock_leave(c, code);
}

void mgd_clock_forget(struct mgd_clock *c, struct mgd_moment *m) {
  mgd_clock_enter(c);
  mgd_clock_queue_drop(m->task);
  *m = (struct mgd_moment){0, NULL};
  (void)mgd_clock_leave(c, MGD_OK);
}

void mgd_clock_set(struct mgd_clock *c, struct mgd_moment *m, int64_t ns) {
  mgd_clock_enter(c);
  mgd_clock_queue_drop(m->task);
  *m = (struct mgd_moment){mgd_max(m->ns, ns), NULL};
  (void)mgd_clock_leave(c, MGD_OK);
}

/* Queues a wait of the stream. False: there is no memory. */
static bool queue_wait(struct mgd_clock *c, int device, int stream, struct mgd_task *awaited, int64_t until) {
  struct mgd_task *t = mgd_clock_queue_new(c, MGD_TASK_WAIT, device, stream);
  if (!t) {
    return false;
  }
  t->issued = until;
  if (awaited) {
    awaited->references++;
    t->awaited = awaited;
    t->other = awaited->device;
  }
  mgd_clock_queue_append(c, t);
  return true;
}

static void wait_for(struct mgd_clock *c, int device, int stream, const struct mgd_moment *m) {
  struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[stream];
  mgd_clock_flow_limit(c, s);
  const bool open = m->task && !m->task->known;
  const int64_t until = open ? 0 : m->task ? m->task->end : m->ns;
  const bool queues = device != HOST && (s->first || open); /* a thread waits at once */
  if (queues && queue_wait(c, device, stream, open ? m->task : NULL, until)) { return; }
  if (open) {
    mgd_clock_flow_settle(c, m->task);
  }
  mgd_clock_flow_settle_stream(c, s);
  const int64_t end = m->task ? m->task->end : m->ns;
  mgd_clock_log_wait(c, device, stream, s->free_at, end, device == HOST ? "synchronize" : "event");
  mgd_clock_move(c, s, mgd_max(s->free_at, end));
}

int mgd_clock_stream_wait(struct mgd_clock *c, int device, int stream, const struct mgd_moment *m) {
  struct mgd_clock_stream *s;
  if (m->ns < 0) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  const int code = find_stream(c, device, stream, &s);
  if (code == MGD_OK) {
    wait_for(c, device, stream, m);
  }
  return mgd_clock_leave(c, code);
}

int mgd_clock_host_wait(struct mgd_clock *c, int thread, int64_t until) {
  const struct mgd_moment m = {until, NULL};
  return mgd_clock_stream_wait(c, HOST, thread, &m);
}

/* ---- queries */

int mgd_clock_moment_time(struct mgd_clock *c, struct mgd_moment *m, int64_t *ns) {
  mgd_clock_enter(c);
  *ns = mgd_clock_flow_time(c, m);
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_stream_time(struct mgd_clock *c, int device, int stream, int64_t *ns) {
  struct mgd_clock_stream *s;
  mgd_clock_enter(c);
  const int code = find_stream(c, device, stream, &s);
  if (code == MGD_OK) {
    mgd_clock_flow_settle_stream(c, s);
    *ns = s->free_at;
  }
  return mgd_clock_leave(c, code);
}

static int64_t latest_of(struct mgd_clock *c, int device) {
  int64_t ns = 0;
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    const struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[i];
    mgd_clock_flow_settle_stream(c, s);
    ns = mgd_max(ns, s->free_at);
  }
  return ns;
}

int mgd_clock_device_time(struct mgd_clock *c, int device, int64_t *ns) {
  if (!mgd_clock_is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  mgd_clock_enter(c);
  *ns = latest_of(c, device);
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_elapsed(struct mgd_clock *c, int64_t *ns) {
  mgd_clock_enter(c);
  mgd_clock_flow_settle_all(c);
  *ns = c->latest;
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_worked(struct mgd_clock *c, int device, int64_t *ns) {
  if (!mgd_clock_is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  mgd_clock_enter(c);
  *ns = mgd_clock_place_of(c, device)->worked;
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_busy(struct mgd_clock *c, int from, int to, int64_t *ns) {
  if (!mgd_clock_is_place(c, from) || !mgd_clock_is_place(c, to)) {
    return MGD_E_NO_DEVICE;
  }
  mgd_clock_enter(c);
  mgd_clock_flow_settle_all(c);
  *ns = from == to ? mgd_clock_place_of(c, from)->busy : mgd_clock_link_of(c, from, to)->busy;
  return mgd_clock_leave(c, MGD_OK);
}
