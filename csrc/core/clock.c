/* clock.c: virtual time of simulated devices.
 *
 * Everybody has a time of their own that only moves forward: each thread of the
 * program, each stream of each device, each directed link. An operation starts
 * when all that it needs are free and leaves all of them at its end; the thread
 * only issues it, which takes a while, and goes on, until it waits. Same calls,
 * same times: nothing here reads a real clock, and nothing here knows a machine
 * or real memory.
 *
 * Threads wait for each other in ways that nobody tells us: the engine's for the
 * backward call, that call for the engine's, workers for their start. What they
 * have in common is the devices, so a thread that issues to a device moves to the
 * time at which anybody issued there last. Threads that share no device know
 * nothing of each other.
 *
 * An operator's time is the roofline max(flops / rate, bytes / bandwidth)
 * (Williams, Waterman, Patterson, CACM 52(4), 2009) plus a fixed launch. The
 * rate is that of the kind of arithmetic and of the numbers it works on.
 */
#include "arithmetic.h"
#include "internal_clock.h"
#include "internal_machine.h"
#include "testing.h"

#define HOST MGD_CLOCK_HOST

static bool is_place(const struct mgd_clock *c, int device) { return device >= HOST && device < c->devices; }

/* The stream, or a code. */
static int find_stream(const struct mgd_clock *c, int device, int stream, int64_t **out) {
  if (!is_place(c, device)) {
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

static bool is_link(struct mgd_link l) { return l.latency_ns >= 0 && mgd_is_amount(l.bytes_per_ns); }

static void enter(struct mgd_clock *c) { (void)pthread_mutex_lock(&c->mutex); }

static int leave_clock(struct mgd_clock *c, int code) {
#if MGD_DEBUG >= 2
  if (mgd_check_clock(c) != MGD_OK) {
    code = MGD_E_BROKEN;
  }
#endif
  (void)pthread_mutex_unlock(&c->mutex);
  return code;
}

/* ---- birth and death */

static int fill_clock(struct mgd_clock *c, struct mgd_alloc *alloc) {
  size_t places = (size_t)c->devices + 1;
  c->places = mgd_alloc_new(alloc, places, sizeof *c->places);
  c->links = mgd_alloc_new(alloc, places * places, sizeof *c->links);
  return c->places && c->links ? mgd_alloc_mutex(alloc, &c->mutex) : MGD_E_NOMEM;
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
  c->devices = devices;
  int code = fill_clock(c, &alloc);
  if (code != MGD_OK) {
    discard(c);
    return code;
  }
  *out = c;
  return MGD_OK;
}

int mgd_clock_create(int devices, struct mgd_clock **out) { return mgd_clock_create_failing(devices, 0, out); }

void mgd_clock_destroy(struct mgd_clock *c) {
  if (c) {
    (void)pthread_mutex_destroy(&c->mutex);
    discard(c);
  }
}

/* ---- what things can do */

int mgd_clock_set_speed(struct mgd_clock *c, int device, struct mgd_speed speed) {
  if (!is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  if (!mgd_clock_is_speed(&speed)) {
    return MGD_E_INVALID;
  }
  enter(c);
  mgd_clock_place_of(c, device)->speed = speed;
  return leave_clock(c, MGD_OK);
}

int mgd_clock_set_link(struct mgd_clock *c, int from, int to, struct mgd_link link) {
  if (!is_place(c, from) || !is_place(c, to)) {
    return MGD_E_NO_DEVICE;
  }
  if (from == to || !is_link(link)) {
    return MGD_E_INVALID;
  }
  enter(c);
  mgd_clock_link_of(c, from, to)->cost = link;
  return leave_clock(c, MGD_OK);
}

/* ---- what happens */

/* Moves one of the times. */
static void move(struct mgd_clock *c, int64_t *time, int64_t to) {
  *time = to;
  c->latest = mgd_max(c->latest, to);
}

/* When the thread will have issued an operation for both places, one of which may be the host, or both the same. */
static int issue_time(const struct mgd_clock *c, int64_t thread_time, int from, int to, int64_t *at) {
  const struct mgd_clock_place *a = mgd_clock_place_of(c, from), *b = mgd_clock_place_of(c, to);
  const int64_t cost = (to == HOST ? a : b)->speed.issue_ns;
  return mgd_add(mgd_max(thread_time, mgd_max(a->issued, b->issued)), cost, at) ? MGD_OK : MGD_E_OVERFLOW;
}

static void issue(struct mgd_clock *c, int64_t *thread_time, int device, int64_t at) {
  move(c, thread_time, at);
  if (device != HOST) {
    mgd_clock_place_of(c, device)->issued = at;
  }
}

static int run(struct mgd_clock *c, int thread, int device, int stream, const struct mgd_work *work, int64_t *end) {
  int64_t *thread_time, *time, issued, cost, done;
  int code = find_stream(c, HOST, thread, &thread_time);
  code = code == MGD_OK ? find_stream(c, device, stream, &time) : code;
  code = code == MGD_OK ? issue_time(c, *thread_time, device, device, &issued) : code;
  if (code != MGD_OK) {
    return code;
  }
  const struct mgd_speed *speed = &mgd_clock_place_of(c, device)->speed;
  const double arithmetic = mgd_duration(work->flops, speed->flops_per_ns[work->kind][work->precision]);
  code = mgd_to_ns(speed->launch_ns, fmax(arithmetic, mgd_duration(work->bytes, speed->bytes_per_ns)), &cost);
  if (code != MGD_OK || !mgd_add(mgd_max(*time, issued), cost, &done)) {
    return MGD_E_OVERFLOW;
  }
  issue(c, thread_time, device, issued);
  move(c, time, done);
  *end = done;
  return MGD_OK;
}

int mgd_clock_run(struct mgd_clock *c, int thread, int device, int stream, const struct mgd_work *work, int64_t *end) {
  if (!is_work(work)) {
    return MGD_E_INVALID;
  }
  enter(c);
  return leave_clock(c, run(c, thread, device, stream, work, end));
}

/* ns of a copy that has everything to itself. On one device it is an operator
 * that reads and writes every byte. */
static int copy_cost(const struct mgd_clock *c, int from, int to, int64_t bytes, int64_t *ns) {
  if (from == to) {
    const struct mgd_speed *speed = &mgd_clock_place_of(c, from)->speed;
    return mgd_to_ns(speed->launch_ns, mgd_duration(2.0 * (double)bytes, speed->bytes_per_ns), ns);
  }
  const struct mgd_link *link = &mgd_clock_link_of(c, from, to)->cost;
  return mgd_to_ns(link->latency_ns, mgd_duration((double)bytes, link->bytes_per_ns), ns);
}

static int copy(struct mgd_clock *c, int thread, int from, int from_stream, int to, int to_stream, int64_t bytes,
                int64_t *end) {
  int64_t *thread_time, *source, *sink, issued, cost, done;
  int code = find_stream(c, HOST, thread, &thread_time);
  code = code == MGD_OK ? find_stream(c, from, from == HOST ? thread : from_stream, &source) : code;
  code = code == MGD_OK ? find_stream(c, to, to == HOST ? thread : to_stream, &sink) : code;
  code = code == MGD_OK ? copy_cost(c, from, to, bytes, &cost) : code;
  code = code == MGD_OK ? issue_time(c, *thread_time, from, to, &issued) : code;
  if (code != MGD_OK) {
    return code;
  }
  struct mgd_clock_link *link = mgd_clock_link_of(c, from, to);
  const int64_t start = mgd_max(issued, mgd_max(link->free_at, mgd_max(*source, *sink)));
  if (!mgd_add(start, cost, &done)) {
    return MGD_E_OVERFLOW;
  }
  issue(c, thread_time, from, issued);
  issue(c, thread_time, to, issued);
  /* The thread hands a copy over and goes on; it waits when it says so. */
  if (from != HOST) {
    move(c, source, done);
  }
  if (to != HOST) {
    move(c, sink, done);
  }
  link->free_at = from == to ? 0 : done;
  *end = done;
  return MGD_OK;
}

int mgd_clock_copy(struct mgd_clock *c, int thread, int from, int from_stream, int to, int to_stream, int64_t bytes,
                   int64_t *end) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  enter(c);
  return leave_clock(c, copy(c, thread, from, from_stream, to, to_stream, bytes, end));
}

int mgd_clock_begin_thread(struct mgd_clock *c, int thread) {
  int64_t *time;
  enter(c);
  const int code = find_stream(c, HOST, thread, &time);
  if (code == MGD_OK) {
    *time = 0;
  }
  return leave_clock(c, code);
}

int mgd_clock_stream_time(struct mgd_clock *c, int device, int stream, int64_t *ns) {
  int64_t *time;
  enter(c);
  int code = find_stream(c, device, stream, &time);
  if (code == MGD_OK) {
    *ns = *time;
  }
  return leave_clock(c, code);
}

int mgd_clock_stream_wait(struct mgd_clock *c, int device, int stream, int64_t until) {
  if (until < 0) {
    return MGD_E_INVALID;
  }
  int64_t *time;
  enter(c);
  int code = find_stream(c, device, stream, &time);
  if (code == MGD_OK) {
    move(c, time, mgd_max(*time, until));
  }
  return leave_clock(c, code);
}

int mgd_clock_host_wait(struct mgd_clock *c, int thread, int64_t until) {
  return mgd_clock_stream_wait(c, HOST, thread, until);
}

int mgd_clock_elapsed(struct mgd_clock *c, int64_t *ns) {
  enter(c);
  *ns = c->latest;
  return leave_clock(c, MGD_OK);
}

int mgd_clock_device_time(struct mgd_clock *c, int device, int64_t *ns) {
  if (!is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  enter(c);
  *ns = mgd_clock_latest(c, device);
  return leave_clock(c, MGD_OK);
}
