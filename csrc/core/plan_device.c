/* plan_device.c: when a device does what it is told: operators, two streams of copies, and room that is free in time.
 *
 * Owns the times of mgd_plan_simulate(), as plan.h states them. Is told what to do in the host's order, and decides
 * nothing.
 */
#include "internal_plan.h"

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
    d->has_copy[s] = d->cycle->step->storage[s].dies < 0;
    d->written[s] = d->idle[s] = d->arrives[s] = d->copied[s] = 0;
  }
}

static int64_t size_of(const struct mgd_plan_device *d, int32_t s) { return d->cycle->step->storage[s].bytes; }

/* ---- room */

/* Gives up the room of s, free from `when` on. A piece of s that is still there waits for the later time. */
static void give_room(struct mgd_plan_device *d, int32_t s, int64_t when) {
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

/* Nothing that is issued from now on begins before `reached`. */
static void join_ready(struct mgd_plan_device *d) {
  while (d->pieces.count > 0 && d->pieces.key[d->pieces.item[0]] <= d->reached) {
    d->ready += d->piece[mgd_plan_heap_pop(&d->pieces)];
  }
}

/* When that many bytes are free, taking those first that are free first. Later than `limit`: takes nothing. */
static int64_t take_room(struct mgd_plan_device *d, int64_t bytes, int64_t limit) {
  int64_t need = bytes - d->ready, when = d->reached;
  int32_t n = 0;
  while (need > 0 && d->pieces.count > 0) {
    when = d->pieces.key[d->pieces.item[0]];
    if (when > limit) {
      break;
    }
    const int32_t s = mgd_plan_heap_pop(&d->pieces);
    d->scratch[n++] = (struct mgd_plan_entry){when, s};
    need -= d->piece[s];
  }
  if (when > limit) {
    while (n-- > 0) {
      mgd_plan_heap_put(&d->pieces, d->scratch[n].value, d->scratch[n].key);
    }
    return when;
  }
  if (need < 0 && n > 0) { /* the rest of the last one is free when that is */
    d->piece[d->scratch[n - 1].value] = -need;
    mgd_plan_heap_put(&d->pieces, d->scratch[n - 1].value, when);
  }
  d->ready = n > 0 && need <= 0 ? 0 : -need;
  d->used += bytes;
  return when;
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

bool mgd_plan_device_fetch(struct mgd_plan_device *d, int32_t s, int64_t limit) {
  join_ready(d);
  const int64_t room = take_room(d, size_of(d, s), limit);
  if (room > limit) {
    return false;
  }
  const int64_t start = mgd_max(mgd_max(d->in_free, d->reached), mgd_max(room, d->copied[s]));
  d->in_free = d->arrives[s] = start + d->cycle->in_ns[s];
  d->is_home[s] = true;
  return true;
}

void mgd_plan_device_appear(struct mgd_plan_device *d, int32_t s) {
  (void)take_room(d, size_of(d, s), INT64_MAX);
  d->is_home[s] = true;
}

/* ---- operators */

void mgd_plan_device_run(struct mgd_plan_device *d, int32_t o) {
  const struct mgd_plan_cycle *c = d->cycle;
  join_ready(d);
  int64_t start = mgd_max(d->end, take_room(d, c->made[o], INT64_MAX));
  for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    if (use->flags & MGD_PLAN_MADE) {
      d->is_home[use->storage] = true;
      d->arrives[use->storage] = d->copied[use->storage] = 0;
    }
    start = mgd_max(start, d->arrives[use->storage]);
  }
  d->reached = start;
  d->end = start + c->step->ns[o];
  for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    d->idle[use->storage] = d->end;
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
