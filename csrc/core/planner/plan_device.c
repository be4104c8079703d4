/* plan_device.c: a simulated device: operators, two streams of copies, and room that becomes free in time.
 *
 * It computes the times of mgd_plan_simulate(), as plan.h states them. The caller issues work in the host's order;
 * nothing is decided here.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

int mgd_plan_device_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_device *d) {
  const size_t n = (size_t)c->storages + 1;
  memset(d, 0, sizeof *d);
  d->cycle = c;
  d->is_home = mgd_alloc_new(a, n, sizeof *d->is_home);
  d->has_copy = mgd_alloc_new(a, n, sizeof *d->has_copy);
  d->written = mgd_alloc_new(a, n, sizeof *d->written);
  d->idle = mgd_alloc_new(a, n, sizeof *d->idle);
  d->arrives = mgd_alloc_new(a, n, sizeof *d->arrives);
  d->copied = mgd_alloc_new(a, n, sizeof *d->copied);
  d->piece = mgd_alloc_new(a, n, sizeof *d->piece);
  d->scratch = mgd_alloc_new(a, n, sizeof *d->scratch);
  return d->is_home && d->has_copy && d->written && d->idle && d->arrives && d->copied && d->piece && d->scratch
             ? mgd_plan_heap_make(a, c->storages, &d->pieces)
             : MGD_E_NOMEM;
}

void mgd_plan_device_free(struct mgd_plan_device *d) {
  mgd_alloc_free(d->is_home);
  mgd_alloc_free(d->has_copy);
  mgd_alloc_free(d->written);
  mgd_alloc_free(d->idle);
  mgd_alloc_free(d->arrives);
  mgd_alloc_free(d->copied);
  mgd_alloc_free(d->piece);
  mgd_alloc_free(d->scratch);
  mgd_plan_heap_free(&d->pieces);
}

void mgd_plan_device_reset(struct mgd_plan_device *d) {
  const int32_t n = d->cycle->storages;
  d->used = d->reached = d->end = d->in_free = d->out_free = 0;
  d->ready = d->cycle->machine.room;
  mgd_plan_heap_clear(&d->pieces);
  for (int32_t s = 0; s < n; s++) {
    d->is_home[s] = false;
    d->has_copy[s] = true;
    d->written[s] = d->idle[s] = d->arrives[s] = d->copied[s] = 0;
  }
}

static int64_t size_of(const struct mgd_plan_device *d, int32_t s) { return d->cycle->step->storage[s].bytes; }

/* ---- room */

/* Joins the pieces that are free at `reached`: work that is issued from now on does not begin earlier. */
static void join_ready(struct mgd_plan_device *d) {
  while (d->pieces.count > 0 && d->pieces.key[d->pieces.item[0]] <= d->reached) {
    d->ready += d->piece[mgd_plan_heap_pop(&d->pieces)];
  }
}

/* Gives up the room of s, which is free from `when` on. A piece of s that is still there gets the later time. */
static void give_room(struct mgd_plan_device *d, int32_t s, int64_t when) {
  join_ready(d);
  d->is_home[s] = false;
  d->used -= size_of(d, s);
  if (d->pieces.place[s] >= 0) {
    d->piece[s] += size_of(d, s);
    when = mgd_max(when, d->pieces.key[s]);
  } else {
    d->piece[s] = size_of(d, s);
  }
  mgd_plan_heap_put(&d->pieces, s, when);
}

/* Returns when that many bytes are free, by taking the pieces that are free first. Moves these pieces to scratch. */
static int64_t find_room(struct mgd_plan_device *d, int64_t bytes, int32_t *pieces) {
  int64_t need = bytes - d->ready, when = d->reached;
  *pieces = 0;
  while (need > 0 && d->pieces.count > 0) {
    when = d->pieces.key[d->pieces.item[0]];
    const int32_t s = mgd_plan_heap_pop(&d->pieces);
    d->scratch[(*pieces)++] = (struct mgd_plan_entry){when, s};
    need -= d->piece[s];
  }
  return when;
}

/* Undoes find_room(). */
static void leave_room(struct mgd_plan_device *d, int32_t pieces) {
  for (int32_t i = 0; i < pieces; i++) {
    mgd_plan_heap_put(&d->pieces, d->scratch[i].value, d->scratch[i].key);
  }
}

/* Takes the room that find_room() found. The rest of the last piece stays free from the same time on. */
static void take_room(struct mgd_plan_device *d, int64_t bytes, int32_t pieces) {
  int64_t rest = d->ready - bytes;
  for (int32_t i = 0; i < pieces; i++) {
    rest += d->piece[d->scratch[i].value];
  }
  if (rest > 0 && pieces > 0) {
    const struct mgd_plan_entry *last = &d->scratch[pieces - 1];
    d->piece[last->value] = rest;
    mgd_plan_heap_put(&d->pieces, last->value, last->key);
    rest = 0;
  }
  d->ready = rest;
  d->used += bytes;
}

/* ---- copies */

void mgd_plan_device_write(struct mgd_plan_device *d, int32_t s) {
  const int64_t start = mgd_max(mgd_max(d->out_free, d->reached), mgd_max(d->written[s], d->arrives[s]));
  d->out_free = d->copied[s] = start + d->cycle->out_ns[s];
  d->has_copy[s] = true;
}

void mgd_plan_device_leave(struct mgd_plan_device *d, int32_t s) {
  give_room(d, s, mgd_max(mgd_max(d->idle[s], d->arrives[s]), d->copied[s]));
}

void mgd_plan_device_fetch(struct mgd_plan_device *d, int32_t s) {
  int32_t pieces;
  join_ready(d);
  const int64_t room = find_room(d, size_of(d, s), &pieces);
  take_room(d, size_of(d, s), pieces);
  const int64_t start = mgd_max(mgd_max(d->in_free, d->reached), mgd_max(room, d->copied[s]));
  d->in_free = d->arrives[s] = start + d->cycle->in_ns[s];
  d->is_home[s] = true;
}

void mgd_plan_device_appear(struct mgd_plan_device *d, int32_t s) {
  int32_t pieces;
  (void)find_room(d, size_of(d, s), &pieces);
  take_room(d, size_of(d, s), pieces);
  d->is_home[s] = true;
}

/* ---- operators */

int64_t mgd_plan_device_start(struct mgd_plan_device *d, int32_t o) {
  const struct mgd_plan_cycle *c = d->cycle;
  int32_t pieces;
  join_ready(d);
  int64_t start = mgd_max(d->end, find_room(d, c->made[o], &pieces));
  leave_room(d, pieces);
  for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    start = use->flags & MGD_PLAN_MADE ? start : mgd_max(start, d->arrives[use->storage]);
  }
  return start;
}

void mgd_plan_device_run(struct mgd_plan_device *d, int32_t o) {
  const struct mgd_plan_cycle *c = d->cycle;
  const int64_t start = mgd_plan_device_start(d, o);
  int32_t pieces;
  (void)find_room(d, c->made[o], &pieces);
  take_room(d, c->made[o], pieces);
  d->reached = start;
  d->end = start + c->step->ns[o];
  for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    d->idle[use->storage] = d->end;
    if (use->flags & MGD_PLAN_MADE) {
      d->is_home[use->storage] = true;
      d->arrives[use->storage] = d->copied[use->storage] = 0;
    }
    if (mgd_plan_is_written(use)) {
      d->written[use->storage] = d->end;
      d->has_copy[use->storage] = false;
    }
  }
}

void mgd_plan_device_die(struct mgd_plan_device *d, int32_t o) {
  for (int32_t i = d->cycle->first_death[o]; i < d->cycle->first_death[o + 1]; i++) {
    const int32_t s = d->cycle->dead[i];
    d->has_copy[s] = false;
    if (d->is_home[s]) {
      mgd_plan_device_leave(d, s);
    }
  }
}
