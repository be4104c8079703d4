/* replica.c: the directory of copies of storages on other devices: which are valid or stale, which are dropped first.
 *
 * A copy is a slot with a number. It is FREE, CACHED (in use as a replica) or DOOMED (not used any more). The caller
 * owns the tensor of the copy and keeps it under the slot's number. Freeing a tensor may take locks, so nothing is
 * freed under the core's mutex: a slot is doomed first, and its bytes stay counted; later the caller reaps it with no
 * lock held, which makes it free, and drops the tensor. The lists and the hash table are in replica_table.c, the
 * storages and their counts of writes in source.c.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"
#include "core/testing.h"

#define NO_SLOT (-1)

static int32_t source_slot(const struct mgd_replicas *r, const struct mgd_source *s) {
  return (int32_t)(s - r->sources);
}

/* Dooms the least recently used replicas until the device keeps no more than `most` bytes. */
static void shrink(struct mgd_machine *m, int device, int64_t most) {
  const struct mgd_device *d = &m->devices[device];
  while (d->kept_bytes > most) {
    mgd_replica_table_doom(m, d->kept.first);
  }
}

/* The fraction is below 1, so the product stays below 2**63 even for INT64_MAX. */
static int64_t part(const struct mgd_device *d, double fraction) { return (int64_t)(fraction * (double)d->capacity); }

int64_t mgd_replica_limit_locked(const struct mgd_machine *m, int device) {
  return part(&m->devices[device], MGD_KEPT_LIMIT);
}

void mgd_replica_shrink_locked(struct mgd_machine *m, int device) {
  shrink(m, device, mgd_replica_limit_locked(m, device));
}

/* Returns how many bytes of replicas a device keeps at most after a new one was added. A new copy takes the room of a
 * dropped one, and has to wait for all work issued before the drop. So some are dropped before their room is needed. */
static int64_t most_now(const struct mgd_machine *m, int device) {
  const struct mgd_device *d = &m->devices[device];
  const int64_t others = mgd_ledger_used_locked(m, device) - d->by_owner[MGD_REPLICA];
  const int64_t room = d->capacity - part(d, MGD_KEPT_FREE) - others;
  const int64_t limit = mgd_replica_limit_locked(m, device), most = mgd_max(room, part(d, MGD_KEPT_LEAST));
  return most < limit ? most : limit;
}

/* Makes the copy a CACHED slot. If another thread has brought the same bytes since the caller looked, the older copy is
 * doomed. */
static void insert(struct mgd_machine *m, struct mgd_source *s, int device, uint64_t extent, int64_t bytes) {
  struct mgd_replicas *r = &m->replicas;
  struct mgd_device *d = &m->devices[device];
  int32_t twin = mgd_replica_table_look_up(r, source_slot(r, s), device, extent);
  if (twin != NO_SLOT) {
    mgd_replica_table_doom(m, twin);
  }
  shrink(m, device, mgd_max(most_now(m, device) - bytes, 0));
  int32_t slot = r->free.first;
  mgd_replica_table_take_out(r, &r->free, slot);
  r->slots[slot] = (struct mgd_replica){.state = MGD_REPLICA_CACHED,
                                        .device = device,
                                        .bytes = bytes,
                                        .extent = extent,
                                        .source = source_slot(r, s),
                                        .sibling = s->first,
                                        .elder = NO_SLOT};
  if (s->first != NO_SLOT) {
    r->slots[s->first].elder = slot;
  }
  s->first = slot;
  mgd_replica_table_put_in_bucket(r, slot);
  mgd_replica_table_append(r, &d->kept, slot);
  d->kept_bytes += bytes;
  mgd_ledger_move_locked(m, device, MGD_REPLICA, bytes);
}

/* Checks that the copy may be kept, and makes sure of a free slot. `writes` is the source's count from before the
 * copying began: if it has changed, the copy holds bytes from before a write, or a mixture, and must not be used. */
static int prepare(struct mgd_machine *m, uint64_t source, uint64_t writes, int device, int64_t bytes) {
  const struct mgd_source *s = mgd_source_find(m, source);
  int64_t unused;
  if (!s || bytes < 0) {
    return MGD_E_INVALID;
  }
  if (!mgd_state_knows_device_locked(m, device)) {
    return MGD_E_NO_DEVICE;
  }
  if (s->writes != writes) {
    return MGD_E_STALE;
  }
  if (bytes > mgd_replica_limit_locked(m, device)) {
    return MGD_E_NO_ROOM;
  }
  if (!mgd_add(mgd_ledger_used_locked(m, device), bytes, &unused)) {
    return MGD_E_OVERFLOW;
  }
  return m->replicas.free.first == NO_SLOT ? mgd_replica_table_grow(m) : MGD_OK;
}

int mgd_replica_add(struct mgd_machine *m, uint64_t source, uint64_t writes, int device, uint64_t extent, int64_t bytes,
                    int32_t *slot) {
  mgd_state_enter(m);
  int code = prepare(m, source, writes, device, bytes);
  if (code == MGD_OK) {
    struct mgd_source *s = mgd_source_find(m, source);
    insert(m, s, device, extent, bytes);
    *slot = s->first;
  }
  return mgd_state_leave(m, code);
}

/* Fault injection: whether this find dooms its copy, with a chance of one in four (xorshift64, Marsaglia 2003). */
static bool is_shaken(struct mgd_replicas *r) {
  if (!MANAGED_TEST_HOOKS || !r->shake) { return false; }
  r->shake ^= r->shake << 13;
  r->shake ^= r->shake >> 7;
  r->shake ^= r->shake << 17;
  return (r->shake & 3) == 0;
}

/* INVALID: there is no such source. *slot is written on OK alone. */
static int look_up(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot) {
  const struct mgd_source *s = mgd_source_find(m, source);
  if (!s) { return MGD_E_INVALID; }
  const int32_t found = mgd_replica_table_look_up(&m->replicas, source_slot(&m->replicas, s), device, extent);
  if (found == NO_SLOT) { return MGD_E_ABSENT; }
  *slot = found;
  return MGD_OK;
}

int mgd_replica_find(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot) {
  struct mgd_replicas *r = &m->replicas;
  int32_t found;
  mgd_state_enter(m);
  int code = look_up(m, source, device, extent, &found);
  if (code == MGD_OK && is_shaken(r)) {
    mgd_replica_table_doom(m, found);
    code = MGD_E_ABSENT;
  }
  if (code == MGD_OK) {
    struct mgd_replica_list *kept = &m->devices[device].kept;
    if (kept->last != found) {
      mgd_replica_table_take_out(r, kept, found);
      mgd_replica_table_append(r, kept, found);
    }
    *slot = found;
  }
  return mgd_state_leave(m, code);
}

int mgd_replica_peek(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot) {
  mgd_state_enter(m);
  return mgd_state_leave(m, look_up(m, source, device, extent, slot));
}

int mgd_replica_drop(struct mgd_machine *m, int32_t slot) {
  mgd_state_enter(m);
  bool known = slot >= 0 && slot < m->replicas.size;
  if (known && m->replicas.slots[slot].state == MGD_REPLICA_CACHED) {
    mgd_replica_table_doom(m, slot);
  }
  return mgd_state_leave(m, known ? MGD_OK : MGD_E_INVALID);
}

/* Dooms at least one replica, also for 0 bytes, so that a loop of calls ends. */
static int make_room(struct mgd_machine *m, int device, int64_t bytes, bool all) {
  if (!mgd_state_knows_device_locked(m, device)) {
    return MGD_E_NO_DEVICE;
  }
  const struct mgd_device *d = &m->devices[device];
  const struct mgd_replica_list *kept = &d->kept;
  const int64_t least = all ? 0 : part(d, MGD_KEPT_LEAST);
  if (kept->first == NO_SLOT || (!all && d->kept_bytes <= least)) {
    return MGD_E_ABSENT;
  }
  int64_t freed = 0;
  do {
    freed += m->replicas.slots[kept->first].bytes;
    mgd_replica_table_doom(m, kept->first);
  } while (kept->first != NO_SLOT && freed < bytes && (all || d->kept_bytes > least));
  return MGD_OK;
}

int mgd_replica_make_room(struct mgd_machine *m, int device, int64_t bytes, bool all) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, make_room(m, device, bytes, all));
}

int mgd_replica_reap(struct mgd_machine *m, int32_t *slot) {
  struct mgd_replicas *r = &m->replicas;
  mgd_state_enter(m);
  int32_t doomed = r->doomed.first;
  if (doomed != NO_SLOT) {
    struct mgd_replica *e = &r->slots[doomed];
    mgd_replica_table_take_out(r, &r->doomed, doomed);
    e->state = MGD_REPLICA_FREE;
    mgd_replica_table_append(r, &r->free, doomed);
    mgd_ledger_move_locked(m, e->device, MGD_REPLICA, -e->bytes);
    *slot = doomed;
  }
  return mgd_state_leave(m, doomed == NO_SLOT ? MGD_E_ABSENT : MGD_OK);
}

#if MANAGED_TEST_HOOKS
int mgd_replica_shake(struct mgd_machine *m, uint64_t seed) {
  mgd_state_enter(m);
  m->replicas.shake = seed;
  return mgd_state_leave(m, MGD_OK);
}
#endif
