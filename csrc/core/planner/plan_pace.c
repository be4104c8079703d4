/* plan_pace.c: when victims are written, leave and come back, for the planner.
 *
 * The pace simulates some steps on plan_device.c and decides on the way, always for the next operator. Copies are
 * issued only as far as the streams have time while the current operator runs, so that urgent copies do not queue
 * behind less urgent ones. The last decision for a gap counts. It may differ from step to step, so plan_settle.c makes
 * sure that everything fits.
 *
 * - A storage may be copied to the host after its last write, even if it is read again before it leaves; the storage
 *   whose room is needed first is copied first. No other storage is copied.
 * - It leaves at once if its copy is good, else as soon as the copy has begun, and at the latest when room is short.
 * - Storages are fetched in the order of need, each as soon as it fits at every operator until its use. A storage
 *   that has not left by then stays.
 *
 * An example: operators of 10 ns, storages of 4 bytes, a room of 8 bytes, copies of 1 byte/ns. +: made, !: written.
 * W lives through all steps, X dies after operator 4, Y and Z die after 3.
 *
 *   operator            0      1      2      3      4      5, which is 0 of the next step
 *   uses                W +X   X +Y   Y +Z   Y Z    X W!   W +X
 *   before it, evict           W      X                           from plan_evict.c: Y, then Z, need the room
 *              write    W      X
 *              leave           W      X
 *              fetch                                W X
 *
 * W leaves in the gap after its use by 0: `gap` is that use, and `base` is 0 in this step. The bytes on the host are
 * the version that the use by 4 of the step before made: `version` is that use, and `version_base` is -5 then. Seen
 * from there, W is due before operator 5 + 1, and its `write` is 5: nothing writes W any more, and the stream is free.
 * The copy of X begins before 1, which still reads X. Both are fetched as late as they are needed, because there is no
 * room before. If there is, a storage is fetched earlier; its lease counts it in the profile from then until its use.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

#define LAPS 4

int mgd_plan_pace_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_pace *p) {
  const size_t storages = (size_t)c->storages + 1, uses = (size_t)c->uses + 1;
  memset(p, 0, sizeof *p);
  p->fetches = mgd_alloc_new(a, uses, sizeof *p->fetches);
  p->due = mgd_alloc_new(a, uses, sizeof *p->due);
  p->leaving = mgd_alloc_new(a, storages, sizeof *p->leaving);
  p->gap = mgd_alloc_new(a, storages, sizeof *p->gap);
  p->version = mgd_alloc_new(a, storages, sizeof *p->version);
  p->base = mgd_alloc_new(a, storages, sizeof *p->base);
  p->version_base = mgd_alloc_new(a, storages, sizeof *p->version_base);
  p->lease = mgd_alloc_new(a, storages, sizeof *p->lease);
  p->lease_end = mgd_alloc_new(a, storages, sizeof *p->lease_end);
  p->latest = mgd_alloc_new(a, storages, sizeof *p->latest);
  return p->fetches && p->due && p->leaving && p->gap && p->version && p->base && p->version_base && p->lease &&
                 p->lease_end && p->latest
             ? mgd_plan_heap_make(a, c->storages, &p->queue)
             : MGD_E_NOMEM;
}

void mgd_plan_pace_free(struct mgd_plan_pace *p) {
  mgd_alloc_free(p->fetches);
  mgd_alloc_free(p->due);
  mgd_alloc_free(p->leaving);
  mgd_alloc_free(p->gap);
  mgd_alloc_free(p->version);
  mgd_alloc_free(p->base);
  mgd_alloc_free(p->version_base);
  mgd_alloc_free(p->lease);
  mgd_alloc_free(p->lease_end);
  mgd_alloc_free(p->latest);
  mgd_plan_heap_free(&p->queue);
}

/* ---- before the walk */

void mgd_plan_pace_find_due(const struct mgd_plan_cycle *c, const int32_t *leave, int64_t *latest, int32_t *due) {
  for (int32_t s = 0; s < c->storages; s++) {
    latest[s] = -1;
  }
  for (int64_t base = c->operators; base >= 0; base -= c->operators) {
    for (int32_t o = c->operators - 1; o >= 0; o--) {
      for (int32_t i = c->first_death[o]; i < c->first_death[o + 1]; i++) {
        latest[c->dead[i]] = -1;
      }
      for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
        const struct mgd_plan_use *use = &c->step->uses[k];
        int64_t *last = &latest[use->storage];
        *last = leave[k] >= 0 ? base + leave[k] : *last;
        due[k] = *last >= 0 ? (int32_t)(*last - base) : -1;
        *last = mgd_plan_is_written(use) ? -1 : *last;
      }
    }
  }
}

/* Lists the gaps whose storages come back, sorted by the operator of the step that needs them. */
static void list_fetches(struct mgd_plan_pace *p, const struct mgd_plan_cycle *c, const int32_t *evict) {
  p->next_fetch = 0;
  p->fetch_count = 0;
  for (int32_t k = 0; k < c->uses; k++) {
    if (evict[k] >= 0 && c->after[k] >= 0) {
      p->fetches[p->fetch_count++] = (struct mgd_plan_entry){c->until[k] % c->operators, k};
    }
  }
  mgd_plan_heap_sort(p->fetches, p->fetch_count);
}

/* ---- the walk */

/* at: the operator before which actions are put now, counted through all steps. Invariants: a storage in the queue is
 * home and has no good copy; `leaving` is set only for storages that are home, in the gap `gap` of the step at
 * `base`. */
struct walk {
  struct mgd_plan_pace *p;
  struct mgd_plan_device *d;
  struct mgd_plan_profile *profile;
  const struct mgd_plan_cycle *c;
  struct mgd_plan_choice *choice;
  int64_t at;
  int32_t turn; /* counts the copies */
};

static int64_t room_of(const struct walk *w, int32_t s) { return w->c->step->storage[s].bytes; }

/* Counts the storage in the profile until `end`, in spite of `evict`. */
static void open_lease(struct walk *w, int32_t s, int64_t end) {
  struct mgd_plan_pace *p = w->p;
  const int32_t n = w->c->operators;
  if (p->lease[s] < 0 && w->at < end) {
    p->lease[s] = w->at;
    p->lease_end[s] = end;
    mgd_plan_profile_add(w->profile, (int32_t)(w->at % n), (int32_t)(w->at % n + end - w->at), room_of(w, s));
  }
}

static void close_lease(struct walk *w, int32_t s) {
  struct mgd_plan_pace *p = w->p;
  const int32_t n = w->c->operators;
  if (p->lease[s] >= 0) {
    const int32_t from = (int32_t)(p->lease[s] % n);
    mgd_plan_profile_add(w->profile, from, (int32_t)(from + p->lease_end[s] - p->lease[s]), -room_of(w, s));
    p->lease[s] = -1;
  }
}

/* Cancels the departure: the storage stays home in this gap. */
static void stay_home(struct walk *w, int32_t s) {
  if (w->p->leaving[s] >= 0) {
    w->choice->leave[w->p->leaving[s]] = -1;
    w->p->leaving[s] = -1;
  }
}

static void issue_leave(struct walk *w, int32_t s) {
  const int32_t k = w->p->leaving[s];
  w->choice->leave[k] = (int32_t)(w->at - w->p->base[s]);
  w->p->leaving[s] = -1;
  mgd_plan_device_leave(w->d, s);
}

/* Copies the first storage of the queue; it then leaves if it is to leave in its gap. */
static void issue_write(struct walk *w) {
  struct mgd_plan_pace *p = w->p;
  const int32_t s = mgd_plan_heap_pop(&p->queue), k = p->version[s];
  w->choice->write[k] = (int32_t)(w->at - p->version_base[s]);
  w->choice->write_turn[k] = w->turn++;
  mgd_plan_device_write(w->d, s);
  if (p->leaving[s] >= 0) {
    issue_leave(w, s);
  }
}

static void force_room(struct walk *w, int64_t bytes) {
  while (w->d->used + bytes > w->c->machine.room && w->p->queue.count > 0) {
    issue_write(w);
  }
}

static void issue_fetch(struct walk *w, int32_t s) {
  mgd_plan_device_fetch(w->d, s);
  const int32_t k = w->p->gap[s];
  if (k >= 0) {
    w->choice->fetch[k] = (int32_t)(w->at - w->p->base[s]);
    w->choice->fetch_turn[k] = w->turn++;
  }
}

/* Fetches operands and makes room so that operator o can run, and runs it. */
static void run_operator(struct walk *w, int32_t o) {
  struct mgd_plan_pace *p = w->p;
  const int32_t first = w->c->step->first_use[o], end = w->c->step->first_use[o + 1];
  for (int32_t k = first; k < end; k++) {
    const int32_t s = w->c->step->uses[k].storage;
    stay_home(w, s);
    if (mgd_plan_is_written(&w->c->step->uses[k])) {
      mgd_plan_heap_remove(&p->queue, s);
    }
  }
  for (int32_t k = first; k < end; k++) {
    const int32_t s = w->c->step->uses[k].storage;
    if (!(w->c->step->uses[k].flags & MGD_PLAN_MADE) && !w->d->is_home[s]) {
      force_room(w, room_of(w, s));
      issue_fetch(w, s);
    }
  }
  force_room(w, w->c->made[o]);
  const int64_t start = mgd_plan_device_start(w->d, o);
  while (w->d->out_free < start && p->queue.count > 0) {
    issue_write(w);
  }
  mgd_plan_device_run(w->d, o);
}

/* The next fetch: its gap, when the gap begins, and when the storage is needed. */
struct wanted {
  int32_t gap, storage;
  int64_t begins, needed;
};

/* Finds the next fetch. Fetches that are too late, or whose gap began before the first step, are skipped. */
static bool find_wanted(struct walk *w, struct wanted *out) {
  struct mgd_plan_pace *p = w->p;
  for (; p->fetch_count > 0; p->next_fetch++) {
    const struct mgd_plan_entry *next = &p->fetches[p->next_fetch % p->fetch_count];
    const int32_t k = next->value;
    out->gap = k;
    out->storage = w->c->step->uses[k].storage;
    out->needed = p->next_fetch / p->fetch_count * w->c->operators + next->key;
    out->begins = out->needed - (w->c->until[k] - w->c->operator_of[k]);
    if (out->needed >= w->at && out->begins >= 0) {
      return true;
    }
  }
  return false;
}

/* Whether the gap has begun and the storage fits at each operator until it is needed. No gap is longer than a step, so
 * these operators are fewer than a step has. */
static bool may_come(const struct walk *w, const struct wanted *next) {
  const int32_t from = (int32_t)(w->at % w->c->operators);
  if (next->begins >= w->at - 1) { return false; }
  return next->needed == w->at || w->p->lease[next->storage] >= 0 ||
         mgd_plan_profile_most(w->profile, from, (int32_t)(from + next->needed - w->at)) + room_of(w, next->storage) <=
             w->c->machine.room;
}

/* Issues fetches as long as the stream is free before the operator ends. */
static void fetch_more(struct walk *w) {
  struct mgd_plan_pace *p = w->p;
  struct wanted next;
  while (w->d->in_free < w->d->end && find_wanted(w, &next) && may_come(w, &next)) {
    const int32_t s = next.storage, after = w->c->after[next.gap];
    if (w->d->is_home[s]) {
      stay_home(w, s);
      if (mgd_plan_is_written(&w->c->step->uses[after]) || p->due[after] < 0) {
        mgd_plan_heap_remove(&p->queue, s);
      }
    } else if (w->d->used + room_of(w, s) + w->c->made[w->at % w->c->operators] > w->c->machine.room) {
      return;
    } else {
      issue_fetch(w, s);
    }
    open_lease(w, s, next.needed);
    p->next_fetch++;
  }
}

/* Begins the gap after use k: the storage may have to leave in it, and may need a copy on the host. */
static void begin_gap(struct walk *w, int32_t k, int64_t base) {
  struct mgd_plan_pace *p = w->p;
  const int32_t s = w->c->step->uses[k].storage;
  close_lease(w, s);
  p->gap[s] = k;
  p->base[s] = base;
  if (mgd_plan_is_written(&w->c->step->uses[k])) {
    p->version[s] = k;
    p->version_base[s] = base;
  }
  if (w->choice->evict[k] >= 0) {
    p->leaving[s] = k;
  }
  if (w->d->has_copy[s]) {
    if (p->leaving[s] >= 0) {
      issue_leave(w, s);
    }
  } else if (p->due[k] >= 0) {
    mgd_plan_heap_put(&p->queue, s, base + p->due[k]);
  }
}

static void end_walked(struct walk *w, int32_t o, int64_t base) {
  struct mgd_plan_pace *p = w->p;
  for (int32_t k = w->c->step->first_use[o]; k < w->c->step->first_use[o + 1]; k++) {
    begin_gap(w, k, base);
  }
  for (int32_t i = w->c->first_death[o]; i < w->c->first_death[o + 1]; i++) {
    const int32_t s = w->c->dead[i];
    stay_home(w, s);
    mgd_plan_heap_remove(&p->queue, s);
    close_lease(w, s);
    p->gap[s] = p->version[s] = -1;
  }
  mgd_plan_device_die(w->d, o);
}

static void begin_walk(struct walk *w) {
  struct mgd_plan_pace *p = w->p;
  mgd_plan_heap_clear(&p->queue);
  for (int32_t s = 0; s < w->c->storages; s++) {
    p->leaving[s] = p->gap[s] = p->version[s] = -1;
    p->lease[s] = -1;
  }
  for (int32_t k = 0; k < w->c->uses; k++) {
    w->choice->leave[k] = w->choice->evict[k];
    w->choice->fetch[k] = w->c->until[k];
    w->choice->write[k] = -1;
    w->choice->write_turn[k] = w->choice->fetch_turn[k] = 0;
  }
  mgd_plan_pace_find_due(w->c, w->choice->evict, p->latest, p->due);
  list_fetches(p, w->c, w->choice->evict);
  mgd_plan_device_reset(w->d);
}

void mgd_plan_pace_choose(struct mgd_plan_pace *p, struct mgd_plan_device *d, struct mgd_plan_profile *profile,
                          struct mgd_plan_choice *choice) {
  struct walk w = {.p = p, .d = d, .profile = profile, .c = d->cycle, .choice = choice};
  begin_walk(&w);
  for (int lap = 0; lap < LAPS; lap++) {
    for (int32_t o = 0; o < w.c->operators; o++) {
      const int64_t base = (int64_t)lap * w.c->operators;
      run_operator(&w, o);
      w.at++;
      while (d->out_free < d->end && p->queue.count > 0) {
        issue_write(&w);
      }
      end_walked(&w, o, base);
      fetch_more(&w);
    }
  }
}
