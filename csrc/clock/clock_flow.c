/* clock_flow.c: how copies share links and buses, and when everything ends.
 *
 * This is a simulation of discrete events. A copy becomes ready when it is the first of its streams. A link takes the
 * copy that was ready first. After the link's latency its bytes flow; the rate depends on the copies that pass the same
 * buses at that time, and changes when one of them begins or ends.
 *
 * Events are processed in the order of their times, and only when a caller needs an end: until then a copy that is
 * issued later can still be ready earlier. Operations that share no device, link or bus with the requested one are not
 * touched, so that independent threads cannot disturb each other.
 */
#include "clock/internal_clock.h"

/* ---- dependencies */

static mgd_mask device_bit(int device) { return (mgd_mask)1 << device; }

/* No task is the host's: its streams have no queue. */
static mgd_mask devices_of(const struct mgd_task *t) { return device_bit(t->device) | device_bit(t->other); }

/* Returns the devices that an end on this one may depend on. */
static mgd_mask find_related(const struct mgd_clock *c, int device) {
  mgd_mask devices = device_bit(device);
  uint64_t buses = 0;
  for (bool more = c->devices > 1; more;) {
    more = false;
    for (const struct mgd_task *t = c->ties; t; t = t->tie_after) {
      const uint64_t passes = t->kind == MGD_TASK_COPY ? t->link->buses : 0;
      const bool bears = devices_of(t) & devices || passes & buses;
      if (bears && (devices_of(t) & ~devices || passes & ~buses)) {
        devices |= devices_of(t);
        buses |= passes;
        more = true;
      }
    }
  }
  return devices;
}

/* ---- bandwidth: max-min fairness by progressive filling (Bertsekas and Gallager,
 * Data Networks, 2nd edition, section 6.5.2). The most constrained copies get their share first; the remaining copies
 * divide the rest. */

struct filling {
  double room[MGD_MAX_BUSES]; /* bytes/ns that are not assigned yet */
  int users[MGD_MAX_BUSES];   /* copies that have no rate yet */
};

/* Returns the next flowing copy in the list of fronts, from `t` on, or NULL. */
static struct mgd_task *flowing(struct mgd_task *t, mgd_mask devices) {
  while (t && (t->kind != MGD_TASK_COPY || t->phase != MGD_COPY_FLOWING || !(devices_of(t) & devices))) {
    t = t->front_after;
  }
  return t;
}

/* Returns the rate of a copy if all users of each of its buses get the same. */
static double bound(const struct filling *f, const struct mgd_task *t) {
  double least = t->link->cost.bytes_per_ns > 0.0 ? t->link->cost.bytes_per_ns : (double)INFINITY;
  for (uint64_t buses = t->link->buses; buses; buses &= buses - 1) {
    const int bus = __builtin_ctzll(buses);
    least = fmin(least, f->room[bus] / f->users[bus]);
  }
  return fmax(least, 0.0); /* the rest may be rounded to below 0 */
}

static void count_user(struct filling *f, const struct mgd_task *t, int users, double rate) {
  for (uint64_t buses = t->link->buses; buses; buses &= buses - 1) {
    const int bus = __builtin_ctzll(buses);
    f->users[bus] += users;
    f->room[bus] -= rate;
  }
}

/* Changes the copy's rate from `now` on. */
static void set_rate(struct mgd_task *t, double rate, int64_t now) {
  if (rate == t->rate) {
    return; /* `left` is computed only when the rate changes, so that it is rounded as seldom as possible */
  }
  if (now > t->since) {
    t->left = fmax(t->left - t->rate * (double)(now - t->since), 0.0);
    t->since = now;
  }
  t->rate = rate;
}

/* Does one round: each copy whose bound is the least gets it as its share. True: some copies have no share yet. */
static bool fill(struct filling *f, struct mgd_task *first, mgd_mask devices) {
  double least = (double)INFINITY;
  for (struct mgd_task *t = first; t; t = flowing(t->front_after, devices)) {
    least = t->share < 0.0 ? fmin(least, bound(f, t)) : least;
  }
  const struct filling before = *f;
  bool left = false;
  for (struct mgd_task *t = first; t; t = flowing(t->front_after, devices)) {
    if (t->share < 0.0 && bound(&before, t) <= least) {
      t->share = least;
      count_user(f, t, -1, isfinite(least) ? least : 0.0);
    }
    left = left || t->share < 0.0;
  }
  return left;
}

static void share_bandwidth(struct mgd_clock *c, mgd_mask devices, int64_t now) {
  struct filling f = {.users = {0}};
  for (int bus = 0; bus < MGD_MAX_BUSES; bus++) {
    f.room[bus] = c->buses[bus] > 0.0 ? c->buses[bus] : (double)INFINITY;
  }
  struct mgd_task *first = flowing(c->fronts, devices);
  for (struct mgd_task *t = first; t; t = flowing(t->front_after, devices)) {
    t->share = -1.0;
    count_user(&f, t, 1, 0.0);
  }
  while (first && fill(&f, first, devices)) {
  }
  for (struct mgd_task *t = first; t; t = flowing(t->front_after, devices)) {
    set_rate(t, t->share, now);
  }
}

/* ---- events */

/* The next event of a copy; the copy's phase tells which. */
struct event {
  struct mgd_task *copy;
  int64_t at, ready;
};

static int64_t ready_at(const struct mgd_task *t) {
  const int64_t other = t->streams[1] ? t->streams[1]->free_at : 0;
  return mgd_max(t->issued, mgd_max(t->streams[0]->free_at, other));
}

/* Returns when the last byte arrives, at the present rate. */
static int64_t arrival(const struct mgd_task *t) {
  int64_t at;
  return mgd_to_ns(t->since, t->left / t->rate, &at) == MGD_OK ? at : INT64_MAX;
}

/* Finds the next event of a copy that is the first of its streams. False: the copy waits for its link. */
static bool next_of(struct mgd_task *t, struct event *e) {
  *e = (struct event){.copy = t, .ready = t->began};
  if (t->phase == MGD_COPY_FLOWING) {
    e->at = arrival(t);
  } else if (t->phase == MGD_COPY_STARTING) {
    e->at = t->since;
  } else if (!t->link->active) {
    e->ready = ready_at(t);
    e->at = mgd_max(e->ready, t->link->free_at);
  } else {
    return false;
  }
  return true;
}

/* The fronts are in the order of issue, so the earliest-issued copy wins a tie. */
static bool is_before(const struct event *a, const struct event *b) {
  return a->at != b->at ? a->at < b->at : a->ready < b->ready;
}

static struct event find_next(struct mgd_clock *c, mgd_mask devices) {
  struct event best = {NULL, 0, 0}, e;
  for (struct mgd_task *t = c->fronts; t; t = t->front_after) {
    if (t->kind == MGD_TASK_COPY && devices_of(t) & devices && next_of(t, &e) && (!best.copy || is_before(&e, &best))) {
      best = e;
    }
  }
  return best;
}

static void end_copy(struct mgd_clock *c, struct mgd_task *t, int64_t at) {
  struct mgd_clock_stream *streams[2] = {t->streams[0], t->streams[1]};
  t->link->active = NULL;
  t->link->free_at = at;
  t->link->busy += at - t->began;
  t->link->queued--;
  mgd_clock_log_copy(c, t->link, &(struct mgd_span){.begin = t->began, .end = at, .bytes = t->bytes,
                                                    .number = t->number, .name = t->name});
  mgd_clock_queue_finish(c, t, at);
  for (int i = 0; i < 2 && streams[i]; i++) {
    mgd_clock_queue_advance(c, streams[i]);
  }
}

static void happen(struct mgd_clock *c, mgd_mask devices, const struct event *e) {
  struct mgd_task *t = e->copy;
  if (t->phase == MGD_COPY_QUEUED) {
    t->phase = MGD_COPY_STARTING;
    t->link->active = t;
    t->began = e->at;
    t->since = mgd_about_sum(e->at, t->link->cost.latency_ns);
    return;
  }
  const bool shares = t->link->buses != 0;
  if (t->phase == MGD_COPY_STARTING) {
    t->phase = MGD_COPY_FLOWING;
    t->left = (double)t->bytes;
    t->rate = t->link->cost.bytes_per_ns > 0.0 ? t->link->cost.bytes_per_ns : (double)INFINITY;
  } else {
    end_copy(c, t, e->at);
  }
  if (shares) {
    share_bandwidth(c, devices, e->at);
  }
}

/* Advances streams whose awaited task has ended, and then those that wait for these. */
static void advance_waits(struct mgd_clock *c, mgd_mask devices) {
  for (struct mgd_task *t = c->fronts; t;) {
    const bool goes_on = t->kind == MGD_TASK_WAIT && devices_of(t) & devices && t->awaited->known;
    if (goes_on) {
      mgd_clock_queue_advance(c, t->streams[0]);
    }
    t = goes_on ? c->fronts : t->front_after;
  }
}

/* ---- for the other files */

void mgd_clock_flow_settle(struct mgd_clock *c, struct mgd_task *t) {
  const mgd_mask devices = find_related(c, t->device);
  t->references++; /* the last other reference may be dropped below */
  for (advance_waits(c, devices); !t->known; advance_waits(c, devices)) {
    const struct event e = find_next(c, devices);
    happen(c, devices, &e);
  }
  mgd_clock_queue_drop(t);
}

void mgd_clock_flow_settle_stream(struct mgd_clock *c, const struct mgd_clock_stream *s) {
  while (s->first) {
    mgd_clock_flow_settle(c, s->last);
  }
}

/* Called before a task joins the queue, so that memory is bounded even if the program never queries a time. */
void mgd_clock_flow_limit(struct mgd_clock *c, const struct mgd_clock_stream *s) {
  if (s->queued >= MGD_CLOCK_QUEUE) {
    mgd_clock_flow_settle(c, s->first);
  }
}

/* Settles all ties. Every other task ends at a known time. */
void mgd_clock_flow_settle_all(struct mgd_clock *c) {
  while (c->ties) {
    mgd_clock_flow_settle(c, c->ties);
  }
}

int64_t mgd_clock_flow_time(struct mgd_clock *c, struct mgd_moment *m) {
  if (m->task) {
    mgd_clock_flow_settle(c, m->task);
    m->ns = m->task->end;
    mgd_clock_queue_drop(m->task);
    m->task = NULL;
  }
  return m->ns;
}

struct mgd_moment mgd_clock_flow_mark(struct mgd_clock *c, int device, int stream, int64_t issued) {
  struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[stream];
  mgd_clock_flow_limit(c, s);
  struct mgd_task *t = s->last;
  if (t && (t->kind != MGD_TASK_MARK || t->issued != issued)) {
    t = mgd_clock_queue_new(c, MGD_TASK_MARK, device, stream);
    if (t) {
      t->issued = issued;
      mgd_clock_queue_append(c, t);
    } else {
      mgd_clock_flow_settle_stream(c, s);
    }
  }
  if (!t) {
    return (struct mgd_moment){mgd_max(s->free_at, issued), NULL};
  }
  t->references++;
  return (struct mgd_moment){s->free_at, t};
}
