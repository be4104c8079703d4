/* trace.c: the newest events, and totals over all events.
 *
 * A ring holds the newest events with their reasons; totals per kind and per link count every event, also those that
 * the ring no longer holds. Events are recorded as the caller passes them, times included: no clock is read here.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#include <string.h>

/* Only these kinds carry bytes over a link. */
static bool is_transfer(const struct mgd_event *e) {
  static const bool carries[MGD_EV_KINDS] = {[MGD_EV_MOVE] = true,
                                             [MGD_EV_COPY] = true,
                                             [MGD_EV_WRITE_BACK] = true,
                                             [MGD_EV_SPILL] = true,
                                             [MGD_EV_SPARE] = true,
                                             [MGD_EV_RESTORE] = true};
  return carries[e->kind] && e->from >= 0 && e->to >= 0;
}

static bool is_known_or_none(const struct mgd_machine *m, int id) {
  return id == -1 || mgd_state_knows_device_locked(m, id);
}

/* Adds one event to the total. False: the sum overflows, and `out` is undefined. */
static bool sum(struct mgd_total total, const struct mgd_event *e, struct mgd_total *out) {
  out->count = total.count + 1;
  return mgd_add(total.bytes, e->bytes, &out->bytes) && mgd_add(total.ns, e->duration, &out->ns);
}

/* Changes the size of the ring and keeps the newest events. Without memory nothing changes. */
static void resize(struct mgd_machine *m, size_t size) {
  struct mgd_trace *t = &m->trace;
  struct mgd_event *ring = mgd_alloc_new(&m->alloc, size, sizeof *ring);
  if (!ring) {
    return;
  }
  const size_t held = t->held < size ? t->held : size;
  for (size_t i = 0; i < held; i++) {
    ring[i] = t->ring[(t->next + t->size - held + i) % t->size];
  }
  mgd_alloc_free(t->ring);
  t->ring = ring;
  t->size = size;
  t->held = held;
  t->next = held % size;
}

static void push(struct mgd_machine *m, const struct mgd_event *e) {
  struct mgd_trace *t = &m->trace;
  if (t->usual && t->held == t->size) {
    resize(m, 2 * t->size);
  }
  struct mgd_event *slot = &t->ring[t->next];
  *slot = *e;
  slot->sequence = ++t->totals.events;
  t->next = (t->next + 1) % t->size;
  t->held += t->held < t->size;
}

static int add_event(struct mgd_machine *m, const struct mgd_event *e) {
  struct mgd_trace *t = &m->trace;
  if (!is_known_or_none(m, e->from) || !is_known_or_none(m, e->to)) {
    return MGD_E_NO_DEVICE;
  }
  if (e->site > m->sites.count) {
    return MGD_E_INVALID;
  }
  struct mgd_total kind, link = {0};
  bool moves = is_transfer(e);
  if (!sum(t->totals.by_kind[e->kind], e, &kind) || (moves && !sum(t->totals.by_link[e->from][e->to], e, &link))) {
    return MGD_E_OVERFLOW;
  }
  t->totals.by_kind[e->kind] = kind;
  if (moves) {
    t->totals.by_link[e->from][e->to] = link;
  }
  push(m, e);
  return MGD_OK;
}

int mgd_trace_add(struct mgd_machine *m, const struct mgd_event *event) {
  bool kind = event->kind >= 0 && event->kind < MGD_EV_KINDS;
  bool reason = event->reason >= 0 && event->reason < MGD_WHY_KINDS;
  if (!kind || !reason || event->bytes < 0 || event->duration < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, add_event(m, event));
}

/* Fills `out` from its end, newest first, and returns how many fitted. */
static size_t read_back(const struct mgd_trace *t, uint64_t object, struct mgd_event *out, size_t room) {
  size_t found = 0;
  for (size_t back = 1; back <= t->held && found < room; back++) {
    const struct mgd_event *e = &t->ring[(t->next + t->size - back) % t->size];
    if (object == 0 || e->object == object) {
      out[room - ++found] = *e;
    }
  }
  return found;
}

int mgd_trace_read(struct mgd_machine *m, uint64_t object, struct mgd_event *out, size_t *n, uint64_t *dropped) {
  mgd_state_enter(m);
  size_t found = read_back(&m->trace, object, out, *n);
  if (found < *n) {
    memmove(out, out + (*n - found), found * sizeof *out);
  }
  *n = found;
  *dropped = m->trace.totals.events - m->trace.held;
  return mgd_state_leave(m, MGD_OK);
}

size_t mgd_trace_held(struct mgd_machine *m) {
  mgd_state_enter(m);
  const size_t held = m->trace.held;
  (void)mgd_state_leave(m, MGD_OK);
  return held;
}

int mgd_trace_keep(struct mgd_machine *m, bool all) {
  mgd_state_enter(m);
  struct mgd_trace *t = &m->trace;
  if (all && !t->usual) {
    t->usual = t->size;
  } else if (!all && t->usual) {
    resize(m, t->usual);
    t->usual = 0;
  }
  return mgd_state_leave(m, MGD_OK);
}

int mgd_trace_totals(struct mgd_machine *m, bool reset, struct mgd_totals *out) {
  struct mgd_totals *totals = &m->trace.totals;
  mgd_state_enter(m);
  *out = *totals;
  if (reset) {
    memset(totals->by_kind, 0, sizeof totals->by_kind);
    memset(totals->by_link, 0, sizeof totals->by_link);
  }
  return mgd_state_leave(m, MGD_OK);
}

uint64_t mgd_trace_new_object(struct mgd_machine *m) {
  mgd_state_enter(m);
  uint64_t id = ++m->trace.objects;
  (void)mgd_state_leave(m, MGD_OK);
  return id;
}
