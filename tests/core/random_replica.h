/* random_replica.h: the directory of replicas in the model of test_random.c: a
 * heap of copies with the times at which they were made, used and doomed. */
#ifndef RANDOM_REPLICA_H
#define RANDOM_REPLICA_H

#include "random_model.h"

#define EXTENTS 2

static inline int64_t kept_limit(const struct model *x, int d) { return (int64_t)(0.5 * (double)x->capacity[d]); }

static inline int64_t kept(const struct model *x, int d) {
  int64_t bytes = 0;
  for (int i = 0; i < COPIES; i++) {
    bytes += x->copies[i].state == CACHED && x->copies[i].device == d ? x->copies[i].bytes : 0;
  }
  return bytes;
}

static inline void doom(struct model *x, struct copy *c) {
  c->state = DOOMED;
  c->doomed = ++x->ticks;
}

static inline struct copy *least_recent(struct model *x, int d) {
  struct copy *least = NULL;
  for (int i = 0; i < COPIES; i++) {
    struct copy *c = &x->copies[i];
    if (c->state == CACHED && c->device == d && (!least || c->used < least->used)) {
      least = c;
    }
  }
  return least;
}

static inline void shrink(struct model *x, int d, int64_t most) {
  while (kept(x, d) > most) {
    doom(x, least_recent(x, d));
  }
}

/* The newest first, as the directory says nothing else and repeats to the byte. */
static inline void doom_all(struct model *x, int source) {
  for (struct copy *newest = NULL;; newest = NULL) {
    for (int i = 0; i < COPIES; i++) {
      struct copy *c = &x->copies[i];
      newest = c->state == CACHED && c->source == source && (!newest || c->made > newest->made) ? c : newest;
    }
    if (!newest) {
      return;
    }
    doom(x, newest);
  }
}

static inline struct copy *copy_of(struct model *x, int source, int d, uint64_t extent) {
  for (int i = 0; i < COPIES; i++) {
    struct copy *c = &x->copies[i];
    if (c->state == CACHED && c->source == source && c->device == d && c->extent == extent) {
      return c;
    }
  }
  return NULL;
}

static inline struct copy *copy_in(struct model *x, int32_t slot) {
  for (int i = 0; i < COPIES; i++) {
    if (x->copies[i].state != GONE && x->copies[i].slot == slot) {
      return &x->copies[i];
    }
  }
  return NULL;
}

/* An open source's id, or of a closed one an id that was good once. */
static inline uint64_t id_of(const struct source *s) { return s->id ? s->id : s->stale; }

/* ---- steps */

static inline void step_source(struct model *x) {
  int which = (int)roll(x, SOURCES);
  struct source *s = &x->sources[which];
  if (s->id) {
    EXPECT_OK(mgd_source_close(x->m, s->id));
    doom_all(x, which);
    s->stale = s->id;
    s->id = 0;
  }
  EXPECT_CODE(mgd_source_close(x->m, s->stale), MGD_E_INVALID);
  if (roll(x, 4)) {
    EXPECT_OK(mgd_source_open(x->m, &s->id));
    EXPECT(s->id != 0 && s->id != s->stale);
    s->writes = 0;
  }
}

static inline void step_written(struct model *x) {
  int which = (int)roll(x, SOURCES);
  struct source *s = &x->sources[which];
  uint64_t writes = 77;
  EXPECT_CODE(mgd_source_written(x->m, id_of(s)), s->id ? MGD_OK : MGD_E_INVALID);
  s->writes++;
  doom_all(x, which);
  EXPECT_CODE(mgd_source_writes(x->m, id_of(s), &writes), s->id ? MGD_OK : MGD_E_INVALID);
  EXPECT(writes == (s->id ? s->writes : 77));
}

static inline int expected_keep(const struct model *x, const struct copy *c, uint64_t writes) {
  const struct source *s = &x->sources[c->source];
  int fits = c->bytes <= kept_limit(x, c->device) ? MGD_OK : MGD_E_NO_ROOM;
  return !s->id || c->bytes < 0 ? MGD_E_INVALID : s->writes != writes ? MGD_E_STALE
                                                                      : fits;
}

/* An eighth of the capacity stays free, but a 16th may be taken. */
static inline int64_t most_now(const struct model *x, int d) {
  int64_t room = x->capacity[d] - (int64_t)(0.125 * (double)x->capacity[d]);
  const int64_t least = (int64_t)(0.0625 * (double)x->capacity[d]), limit = kept_limit(x, d);
  for (int owner = 0; owner < MGD_OWNERS; owner++) {
    room -= owner == MGD_REPLICA ? 0 : x->owner[d][owner];
  }
  room = room > least ? room : least;
  return room < limit ? room : limit;
}

static inline void step_keep(struct model *x) {
  struct copy *at = NULL;
  for (int i = 0; i < COPIES; i++) {
    at = x->copies[i].state == GONE ? &x->copies[i] : at;
  }
  if (!at) {
    return;
  }
  struct copy c = {CACHED, (int)roll(x, SOURCES), (int)roll(x, DEVICES), (uint64_t)roll(x, EXTENTS), roll(x, 300) - 2, -1, 0, 0, 0};
  uint64_t writes = x->sources[c.source].writes + (roll(x, 8) == 0);
  int expected = expected_keep(x, &c, writes);
  EXPECT_CODE(mgd_replica_add(x->m, id_of(&x->sources[c.source]), writes, c.device, c.extent, c.bytes, &c.slot), expected);
  if (expected != MGD_OK) {
    EXPECT_INT(c.slot, -1);
    return;
  }
  EXPECT(c.slot >= 0 && !copy_in(x, c.slot));
  struct copy *twin = copy_of(x, c.source, c.device, c.extent);
  if (twin) {
    doom(x, twin);
  }
  const int64_t left = most_now(x, c.device) - c.bytes;
  shrink(x, c.device, left > 0 ? left : 0);
  c.made = c.used = ++x->ticks;
  *at = c;
  x->owner[c.device][MGD_REPLICA] += c.bytes;
  touch(x, c.device);
}

static inline void step_find(struct model *x) {
  int source = (int)roll(x, SOURCES), device = (int)roll(x, DEVICES);
  uint64_t extent = (uint64_t)roll(x, EXTENTS), id = x->sources[source].id;
  struct copy *c = copy_of(x, source, device, extent);
  int32_t slot = -1;
  const int code = !id ? MGD_E_INVALID : c ? MGD_OK : MGD_E_ABSENT;
  if (roll(x, 4) == 0) {
    EXPECT_CODE(mgd_replica_peek(x->m, id_of(&x->sources[source]), device, extent, &slot), code);
    EXPECT_INT(slot, c ? c->slot : -1);
    return;
  }
  EXPECT_CODE(mgd_replica_find(x->m, id_of(&x->sources[source]), device, extent, &slot), code);
  EXPECT_INT(slot, c ? c->slot : -1);
  if (c) {
    c->used = ++x->ticks;
  }
}

static inline void step_drop(struct model *x) {
  int32_t slot = (int32_t)roll(x, 70);
  struct copy *c = copy_in(x, slot);
  int code = mgd_replica_drop(x->m, slot);
  EXPECT(code == MGD_OK || (code == MGD_E_INVALID && !c)); /* slots come into being with the first copy */
  if (c && c->state == CACHED) {
    doom(x, c);
  }
}

static inline void step_make_room(struct model *x) {
  int d = (int)roll(x, DEVICES);
  int64_t bytes = roll(x, 400);
  struct copy *c = least_recent(x, d);
  EXPECT_CODE(mgd_replica_make_room(x->m, d, bytes, true), c ? MGD_OK : MGD_E_ABSENT);
  for (; c; c = bytes > 0 ? least_recent(x, d) : NULL) {
    bytes -= c->bytes;
    doom(x, c);
  }
}

static inline void step_reap(struct model *x) {
  struct copy *first = NULL;
  int32_t slot = -1;
  for (int i = 0; i < COPIES; i++) {
    struct copy *c = &x->copies[i];
    first = c->state == DOOMED && (!first || c->doomed < first->doomed) ? c : first;
  }
  EXPECT_CODE(mgd_replica_reap(x->m, &slot), first ? MGD_OK : MGD_E_ABSENT);
  EXPECT_INT(slot, first ? first->slot : -1);
  if (first) {
    first->state = GONE;
    x->owner[first->device][MGD_REPLICA] -= first->bytes;
  }
}

static inline void close_all(struct model *x) {
  int32_t slot;
  for (int i = 0; i < SOURCES; i++) {
    EXPECT(!x->sources[i].id || mgd_source_close(x->m, x->sources[i].id) == MGD_OK);
  }
  while (mgd_replica_reap(x->m, &slot) == MGD_OK) {
  }
}

#endif
