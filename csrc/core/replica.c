/* replica.c: the directory of copies: who holds which version of whose bytes.
 *
 * It decides which copy serves, which are stale and which go first; the tensors
 * themselves are the caller's, who keeps them under the slots given out here.
 * Nothing is freed here: a slot that is given up is doomed, and the caller reaps
 * it, so that a tensor dies where no lock is held.
 */
#include "arithmetic.h"
#include "internal_machine.h"

#define NO_SLOT (-1)

/* ---- lists of slots */

static void append(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot) {
  r->slots[slot].next = NO_SLOT;
  r->slots[slot].previous = list->last;
  *(list->last == NO_SLOT ? &list->first : &r->slots[list->last].next) = slot;
  list->last = slot;
}

static void take_out(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot) {
  const struct mgd_replica *e = &r->slots[slot];
  *(e->previous == NO_SLOT ? &list->first : &r->slots[e->previous].next) = e->next;
  *(e->next == NO_SLOT ? &list->last : &r->slots[e->next].previous) = e->previous;
}

void mgd_replica_init(struct mgd_replicas *r) {
  r->free = r->doomed = (struct mgd_replica_list){NO_SLOT, NO_SLOT};
  r->first_free_source = NO_SLOT;
}

/* ---- the table of cached replicas: a storage may have very many parts */

/* Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper half is well mixed. */
int32_t mgd_replica_bucket(const struct mgd_replicas *r, int32_t source, int device, uint64_t extent) {
  uint64_t key = extent ^ (uint64_t)((int64_t)source * MGD_MAX_DEVICES + device) * 0xbf58476d1ce4e5b9u;
  return (int32_t)((key * 0x9e3779b97f4a7c15u >> 32) & (uint64_t)(r->size - 1));
}

static bool is_copy(const struct mgd_replica *e, int32_t source, int device, uint64_t extent) {
  return e->source == source && e->device == device && e->extent == extent;
}

int32_t mgd_replica_look_up(const struct mgd_replicas *r, int32_t source, int device, uint64_t extent) {
  int32_t slot = r->size ? r->buckets[mgd_replica_bucket(r, source, device, extent)] : NO_SLOT;
  while (slot != NO_SLOT && !is_copy(&r->slots[slot], source, device, extent)) {
    slot = r->slots[slot].collision;
  }
  return slot;
}

static void put_in_bucket(struct mgd_replicas *r, int32_t slot) {
  struct mgd_replica *e = &r->slots[slot];
  int32_t *first = &r->buckets[mgd_replica_bucket(r, e->source, e->device, e->extent)];
  e->collision = *first;
  *first = slot;
}

static void take_from_bucket(struct mgd_replicas *r, int32_t slot) {
  const struct mgd_replica *e = &r->slots[slot];
  int32_t *link = &r->buckets[mgd_replica_bucket(r, e->source, e->device, e->extent)];
  while (*link != slot) {
    link = &r->slots[*link].collision;
  }
  *link = e->collision;
}

/* After the size has changed. */
static void fill_buckets(struct mgd_replicas *r) {
  for (int32_t i = 0; i < r->size; i++) {
    r->buckets[i] = NO_SLOT;
  }
  for (int32_t i = 0; i < r->size; i++) {
    if (r->slots[i].state == MGD_REPLICA_CACHED) {
      put_in_bucket(r, i);
    }
  }
}

/* Larger buckets do no harm when the slots then fail to grow. */
static int grow_slots(struct mgd_machine *m) {
  struct mgd_replicas *r = &m->replicas;
  int32_t size = r->size ? r->size * 2 : 64;
  int32_t *buckets = mgd_alloc_resize(&m->alloc, r->buckets, (size_t)size, sizeof *buckets);
  if (!buckets) {
    return MGD_E_NOMEM;
  }
  r->buckets = buckets;
  struct mgd_replica *slots = mgd_alloc_resize(&m->alloc, r->slots, (size_t)size, sizeof *slots);
  if (!slots) {
    return MGD_E_NOMEM;
  }
  r->slots = slots;
  for (int32_t i = r->size; i < size; i++) {
    slots[i] = (struct mgd_replica){.state = MGD_REPLICA_FREE};
    append(r, &r->free, i);
  }
  r->size = size;
  fill_buckets(r);
  return MGD_OK;
}

/* ---- sources */

static int grow_sources(struct mgd_machine *m) {
  struct mgd_replicas *r = &m->replicas;
  int32_t size = r->source_size ? r->source_size * 2 : 64;
  struct mgd_source *sources = mgd_alloc_resize(&m->alloc, r->sources, (size_t)size, sizeof *sources);
  if (!sources) {
    return MGD_E_NOMEM;
  }
  r->sources = sources;
  for (int32_t i = size - 1; i >= r->source_size; i--) {
    sources[i] = (struct mgd_source){.first = NO_SLOT, .next = r->first_free_source};
    r->first_free_source = i;
  }
  r->source_size = size;
  return MGD_OK;
}

static int32_t source_slot(const struct mgd_replicas *r, const struct mgd_source *s) { return (int32_t)(s - r->sources); }

static struct mgd_source *find_source(struct mgd_machine *m, uint64_t id) {
  uint32_t position = (uint32_t)id;
  if (position == 0 || position > (uint32_t)m->replicas.source_size) {
    return NULL;
  }
  struct mgd_source *s = &m->replicas.sources[position - 1];
  return s->open && s->generation == (uint32_t)(id >> 32) ? s : NULL;
}

/* Gives a cached replica up. Its bytes stand until somebody reaps it. */
static void doom(struct mgd_machine *m, int32_t slot) {
  struct mgd_replicas *r = &m->replicas;
  struct mgd_replica *e = &r->slots[slot];
  *(e->elder == NO_SLOT ? &r->sources[e->source].first : &r->slots[e->elder].sibling) = e->sibling;
  if (e->sibling != NO_SLOT) {
    r->slots[e->sibling].elder = e->elder;
  }
  take_from_bucket(r, slot);
  struct mgd_device *d = &m->devices[e->device];
  take_out(r, &d->kept, slot);
  d->kept_bytes -= e->bytes;
  e->state = MGD_REPLICA_DOOMED;
  append(r, &r->doomed, slot);
}

static void doom_all(struct mgd_machine *m, struct mgd_source *s) {
  while (s->first != NO_SLOT) {
    doom(m, s->first);
  }
}

/* Dooms the least recently used until the device keeps no more than `most` bytes. */
static void shrink(struct mgd_machine *m, int device, int64_t most) {
  const struct mgd_device *d = &m->devices[device];
  while (d->kept_bytes > most) {
    doom(m, d->kept.first);
  }
}

int mgd_source_open(struct mgd_machine *m, uint64_t *source) {
  struct mgd_replicas *r = &m->replicas;
  mgd_machine_enter(m);
  int code = r->first_free_source == NO_SLOT ? grow_sources(m) : MGD_OK;
  if (code == MGD_OK) {
    int32_t slot = r->first_free_source;
    struct mgd_source *s = &r->sources[slot];
    r->first_free_source = s->next;
    *s = (struct mgd_source){.open = true, .generation = s->generation, .first = NO_SLOT, .next = NO_SLOT};
    *source = (uint64_t)s->generation << 32 | (uint64_t)(slot + 1);
  }
  return mgd_machine_leave(m, code);
}

int mgd_source_close(struct mgd_machine *m, uint64_t source) {
  mgd_machine_enter(m);
  struct mgd_source *s = find_source(m, source);
  if (s) {
    doom_all(m, s);
    s->open = false;
    s->generation++;
    s->next = m->replicas.first_free_source;
    m->replicas.first_free_source = source_slot(&m->replicas, s);
  }
  return mgd_machine_leave(m, s ? MGD_OK : MGD_E_INVALID);
}

int mgd_source_written(struct mgd_machine *m, uint64_t source) {
  mgd_machine_enter(m);
  struct mgd_source *s = find_source(m, source);
  if (s) {
    s->writes++;
    doom_all(m, s);
  }
  return mgd_machine_leave(m, s ? MGD_OK : MGD_E_INVALID);
}

int mgd_source_writes(struct mgd_machine *m, uint64_t source, uint64_t *writes) {
  mgd_machine_enter(m);
  const struct mgd_source *s = find_source(m, source);
  if (s) {
    *writes = s->writes;
  }
  return mgd_machine_leave(m, s ? MGD_OK : MGD_E_INVALID);
}

/* ---- replicas */

int64_t mgd_replica_limit_locked(const struct mgd_machine *m, int device) {
  const struct mgd_device *d = &m->devices[device];
  /* Below 1 the product stays below 2**63 even for INT64_MAX. */
  return d->kept_limit < 1.0 ? (int64_t)(d->kept_limit * (double)d->capacity) : d->capacity;
}

void mgd_replica_shrink_locked(struct mgd_machine *m, int device) { shrink(m, device, mgd_replica_limit_locked(m, device)); }

/* Another thread may have brought the same bytes meanwhile: the older copy goes. */
static void insert(struct mgd_machine *m, struct mgd_source *s, int device, uint64_t extent, int64_t bytes) {
  struct mgd_replicas *r = &m->replicas;
  struct mgd_device *d = &m->devices[device];
  int32_t twin = mgd_replica_look_up(r, source_slot(r, s), device, extent);
  if (twin != NO_SLOT) {
    doom(m, twin);
  }
  shrink(m, device, mgd_replica_limit_locked(m, device) - bytes);
  int32_t slot = r->free.first;
  take_out(r, &r->free, slot);
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
  put_in_bucket(r, slot);
  append(r, &d->kept, slot);
  d->kept_bytes += bytes;
  mgd_ledger_move_locked(m, device, MGD_REPLICA, bytes);
}

/* Whether a copy may be kept; makes sure of a free slot for it. */
static int prepare(struct mgd_machine *m, uint64_t source, uint64_t writes, int device, int64_t bytes) {
  const struct mgd_source *s = find_source(m, source);
  int64_t unused;
  if (!s || bytes < 0) {
    return MGD_E_INVALID;
  }
  if (!mgd_device_known_locked(m, device)) {
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
  return m->replicas.free.first == NO_SLOT ? grow_slots(m) : MGD_OK;
}

int mgd_replica_add(struct mgd_machine *m, uint64_t source, uint64_t writes, int device, uint64_t extent, int64_t bytes, int32_t *slot) {
  mgd_machine_enter(m);
  int code = prepare(m, source, writes, device, bytes);
  if (code == MGD_OK) {
    struct mgd_source *s = find_source(m, source);
    insert(m, s, device, extent, bytes);
    *slot = s->first;
  }
  return mgd_machine_leave(m, code);
}

/* Fault injection: xorshift64 (Marsaglia 2003), one find in four. */
static bool is_shaken(struct mgd_replicas *r) {
  if (!r->shake) {
    return false;
  }
  r->shake ^= r->shake << 13;
  r->shake ^= r->shake >> 7;
  r->shake ^= r->shake << 17;
  return (r->shake & 3) == 0;
}

int mgd_replica_find(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot) {
  struct mgd_replicas *r = &m->replicas;
  mgd_machine_enter(m);
  const struct mgd_source *s = find_source(m, source);
  int32_t found = s ? mgd_replica_look_up(r, source_slot(r, s), device, extent) : NO_SLOT;
  if (found != NO_SLOT && is_shaken(r)) {
    doom(m, found);
    found = NO_SLOT;
  }
  if (found != NO_SLOT) {
    struct mgd_replica_list *kept = &m->devices[device].kept;
    if (kept->last != found) {
      take_out(r, kept, found);
      append(r, kept, found);
    }
    *slot = found;
  }
  return mgd_machine_leave(m, !s ? MGD_E_INVALID : found == NO_SLOT ? MGD_E_ABSENT
                                                                    : MGD_OK);
}

int mgd_replica_drop(struct mgd_machine *m, int32_t slot) {
  mgd_machine_enter(m);
  bool known = slot >= 0 && slot < m->replicas.size;
  if (known && m->replicas.slots[slot].state == MGD_REPLICA_CACHED) {
    doom(m, slot);
  }
  return mgd_machine_leave(m, known ? MGD_OK : MGD_E_INVALID);
}

static int make_room(struct mgd_machine *m, int device, int64_t bytes) {
  if (!mgd_device_known_locked(m, device)) {
    return MGD_E_NO_DEVICE;
  }
  const struct mgd_replica_list *kept = &m->devices[device].kept;
  if (kept->first == NO_SLOT) {
    return MGD_E_ABSENT;
  }
  int64_t freed = 0;
  do {
    freed += m->replicas.slots[kept->first].bytes;
    doom(m, kept->first);
  } while (kept->first != NO_SLOT && freed < bytes);
  return MGD_OK;
}

int mgd_replica_make_room(struct mgd_machine *m, int device, int64_t bytes) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_machine_enter(m);
  return mgd_machine_leave(m, make_room(m, device, bytes));
}

int mgd_replica_reap(struct mgd_machine *m, int32_t *slot) {
  struct mgd_replicas *r = &m->replicas;
  mgd_machine_enter(m);
  int32_t doomed = r->doomed.first;
  if (doomed != NO_SLOT) {
    struct mgd_replica *e = &r->slots[doomed];
    take_out(r, &r->doomed, doomed);
    e->state = MGD_REPLICA_FREE;
    append(r, &r->free, doomed);
    mgd_ledger_move_locked(m, e->device, MGD_REPLICA, -e->bytes);
    *slot = doomed;
  }
  return mgd_machine_leave(m, doomed == NO_SLOT ? MGD_E_ABSENT : MGD_OK);
}

int mgd_replica_limit(struct mgd_machine *m, int device, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_machine_enter(m);
  if (mgd_device_known_locked(m, device)) {
    m->devices[device].kept_limit = fraction;
    mgd_replica_shrink_locked(m, device);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

int mgd_replica_shake(struct mgd_machine *m, uint64_t seed) {
  mgd_machine_enter(m);
  m->replicas.shake = seed;
  return mgd_machine_leave(m, MGD_OK);
}

bool mgd_replica_busy_locked(const struct mgd_machine *m, int above) {
  for (int32_t i = 0; i < m->replicas.size; i++) {
    const struct mgd_replica *e = &m->replicas.slots[i];
    if (e->state != MGD_REPLICA_FREE && e->device > above) {
      return true;
    }
  }
  return false;
}
