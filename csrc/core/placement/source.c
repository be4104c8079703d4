/* source.c: storages that have, or may get, copies on other devices.
 *
 * A source counts how often it was written. When it is written or closed, all its copies are doomed. The directory of
 * copies is in replica.c.
 */
#include "core/internal_machine.h"

#define NO_SLOT (-1)

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

struct mgd_source *mgd_source_find(struct mgd_machine *m, uint64_t id) {
  uint32_t position = (uint32_t)id;
  if (position == 0 || position > (uint32_t)m->replicas.source_size) {
    return NULL;
  }
  struct mgd_source *s = &m->replicas.sources[position - 1];
  return s->open && s->generation == (uint32_t)(id >> 32) ? s : NULL;
}

int mgd_source_open(struct mgd_machine *m, uint64_t *source) {
  struct mgd_replicas *r = &m->replicas;
  mgd_state_enter(m);
  int code = r->first_free_source == NO_SLOT ? grow_sources(m) : MGD_OK;
  if (code == MGD_OK) {
    int32_t slot = r->first_free_source;
    struct mgd_source *s = &r->sources[slot];
    r->first_free_source = s->next;
    *s = (struct mgd_source){.open = true, .generation = s->generation, .first = NO_SLOT, .next = NO_SLOT};
    *source = (uint64_t)s->generation << 32 | (uint64_t)(slot + 1);
  }
  return mgd_state_leave(m, code);
}

int mgd_source_close(struct mgd_machine *m, uint64_t source) {
  mgd_state_enter(m);
  struct mgd_source *s = mgd_source_find(m, source);
  if (s) {
    mgd_replica_table_doom_all(m, s);
    s->open = false;
    s->generation++;
    s->next = m->replicas.first_free_source;
    m->replicas.first_free_source = (int32_t)(s - m->replicas.sources);
  }
  return mgd_state_leave(m, s ? MGD_OK : MGD_E_INVALID);
}

int mgd_source_written(struct mgd_machine *m, uint64_t source) {
  mgd_state_enter(m);
  struct mgd_source *s = mgd_source_find(m, source);
  if (s) {
    s->writes++;
    mgd_replica_table_doom_all(m, s);
  }
  return mgd_state_leave(m, s ? MGD_OK : MGD_E_INVALID);
}

int mgd_source_writes(struct mgd_machine *m, uint64_t source, uint64_t *writes) {
  mgd_state_enter(m);
  const struct mgd_source *s = mgd_source_find(m, source);
  if (s) {
    *writes = s->writes;
  }
  return mgd_state_leave(m, s ? MGD_OK : MGD_E_INVALID);
}
