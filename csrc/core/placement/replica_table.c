/* replica_table.c: the slots of replicas: their lists, their chains, and the table by which they are found.
 *
 * Slots are linked and unlinked here, and allocated when there are too few. replica.c and source.c decide which copies
 * are kept, which are stale and which are dropped first.
 */
#include "core/internal_machine.h"

#define NO_SLOT (-1)

/* ---- lists of slots */

void mgd_replica_table_append(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot) {
  r->slots[slot].next = NO_SLOT;
  r->slots[slot].previous = list->last;
  *(list->last == NO_SLOT ? &list->first : &r->slots[list->last].next) = slot;
  list->last = slot;
}

void mgd_replica_table_take_out(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot) {
  const struct mgd_replica *e = &r->slots[slot];
  *(e->previous == NO_SLOT ? &list->first : &r->slots[e->previous].next) = e->next;
  *(e->next == NO_SLOT ? &list->last : &r->slots[e->next].previous) = e->previous;
}

void mgd_replica_table_init(struct mgd_replicas *r) {
  r->free = r->doomed = (struct mgd_replica_list){NO_SLOT, NO_SLOT};
  r->first_free_source = NO_SLOT;
}

/* ---- the table of cached replicas: a storage may have very many parts */

/* Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper half is well mixed. */
int32_t mgd_replica_table_bucket(const struct mgd_replicas *r, int32_t source, int device, uint64_t extent) {
  uint64_t key = extent ^ (uint64_t)((int64_t)source * MGD_MAX_DEVICES + device) * 0xbf58476d1ce4e5b9u;
  return (int32_t)((key * 0x9e3779b97f4a7c15u >> 32) & (uint64_t)(r->size - 1));
}

static bool is_copy(const struct mgd_replica *e, int32_t source, int device, uint64_t extent) {
  return e->source == source && e->device == device && e->extent == extent;
}

int32_t mgd_replica_table_look_up(const struct mgd_replicas *r, int32_t source, int device, uint64_t extent) {
  int32_t slot = r->size ? r->buckets[mgd_replica_table_bucket(r, source, device, extent)] : NO_SLOT;
  while (slot != NO_SLOT && !is_copy(&r->slots[slot], source, device, extent)) {
    slot = r->slots[slot].collision;
  }
  return slot;
}

void mgd_replica_table_put_in_bucket(struct mgd_replicas *r, int32_t slot) {
  struct mgd_replica *e = &r->slots[slot];
  int32_t *first = &r->buckets[mgd_replica_table_bucket(r, e->source, e->device, e->extent)];
  e->collision = *first;
  *first = slot;
}

static void take_from_bucket(struct mgd_replicas *r, int32_t slot) {
  const struct mgd_replica *e = &r->slots[slot];
  int32_t *link = &r->buckets[mgd_replica_table_bucket(r, e->source, e->device, e->extent)];
  while (*link != slot) {
    link = &r->slots[*link].collision;
  }
  *link = e->collision;
}

/* Fills the table anew after the size has changed. */
static void fill_buckets(struct mgd_replicas *r) {
  for (int32_t i = 0; i < r->size; i++) {
    r->buckets[i] = NO_SLOT;
  }
  for (int32_t i = 0; i < r->size; i++) {
    if (r->slots[i].state == MGD_REPLICA_CACHED) {
      mgd_replica_table_put_in_bucket(r, i);
    }
  }
}

/* Doubles the table and the slots. If the slots fail to grow, the larger table does no harm. */
int mgd_replica_table_grow(struct mgd_machine *m) {
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
    mgd_replica_table_append(r, &r->free, i);
  }
  r->size = size;
  fill_buckets(r);
  return MGD_OK;
}

/* Gives a cached replica up. Its bytes are counted until a caller reaps it. */
void mgd_replica_table_doom(struct mgd_machine *m, int32_t slot) {
  struct mgd_replicas *r = &m->replicas;
  struct mgd_replica *e = &r->slots[slot];
  *(e->elder == NO_SLOT ? &r->sources[e->source].first : &r->slots[e->elder].sibling) = e->sibling;
  if (e->sibling != NO_SLOT) {
    r->slots[e->sibling].elder = e->elder;
  }
  take_from_bucket(r, slot);
  struct mgd_device *d = &m->devices[e->device];
  mgd_replica_table_take_out(r, &d->kept, slot);
  d->kept_bytes -= e->bytes;
  e->state = MGD_REPLICA_DOOMED;
  mgd_replica_table_append(r, &r->doomed, slot);
}

void mgd_replica_table_doom_all(struct mgd_machine *m, struct mgd_source *s) {
  while (s->first != NO_SLOT) {
    mgd_replica_table_doom(m, s->first);
  }
}
