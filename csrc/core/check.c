/* check.c: the invariants that the structs of internal_machine.h and
 * internal_clock.h state.
 *
 * Each function below verifies one struct's comment, in the same words. It
 * reads and never repairs: a broken invariant is a bug to be found, not a
 * state to live with. The cost is bounded by devices and claims; of the trace
 * only the two ends of the ring are looked at, of tables the newest entry, so that checking after each of
 * a million transitions is affordable.
 */
#include "arithmetic.h"
#include "internal_clock.h"
#include "internal_machine.h"

#include <string.h>

static bool is_name(const char name[MGD_NAME_BYTES]) { return name[0] != '\0' && memchr(name, '\0', MGD_NAME_BYTES); }

static bool is_unique(const struct mgd_machine *m, int id) {
  for (int other = 0; other < id; other++) {
    if (strcmp(m->devices[other].name, m->devices[id].name) == 0) {
      return false;
    }
  }
  return true;
}

/* Sum of the claims granted on a device; the ledger must agree. */
static int64_t granted(const struct mgd_machine *m, int id) {
  int64_t bytes = 0;
  for (int32_t slot = 0; slot < m->claims.size; slot++) {
    const struct mgd_claim *c = &m->claims.slots[slot];
    if (c->state == MGD_CLAIM_GRANTED && c->device == id) {
      bytes += c->bytes;
    }
  }
  return bytes;
}

static bool is_ledger_sound(const struct mgd_machine *m, int id) {
  const struct mgd_device *d = &m->devices[id];
  int64_t used = 0;
  for (int owner = 0; owner < MGD_OWNERS; owner++) {
    if (d->by_owner[owner] < 0 || !mgd_add(used, d->by_owner[owner], &used)) {
      return false;
    }
  }
  return d->capacity >= 0 && d->peak >= used && d->by_owner[MGD_RESERVED] == granted(m, id);
}

static bool is_link_sound(const struct mgd_machine *m, int from, int to) {
  const struct mgd_link *link = &m->links[from][to];
  bool is_free = link->latency_ns == 0 && link->bytes_per_ns == 0.0;
  return link->latency_ns >= 0 && mgd_is_amount(link->bytes_per_ns) && (from != to || is_free);
}

/* Length of a device's queue if every link of it is sound, else -1. It cannot
 * be a ring, because arrivals must ascend. */
static int32_t queue_length(const struct mgd_machine *m, int id) {
  int32_t length = 0, previous = -1;
  uint64_t arrival = 0;
  for (int32_t slot = m->devices[id].first_waiter; slot != -1; length++) {
    if (slot < 0 || slot >= m->claims.size) {
      return -1;
    }
    const struct mgd_claim *c = &m->claims.slots[slot];
    bool in_place = c->state == MGD_CLAIM_WAITING && c->device == id && c->previous == previous;
    if (!in_place || c->arrival <= arrival) {
      return -1;
    }
    arrival = c->arrival;
    previous = slot;
    slot = c->next;
  }
  return m->devices[id].last_waiter == previous ? length : -1;
}

static bool is_device_sound(const struct mgd_machine *m, int id) {
  bool sound = is_name(m->devices[id].name) && is_unique(m, id) && is_ledger_sound(m, id);
  for (int to = 0; to < m->count; to++) {
    sound = sound && is_link_sound(m, id, to);
  }
  return sound;
}

static int32_t count_claims(const struct mgd_machine *m, enum mgd_claim_state state) {
  int32_t count = 0;
  for (int32_t slot = 0; slot < m->claims.size; slot++) {
    count += m->claims.slots[slot].state == state;
  }
  return count;
}

/* Length of the chain of free slots, or -1 if it leads astray. */
static int32_t free_length(const struct mgd_claims *claims) {
  int32_t length = 0;
  for (int32_t slot = claims->first_free; slot != -1; length++) {
    bool inside = slot >= 0 && slot < claims->size && length < claims->size;
    if (!inside || claims->slots[slot].state != MGD_CLAIM_FREE) {
      return -1;
    }
    slot = claims->slots[slot].next;
  }
  return length;
}

/* What every claim in use says of itself. */
static bool is_claim_sound(const struct mgd_machine *m, const struct mgd_claim *c) {
  bool fraction = c->reserved >= 0.0 && c->reserved < 1.0;
  bool stands = c->state == MGD_CLAIM_LATE || mgd_device_known_locked(m, c->device);
  return c->state == MGD_CLAIM_FREE || (c->bytes >= 0 && fraction && stands && c->arrival <= m->claims.arrivals);
}

/* Queues hold exactly the waiting claims, and the free chain the free ones. */
static bool are_claims_sound(const struct mgd_machine *m) {
  int32_t queued = 0;
  for (int32_t slot = 0; slot < m->claims.size; slot++) {
    if (!is_claim_sound(m, &m->claims.slots[slot])) {
      return false;
    }
  }
  for (int id = 0; id < m->count; id++) {
    int32_t length = queue_length(m, id);
    if (length < 0) {
      return false;
    }
    queued += length;
  }
  return queued == count_claims(m, MGD_CLAIM_WAITING) && free_length(&m->claims) == count_claims(m, MGD_CLAIM_FREE);
}

static bool is_trace_sound(const struct mgd_trace *t) {
  if (t->held > t->size || t->held > t->totals.events || t->next >= t->size) {
    return false;
  }
  if (t->held == 0) {
    return true;
  }
  const struct mgd_event *newest = &t->ring[(t->next + t->size - 1) % t->size];
  const struct mgd_event *oldest = &t->ring[(t->next + t->size - t->held) % t->size];
  return newest->sequence == t->totals.events && oldest->sequence == t->totals.events - t->held + 1;
}

/* The newest site stands for all: looking at each of them would cost too much. */
static bool are_sites_sound(const struct mgd_sites *s) {
  if (s->count > MGD_MAX_SITES || (s->count > 0 && (!s->list || !s->index))) {
    return false;
  }
  return s->count == 0 || mgd_site_find_locked(s, &s->list[s->count - 1]) == s->count;
}

static bool are_repeats_sound(const struct mgd_repeats *r) {
  if (r->limit < 0 || (r->tick > 0) != (r->slots != NULL) || r->newest >= MGD_REPEAT_SETS * MGD_REPEAT_WAYS) {
    return false;
  }
  if (r->tick == 0) {
    return true;
  }
  const struct mgd_repeat_slot *newest = &r->slots[r->newest];
  return newest->used == r->tick && newest->object != 0 && newest->count > 0 && newest->step <= r->step;
}

int mgd_check_locked(const struct mgd_machine *m) {
  bool sound = m->count >= 1 && m->count <= MGD_MAX_DEVICES;
  sound = sound && strcmp(m->devices[MGD_HOST].name, "cpu") == 0 && m->heuristic;
  for (int id = 0; sound && id < m->count; id++) {
    sound = is_device_sound(m, id);
  }
  sound = sound && are_claims_sound(m) && is_trace_sound(&m->trace);
  return sound && are_sites_sound(&m->sites) && are_repeats_sound(&m->repeats) ? MGD_OK : MGD_E_BROKEN;
}

int mgd_check(struct mgd_machine *m) {
  mgd_machine_enter(m);
  return mgd_machine_leave(m, mgd_check_locked(m));
}

/* ---- the clock */

static bool is_place_sound(const struct mgd_clock *c, int device) {
  const struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  bool sound = mgd_is_amount(place->speed.flops_per_ns) && mgd_is_amount(place->speed.bytes_per_ns);
  sound = sound && place->speed.launch_ns >= 0;
  for (int s = 0; s < MGD_MAX_STREAMS; s++) {
    sound = sound && place->streams[s] >= 0;
  }
  return sound;
}

/* Whether something at this end of a link accounts for its being busy. */
static bool explains(const struct mgd_clock *c, int device, int64_t free_at) { return device == MGD_CLOCK_HOST || free_at <= mgd_clock_latest(c, device); }

static bool is_clock_link_sound(const struct mgd_clock *c, int from, int to) {
  const struct mgd_clock_link *link = mgd_clock_link_of(c, from, to);
  bool sound = link->cost.latency_ns >= 0 && mgd_is_amount(link->cost.bytes_per_ns) && link->free_at >= 0;
  sound = sound && (from != to || link->free_at == 0);
  return sound && explains(c, from, link->free_at) && explains(c, to, link->free_at);
}

int mgd_check_clock(const struct mgd_clock *c) {
  bool sound = true;
  for (int from = MGD_CLOCK_HOST; from < c->devices; from++) {
    sound = sound && is_place_sound(c, from);
    for (int to = MGD_CLOCK_HOST; to < c->devices; to++) {
      sound = sound && is_clock_link_sound(c, from, to);
    }
  }
  return sound ? MGD_OK : MGD_E_BROKEN;
}
