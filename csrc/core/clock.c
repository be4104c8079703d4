/* clock.c: virtual time of simulated devices.
 *
 * Everybody has a time of their own that only moves forward: the host, each
 * stream of each device, each directed link. An operation starts when all that
 * it needs are free and leaves all of them at its end; the host only hands it
 * over and goes on, until it waits. Same calls, same times: nothing here reads
 * a real clock, and nothing here knows a machine or real memory.
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

/* The stream, or a code. The host has stream 0 only. */
static int find_stream(const struct mgd_clock *c, int device, int stream, int64_t **out) {
  if (!is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  if (stream < 0 || stream >= (device == HOST ? 1 : MGD_MAX_STREAMS)) {
    return MGD_E_INVALID;
  }
  *out = &mgd_clock_place_of(c, device)->streams[stream];
  return MGD_OK;
}

static int64_t host_time(const struct mgd_clock *c) { return mgd_clock_place_of(c, HOST)->streams[0]; }

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

static int run(struct mgd_clock *c, int device, int stream, const struct mgd_work *work, int64_t *end) {
  int64_t *time;
  int code = find_stream(c, device, stream, &time);
  if (code != MGD_OK) {
    return code;
  }
  const struct mgd_speed *speed = &mgd_clock_place_of(c, device)->speed;
  const double arithmetic = mgd_duration(work->flops, speed->flops_per_ns[work->kind][work->precision]);
  int64_t cost, done;
  code = mgd_to_ns(speed->launch_ns, fmax(arithmetic, mgd_duration(work->bytes, speed->bytes_per_ns)), &cost);
  if (code != MGD_OK || !mgd_add(mgd_max(*time, host_time(c)), cost, &done)) {
    return MGD_E_OVERFLOW;
  }
  *time = *end = done;
  return MGD_OK;
}

int mgd_clock_run(struct mgd_clock *c, int device, int stream, const struct mgd_work *work, int64_t *end) {
  if (!is_work(work)) {
    return MGD_E_INVALID;
  }
  enter(c);
  return leave_clock(c, run(c, device, stream, work, end));
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

static int copy(struct mgd_clock *c, int from, int from_stream, int to, int to_stream, int64_t bytes, int64_t *end) {
  int64_t *source, *sink;
  int code = find_stream(c, from, from_stream, &source);
  code = code == MGD_OK ? find_stream(c, to, to_stream, &sink) : code;
  int64_t cost, done;
  code = code == MGD_OK ? copy_cost(c, from, to, bytes, &cost) : code;
  if (code != MGD_OK) {
    return code;
  }
  struct mgd_clock_link *link = mgd_clock_link_of(c, from, to);
  int64_t start = mgd_max(host_time(c), mgd_max(link->free_at, mgd_max(*source, *sink)));
  if (!mgd_add(start, cost, &done)) {
    return MGD_E_OVERFLOW;
  }
  /* The host hands a copy over and goes on; it waits when it says so. */
  *source = from == HOST ? *source : done;
  *sink = to == HOST ? *sink : done;
  link->free_at = from == to ? 0 : done;
  *end = done;
  return MGD_OK;
}

int mgd_clock_copy(struct mgd_clock *c, int from, int from_stream, int to, int to_stream, int64_t bytes, int64_t *end) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  enter(c);
  return leave_clock(c, copy(c, from, from_stream, to, to_stream, bytes, end));
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
    *time = mgd_max(*time, until);
  }
  return leave_clock(c, code);
}

int mgd_clock_host_wait(struct mgd_clock *c, int64_t until) { return mgd_clock_stream_wait(c, HOST, 0, until); }

int mgd_clock_device_time(struct mgd_clock *c, int device, int64_t *ns) {
  if (!is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  enter(c);
  *ns = mgd_clock_latest(c, device);
  return leave_clock(c, MGD_OK);
}
