/* check.c: the invariants that the structs of internal_machine.h, internal_replica.h and internal_trace.h state.
 *
 * Each function below verifies the invariants of one struct, in the words of its comment. It reads and never repairs,
 * because a broken invariant is a bug. The invariants of handles are in check_handle.c. The cost is bounded by devices,
 * claims, sources, replicas and handles; only the two ends of the trace's ring and the newest entries of tables are
 * checked, so that checking after each of a million transitions is affordable.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

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

/* Sums the claims granted on a device; the ledger must agree. */
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

/* Sums the replicas on a device; -1 if one is negative or the sum overflows. */
static int64_t replicated(const struct mgd_machine *m, int id) {
  int64_t bytes = 0;
  for (int32_t slot = 0; slot < m->replicas.size; slot++) {
    const struct mgd_replica *e = &m->replicas.slots[slot];
    bool counts = e->state != MGD_REPLICA_FREE && e->device == id;
    if (counts && (e->bytes < 0 || !mgd_add(bytes, e->bytes, &bytes))) {
      return -1;
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
  bool agrees = d->by_owner[MGD_RESERVED] == granted(m, id) && d->by_owner[MGD_REPLICA] == replicated(m, id);
  return d->capacity >= 0 && mgd_is_amount(d->speed) && d->speed > 0.0 && d->peak >= used && agrees;
}

static bool is_link_sound(const struct mgd_machine *m, int from, int to) {
  const struct mgd_link *link = &m->links[from][to];
  bool is_free = link->latency_ns == 0 && link->bytes_per_ns == 0.0;
  return link->latency_ns >= 0 && mgd_is_amount(link->bytes_per_ns) && (from != to || is_free);
}

/* Returns the length of a device's queue if every link of it is sound, else -1. A cycle fails, because arrivals must
 * ascend. */
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

/* Returns the length of the chain of free slots, or -1 if it is broken. */
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

/* Checks the fields of one claim, if it is in use. */
static bool is_claim_sound(const struct mgd_machine *m, const struct mgd_claim *c) {
  bool fraction = c->reserved >= 0.0 && c->reserved < 1.0;
  bool stands = c->state == MGD_CLAIM_LATE || mgd_state_knows_device_locked(m, c->device);
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

/* ---- replicas */

/* Returns the length of a list of slots if each is in that state and its links are right, else -1. A cycle fails: a
 * second visit has another predecessor. */
static int32_t replicas_in(const struct mgd_replicas *r, const struct mgd_replica_list *list,
                           enum mgd_replica_state state) {
  int32_t length = 0, previous = -1;
  for (int32_t slot = list->first; slot != -1; length++) {
    bool inside = slot >= 0 && slot < r->size;
    if (!inside || r->slots[slot].state != state || r->slots[slot].previous != previous) {
      return -1;
    }
    previous = slot;
    slot = r->slots[slot].next;
  }
  return list->last == previous ? length : -1;
}

/* Returns the length of a device's list of kept replicas if all are on it and within the limit, else -1. */
static int32_t kept_length(const struct mgd_machine *m, int id) {
  const struct mgd_device *d = &m->devices[id];
  int32_t length = replicas_in(&m->replicas, &d->kept, MGD_REPLICA_CACHED);
  int64_t bytes = 0;
  for (int32_t slot = length < 0 ? -1 : d->kept.first; slot != -1; slot = m->replicas.slots[slot].next) {
    if (m->replicas.slots[slot].device != id) {
      return -1;
    }
    bytes += m->replicas.slots[slot].bytes; /* at most REPLICA, by the ledger */
  }
  return bytes == d->kept_bytes && bytes <= mgd_replica_limit_locked(m, id) ? length : -1;
}

/* Returns the length of a source's chain if it holds only cached replicas of its own, else -1. */
static int32_t chain_length(const struct mgd_replicas *r, int32_t source) {
  int32_t length = 0, elder = -1;
  for (int32_t slot = r->sources[source].first; slot != -1; length++) {
    bool inside = slot >= 0 && slot < r->size && r->slots[slot].elder == elder;
    if (!inside || r->slots[slot].state != MGD_REPLICA_CACHED || r->slots[slot].source != source) {
      return -1;
    }
    elder = slot;
    slot = r->slots[slot].sibling;
  }
  return r->sources[source].open || length == 0 ? length : -1;
}

/* Returns the length of the chain of free sources, or -1 if it is broken. */
static int32_t free_sources(const struct mgd_replicas *r) {
  int32_t length = 0;
  for (int32_t source = r->first_free_source; source != -1; length++) {
    bool inside = source >= 0 && source < r->source_size && length < r->source_size;
    if (!inside || r->sources[source].open) {
      return -1;
    }
    source = r->sources[source].next;
  }
  return length;
}

/* Every closed source is free, and every cached replica in a source's chain. */
static bool are_sources_sound(const struct mgd_replicas *r, int32_t cached) {
  int32_t chained = 0, closed = 0;
  for (int32_t source = 0; source < r->source_size; source++) {
    int32_t length = chain_length(r, source);
    if (length < 0) {
      return false;
    }
    chained += length;
    closed += !r->sources[source].open;
  }
  return chained == cached && closed == free_sources(r);
}

/* Returns the length of a bucket's chain if it holds only cached replicas that hash to it, else -1. */
static int32_t bucket_length(const struct mgd_replicas *r, int32_t bucket) {
  int32_t length = 0;
  for (int32_t slot = r->buckets[bucket]; slot != -1; length++) {
    bool inside = slot >= 0 && slot < r->size && length < r->size;
    const struct mgd_replica *e = inside ? &r->slots[slot] : NULL;
    if (!e || e->state != MGD_REPLICA_CACHED ||
        mgd_replica_table_bucket(r, e->source, e->device, e->extent) != bucket) {
      return -1;
    }
    slot = e->collision;
  }
  return length;
}

/* The table holds every cached replica, and each is found: no duplicate is in front of it. */
static bool is_table_sound(const struct mgd_replicas *r, int32_t cached) {
  int32_t chained = 0;
  for (int32_t bucket = 0; bucket < r->size; bucket++) {
    int32_t length = bucket_length(r, bucket);
    if (length < 0) {
      return false;
    }
    chained += length;
  }
  for (int32_t slot = 0; slot < r->size; slot++) {
    const struct mgd_replica *e = &r->slots[slot];
    if (e->state == MGD_REPLICA_CACHED && mgd_replica_table_look_up(r, e->source, e->device, e->extent) != slot) {
      return false;
    }
  }
  return chained == cached;
}

/* Returns the length of the list of doomed replicas if each is on a known device, else -1. */
static int32_t doomed_length(const struct mgd_machine *m) {
  const struct mgd_replicas *r = &m->replicas;
  int32_t length = replicas_in(r, &r->doomed, MGD_REPLICA_DOOMED);
  for (int32_t slot = length < 0 ? -1 : r->doomed.first; slot != -1; slot = r->slots[slot].next) {
    if (!mgd_state_knows_device_locked(m, r->slots[slot].device)) {
      return -1;
    }
  }
  return length;
}

/* The lists together hold every slot, so that each is in the one its state names. */
static bool are_replicas_sound(const struct mgd_machine *m) {
  const struct mgd_replicas *r = &m->replicas;
  int32_t cached = 0, free = replicas_in(r, &r->free, MGD_REPLICA_FREE), doomed = doomed_length(m);
  for (int id = 0; id < m->count; id++) {
    int32_t length = kept_length(m, id);
    if (length < 0) {
      return false;
    }
    cached += length;
  }
  bool complete = free >= 0 && doomed >= 0 && free + doomed + cached == r->size;
  return complete && are_sources_sound(r, cached) && is_table_sound(r, cached);
}

/* ---- all of it */

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

/* Only the newest site is checked: checking all of them would cost too much. */
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
  sound = sound && are_claims_sound(m) && are_replicas_sound(m) && mgd_check_handle_all_locked(m) &&
      is_trace_sound(&m->trace);
  return sound && are_sites_sound(&m->sites) && are_repeats_sound(&m->repeats) ? MGD_OK : MGD_E_BROKEN;
}

int mgd_check(struct mgd_machine *m) {
  mgd_state_enter(m);
  return mgd_state_leave(m, mgd_check_locked(m));
}
