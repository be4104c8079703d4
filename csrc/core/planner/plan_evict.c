/* plan_evict.c: which storages are evicted, and when at the latest, for the planner.
 *
 * The storage whose next use is furthest is evicted first (Belady, IBM Systems Journal 5(2), 1966), over several steps,
 * so that the last of them is what each step repeats. Then gaps that need not be empty are filled again: the choice
 * looks only forwards, and takes whole storages. For the same reason gaps may be traded for cheaper ones in the end.
 * This file fills `evict` of the choice; it does not model streams.
 *
 * If a step reads each storage once, in turn, the furthest next use evicts a row of neighbours: they come back one
 * after the other, and then the link is idle while the storages that stayed are used. So another way spreads the
 * evicted storages evenly over the step.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

#define LAPS 5                     /* the last but one is used: gaps that begin in it end in the last */
#define NEVER ((int64_t)1 << 40)   /* a next use that does not come */
#define SMALL 1000000 /* storages below this leave last, as a rule: a copy's latency would cost more than their bytes */
#define LAST ((int64_t)1 << 42) /* puts a key behind all other keys; -LAST puts it in front */
#define PLACES (1 << 20)
#define TRADES 64 /* gaps that are traded at most */
#define OTHERS 6 /* gaps that are emptied for one of them at most */

int mgd_plan_evict_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_evict *e) {
  const size_t storages = (size_t)c->storages + 1, operators = (size_t)c->operators + 1;
  memset(e, 0, sizeof *e);
  e->is_home = mgd_alloc_new(a, storages, sizeof *e->is_home);
  e->gap = mgd_alloc_new(a, storages, sizeof *e->gap);
  e->base = mgd_alloc_new(a, storages, sizeof *e->base);
  e->is_written = mgd_alloc_new(a, storages, sizeof *e->is_written);
  e->limit = mgd_alloc_new(a, operators, sizeof *e->limit);
  e->bytes = mgd_alloc_new(a, operators, sizeof *e->bytes);
  e->order = mgd_alloc_new(a, (size_t)c->uses + 1, sizeof *e->order);
  if (!(e->is_home && e->gap && e->base && e->is_written && e->limit && e->bytes && e->order)) {
    return MGD_E_NOMEM;
  }
  for (int32_t k = 0; k < c->uses; k++) {
    e->is_written[c->step->uses[k].storage] |= mgd_plan_is_written(&c->step->uses[k]);
  }
  return mgd_plan_heap_make(a, c->storages, &e->home);
}

void mgd_plan_evict_free(struct mgd_plan_evict *e) {
  mgd_alloc_free(e->is_home);
  mgd_alloc_free(e->gap);
  mgd_alloc_free(e->base);
  mgd_alloc_free(e->is_written);
  mgd_alloc_free(e->limit);
  mgd_alloc_free(e->bytes);
  mgd_alloc_free(e->order);
  mgd_plan_heap_free(&e->home);
}

/* ---- the furthest next use */

/* One pass over some steps. Invariants: used is the bytes of the storages that are home; the heap `home` has those of
 * them that the current operator does not use. */
struct pass {
  struct mgd_plan_evict *e;
  const struct mgd_plan_cycle *c;
  int32_t *evict;
  int64_t parts; /* how many storages that leave for long are spread over the step; 0: none are spread */
  int64_t small; /* storages of fewer bytes leave last */
  int64_t used;
  int64_t at; /* the current operator, counted through all steps */
};

static int64_t bytes_of(const struct pass *p, int32_t s) { return p->c->step->storage[s].bytes; }

/* Returns how far the operator is into its part of the step, in 1 / PLACES. The step has as many parts as storages are
 * to leave. */
static int64_t place_in_part(const struct mgd_plan_cycle *c, int64_t parts, int64_t o) {
  const int64_t place = o % c->operators * PLACES / c->operators;
  return place * parts % PLACES;
}

static bool is_long(const struct mgd_plan_cycle *c, int64_t gap) { return gap > c->operators / 2; }

/* Puts s, which is used next at `next`, among the possible victims; a smaller key leaves first. */
static void offer_victim(struct pass *p, int32_t s, int64_t next) {
  int64_t key = -next;
  if (p->parts > 0 && next < NEVER && is_long(p->c, next - p->at)) {
    key = place_in_part(p->c, p->parts, next) - LAST;
  }
  mgd_plan_heap_put(&p->e->home, s, bytes_of(p, s) < p->small ? LAST - next : key);
}

static void go_away(struct pass *p, int32_t s) {
  p->e->is_home[s] = false;
  p->used -= bytes_of(p, s);
}

/* Evicts s for the current operator, which is in the gap of s: its next use or its death would have taken s out of the
 * heap. The caller has done that now. */
static void evict_for(struct pass *p, int32_t s) {
  go_away(p, s);
  const int32_t k = p->e->gap[s];
  if (p->e->base[s] == (int64_t)(LAPS - 2) * p->c->operators) { p->evict[k] = (int32_t)(p->at - p->e->base[s]); }
}

/* Brings the storages of operator o home, and evicts victims until they fit. */
static void take_operands(struct pass *p, int32_t o) {
  struct mgd_plan_evict *e = p->e;
  for (int32_t k = p->c->step->first_use[o]; k < p->c->step->first_use[o + 1]; k++) {
    const int32_t s = p->c->step->uses[k].storage;
    mgd_plan_heap_remove(&e->home, s);
    if (!e->is_home[s]) {
      e->is_home[s] = true;
      p->used += bytes_of(p, s);
    }
  }
  while (p->used > e->limit[o] && e->home.count > 0) {
    evict_for(p, mgd_plan_heap_pop(&e->home));
  }
}

static void end_operator(struct pass *p, int32_t o, int64_t base) {
  struct mgd_plan_evict *e = p->e;
  for (int32_t k = p->c->step->first_use[o]; k < p->c->step->first_use[o + 1]; k++) {
    const int32_t s = p->c->step->uses[k].storage;
    e->gap[s] = k;
    e->base[s] = base;
    offer_victim(p, s, p->c->after[k] >= 0 ? base + p->c->until[k] : NEVER);
  }
  for (int32_t i = p->c->first_death[o]; i < p->c->first_death[o + 1]; i++) {
    const int32_t s = p->c->dead[i];
    mgd_plan_heap_remove(&e->home, s);
    if (e->is_home[s]) {
      go_away(p, s);
    }
  }
}

static void find_victims(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, int64_t parts, int64_t small,
                         int32_t *evict) {
  struct pass p = {.e = e, .c = c, .evict = evict, .parts = parts, .small = small};
  mgd_plan_heap_clear(&e->home);
  memset(e->is_home, 0, (size_t)c->storages);
  for (int lap = 0; lap < LAPS; lap++) {
    for (int32_t o = 0; o < c->operators; o++) {
      const int64_t base = (int64_t)lap * c->operators;
      p.at = base + o;
      take_operands(&p, o);
      end_operator(&p, o, base);
    }
  }
}

/* ---- bytes in use */

void mgd_plan_evict_profile(const struct mgd_plan_cycle *c, const int32_t *from, const int32_t *to, int64_t *bytes,
                            struct mgd_plan_profile *profile) {
  /* bytes holds the change at each operator first, then the sums; gaps that are open at the begin of the step are
   * subtracted there. */
  for (int32_t o = 0; o < c->operators; o++) {
    bytes[o] = c->alive[o] - (o > 0 ? c->alive[o - 1] : 0);
  }
  for (int32_t k = 0; k < c->uses; k++) {
    if (from[k] < 0) {
      continue;
    }
    const int64_t size = mgd_plan_bytes_of(c, k);
    const int32_t first = from[k] % c->operators, end = to[k] % c->operators;
    bytes[first] -= size;
    bytes[end] += size;
    bytes[0] -= end <= first ? size : 0;
  }
  for (int32_t o = 1; o < c->operators; o++) {
    bytes[o] += bytes[o - 1];
  }
  mgd_plan_profile_set(profile, bytes);
}

/* The pass may end in a state that does not repeat. Then every storage leaves that can, at operators where too much is
 * in use. */
static void evict_more(const struct mgd_plan_cycle *c, const struct mgd_plan_profile *profile, int32_t *evict) {
  if (mgd_plan_profile_most(profile, 0, c->operators) <= c->machine.room) {
    return;
  }
  for (int32_t k = 0; k < c->uses; k++) {
    const int32_t first = c->operator_of[k] + 1, end = evict[k] >= 0 ? evict[k] : c->until[k];
    if (first < end && mgd_plan_profile_most(profile, first, end) > c->machine.room) {
      evict[k] = first;
    }
  }
}

/* Fills the gaps that can be filled without exceeding the limit, the short ones first; with `parts`, long gaps come
 * last and those that are left are spread over the step. The profile counts the bytes beyond each operator's limit. */
static void fill_gaps(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_profile *profile,
                      int64_t parts, int32_t *evict) {
  for (int32_t o = 0; o < c->operators; o++) {
    e->bytes[o] -= e->limit[o];
  }
  mgd_plan_profile_set(profile, e->bytes);
  int32_t n = 0;
  for (int32_t k = 0; k < c->uses; k++) {
    if (evict[k] >= 0) {
      const int64_t gap = c->until[k] - evict[k];
      const bool is_spread = parts > 0 && is_long(c, gap);
      e->order[n++] = (struct mgd_plan_entry){is_spread ? LAST - place_in_part(c, parts, c->until[k]) : gap, k};
    }
  }
  mgd_plan_heap_sort(e->order, n);
  for (int32_t i = 0; i < n; i++) {
    const int32_t k = e->order[i].value;
    const int64_t size = mgd_plan_bytes_of(c, k);
    if (mgd_plan_profile_most(profile, evict[k], c->until[k]) + size <= 0) {
      mgd_plan_profile_add(profile, evict[k], c->until[k], size);
      evict[k] = -1;
    }
  }
}

/* Returns the bytes that are copied because gap k is empty. A storage that no operator writes is not copied to the
 * host. */
static int64_t copied_for(const struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, int32_t k) {
  return mgd_plan_bytes_of(c, k) * ((c->after[k] >= 0) + e->is_written[c->step->uses[k].storage]);
}

/* Returns operator `first` as counted in the step of gap j, if that gap covers first .. last; else -1. */
static int32_t find_in_gap(const struct mgd_plan_cycle *c, int32_t j, int32_t first, int32_t last) {
  for (int32_t shift = -c->operators; shift <= c->operators; shift += c->operators) {
    if (c->operator_of[j] < first + shift && last + shift < c->until[j]) {
      return first + shift;
    }
  }
  return -1;
}

/* Returns a full gap that could be empty from `first` to `last` and costs less than `most`: the cheapest of those that
 * free all that is missing, else the largest. -1: none. */
static int32_t find_other(const struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, const int32_t *evict,
                          int32_t first, int32_t last, int64_t missing, int64_t most) {
  int32_t best = -1;
  int64_t best_size = SMALL - 1;
  for (int32_t j = 0; j < c->uses; j++) {
    const int64_t size = mgd_plan_bytes_of(c, j), cost = copied_for(e, c, j);
    const bool is_better = best_size >= missing ? size >= missing : size > best_size;
    if (evict[j] < 0 && is_better && cost < most && find_in_gap(c, j, first, last) >= 0) {
      best = j;
      best_size = size;
      most = size >= missing ? cost : most;
    }
  }
  return best;
}

/* Fills gap k if cheaper gaps can be emptied to give the room that it takes. */
static void trade_gap(const struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_profile *profile,
                      int32_t k, int32_t *evict) {
  const int32_t first = evict[k], end = c->until[k];
  const int32_t last = mgd_plan_profile_last_above(profile, first, end, -mgd_plan_bytes_of(c, k));
  int64_t missing = mgd_plan_profile_most(profile, first, end) + mgd_plan_bytes_of(c, k), most = copied_for(e, c, k);
  int32_t others[OTHERS], n = 0;
  for (int32_t j = 0; missing > 0 && n < OTHERS && j >= 0;) {
    j = find_other(e, c, evict, first, last, missing, most);
    if (j >= 0) {
      others[n++] = j;
      evict[j] = find_in_gap(c, j, first, last);
      missing -= mgd_plan_bytes_of(c, j);
      most -= copied_for(e, c, j);
    }
  }
  for (int32_t i = 0; i < n; i++) {
    const int32_t j = others[i];
    if (missing <= 0) {
      mgd_plan_profile_add(profile, evict[j], c->until[j], -mgd_plan_bytes_of(c, j));
    } else {
      evict[j] = -1;
    }
  }
  if (missing <= 0) {
    mgd_plan_profile_add(profile, first, end, mgd_plan_bytes_of(c, k));
    evict[k] = -1;
  }
}

/* Trades the most expensive gaps for gaps that free less. Storages leave whole, so they may free far more than is
 * needed. */
static void trade_gaps(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_profile *profile,
                       int32_t *evict) {
  int32_t n = 0;
  for (int32_t k = 0; k < c->uses; k++) {
    if (evict[k] >= 0) {
      e->order[n++] = (struct mgd_plan_entry){-copied_for(e, c, k), k};
    }
  }
  mgd_plan_heap_sort(e->order, n);
  for (int32_t i = 0; i < n && i < TRADES; i++) {
    trade_gap(e, c, profile, e->order[i].value, evict);
  }
}

/* Returns how many storages are to leave for more than half of the step: the excess bytes, in storages of mean size. */
static int64_t count_parts(const struct mgd_plan_evict *e, const struct mgd_plan_cycle *c) {
  int64_t over = 0, bytes = 0, n = 0;
  for (int32_t o = 0; o < c->operators; o++) {
    over = mgd_max(over, c->alive[o] - e->limit[o]);
  }
  for (int32_t k = 0; k < c->uses; k++) {
    const int64_t size = mgd_plan_bytes_of(c, k);
    if (c->after[k] >= 0 && size >= SMALL && is_long(c, c->until[k] - c->operator_of[k])) {
      bytes += size;
      n++;
    }
  }
  const int64_t parts = n > 0 ? (over + bytes / n - 1) / (bytes / n) : 0;
  return parts < PLACES ? parts : PLACES;
}

void mgd_plan_evict_choose(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_way way,
                           struct mgd_plan_profile *profile, int32_t *evict) {
  const int64_t free = c->machine.room / 100 * way.slack + c->largest * way.spare;
  for (int32_t o = 0; o < c->operators; o++) {
    e->limit[o] = mgd_max(c->working[o], c->machine.room - free);
  }
  for (int32_t k = 0; k < c->uses; k++) {
    evict[k] = -1;
  }
  const int64_t parts = way.even ? count_parts(e, c) : 0;
  find_victims(e, c, parts, way.small ? 0 : SMALL, evict);
  mgd_plan_evict_profile(c, evict, c->until, e->bytes, profile);
  evict_more(c, profile, evict);
  mgd_plan_evict_profile(c, evict, c->until, e->bytes, profile);
  fill_gaps(e, c, profile, parts, evict);
  if (way.trades) {
    trade_gaps(e, c, profile, evict);
  }
}
