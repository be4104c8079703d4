/* plan_layout.c: see plan_layout.h.
 *
 * The stays are read off the plan's actions, and are placed one after the other at the lowest offset that is free for
 * as long as they last. Storages that never leave come first: they are in the way of all. A few orders of the rest are
 * tried. Then one stay is placed earlier, mostly the one at the top, and remains there unless the layout becomes too
 * much higher, and so on: simulated annealing over the order. If there is room left, places are free before the copies
 * that fill them begin. No times are known here.
 */
#include "core/planner/plan_layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/planner/internal_plan_parts.h"

#define COMPARISONS INT64_C(75000000) /* about so many pairs of stays are compared by a search at most */
#define MOST_STAYS 20000 /* of a step that is laid out: an order compares half of their square */
#define TRIES 256 /* orders that it tries for each stay, at most */
#define ANY 8 /* one of so many tries moves any stay, and the rest moves the one at the top */
#define AGAIN 3   /* searches for a layout, if those before find one that is too high by a 64th at most */
#define HEAT .06 /* the part of the height by which a try may make it higher in the mean, at first */

/* A FETCH of the plan, before operator `at`: its stay, and the next operator that uses it, `use`, which is at least
 * `at` and less than `at` + operators. */
struct fetch {
  int32_t stay, at, use;
};

/* A stay that has an offset; of one that has none yet, `end` is the size. */
struct placed {
  int64_t offset, end;
  int32_t from, lasts, stay; /* it begins at the operator `from`, and is there for `lasts` operators */
};

struct layouter {
  const struct mgd_plan_step *step;
  const struct mgd_plan *plan;
  struct mgd_alloc alloc;
  struct mgd_layout *out;
  int32_t *from, *until; /* by storage: where its open stay began; where one that began in the step before ends; -1 */
  bool *left;            /* by storage: it has left and has not come back in this step */
  struct mgd_plan_entry *order; /* in which stays are placed */
  struct placed *unplaced; /* by stay */
  struct placed *placed, *accepted; /* of the layout that is tried, and of the last one taken; the lowest first */
  int32_t *rank; /* by stay: its place in the order, when that layout was taken */
  int64_t height; /* of the layout that is tried */
  uint64_t random; /* the same numbers for each layout */
  int64_t *bytes; /* by operator: of the stays */
  struct fetch *fetch; /* in the reverse order of the plan */
  int32_t fetches;
};

static int64_t size_of_stay(const struct layouter *l, int32_t stay) {
  const int64_t bytes = l->step->storage[l->out->stay[stay].storage].bytes;
  return (bytes + MGD_PLACE_ALIGNMENT - 1) / MGD_PLACE_ALIGNMENT * MGD_PLACE_ALIGNMENT;
}

/* ---- the stays */

static void begin_stay(struct layouter *l, int32_t s, int32_t o) {
  l->from[s] = o;
  l->left[s] = false;
}

/* Ends the stay after the operator o, if the storage is there. */
static void end_stay(struct layouter *l, int32_t s, int32_t o) {
  if (l->from[s] < 0) {
    l->until[s] = l->left[s] ? l->until[s] : o; /* it began in the step before */
  } else {
    l->out->stay[l->out->stays++] = (struct mgd_layout_stay){s, l->from[s], o, -1};
    l->from[s] = -1;
  }
}

/* Operators that end a stay by a LEAVE did so before they began: the operator before was the last. */
static void do_actions(struct layouter *l, int32_t o) {
  for (int32_t i = l->plan->first_action[o]; i < l->plan->first_action[o + 1]; i++) {
    const struct mgd_plan_action *a = &l->plan->action[i];
    if (a->kind == MGD_PLAN_LEAVE) {
      end_stay(l, a->storage, o > 0 ? o - 1 : l->step->operators - 1);
      l->left[a->storage] = true;
    }
    if (a->kind == MGD_PLAN_FETCH) { begin_stay(l, a->storage, o); }
  }
}

/* Storages that die after an operator are found by a list for each operator: `next` by storage, `dead` by operator. */
static void find_stays(struct layouter *l, const int32_t *dead, const int32_t *next) {
  const struct mgd_plan_step *step = l->step;
  for (int32_t o = 0; o < step->operators; o++) {
    do_actions(l, o);
    for (int32_t k = step->first_use[o]; k < step->first_use[o + 1]; k++) {
      if (step->uses[k].flags & MGD_PLAN_MADE) { begin_stay(l, step->uses[k].storage, o); }
    }
    for (int32_t s = dead[o]; s >= 0; s = next[s]) { end_stay(l, s, o); }
  }
}

/* Closes what goes on over the end of the step. A lasting storage without an action is there all the time. */
static void close_stays(struct layouter *l) {
  const struct mgd_plan_step *step = l->step;
  bool *moves = l->left; /* scratch memory from here on */
  memset(moves, 0, (size_t)step->storages * sizeof *moves);
  for (int32_t i = 0; i < l->plan->actions; i++) { moves[l->plan->action[i].storage] = true; }
  for (int32_t k = 0; k < step->first_use[step->operators]; k++) {
    const int32_t s = step->uses[k].storage;
    if (step->storage[s].dies < 0 && !moves[s]) {
      l->out->stay[l->out->stays++] = (struct mgd_layout_stay){s, 0, step->operators - 1, -1};
      moves[s] = true;
    }
  }
  for (int32_t s = 0; s < step->storages; s++) {
    if (l->from[s] >= 0 && l->until[s] >= 0) {
      l->out->stay[l->out->stays++] = (struct mgd_layout_stay){s, l->from[s], l->until[s], -1};
    }
  }
}

static int compare_stays(const void *a, const void *b) {
  const struct mgd_layout_stay *x = a, *y = b;
  return x->storage != y->storage ? (x->storage > y->storage) - (x->storage < y->storage)
                                  : (x->from > y->from) - (x->from < y->from);
}

/* Keeps the stays that are to have a place, by storage. */
static void index_stays(struct layouter *l, int64_t least, const bool *left_out) {
  struct mgd_layout *out = l->out;
  int32_t kept = 0;
  for (int32_t i = 0; i < out->stays; i++) {
    const int32_t s = out->stay[i].storage;
    if (l->step->storage[s].bytes > least && !(left_out && left_out[s])) { out->stay[kept++] = out->stay[i]; }
  }
  out->stays = kept;
  qsort(out->stay, (size_t)kept, sizeof *out->stay, compare_stays);
  int32_t i = 0;
  for (int32_t s = 0; s <= out->storages; s++) {
    out->first[s] = i;
    while (i < kept && out->stay[i].storage == s) { i++; }
  }
}

/* ---- the offsets */

static bool wraps(const struct mgd_layout_stay *a) { return a->to < a->from; }

static int64_t operators_of(const struct layouter *l, const struct mgd_layout_stay *a) {
  return (int64_t)a->to - a->from + 1 + (wraps(a) ? l->step->operators : 0);
}

/* Whether both are there at some operator. */
static bool meet(const struct layouter *l, const struct placed *a, const struct placed *b) {
  const int32_t later = b->from - a->from, d = later < 0 ? later + l->step->operators : later;
  return d < a->lasts || l->step->operators - d < b->lasts;
}

/* Places the stay at the lowest offset that is free while it lasts, and returns the end of its bytes. `count` stays are
 * placed already. */
static int64_t place(struct layouter *l, int32_t count, int32_t stay) {
  struct placed *p = l->placed, own = l->unplaced[stay];
  const int64_t size = own.end;
  own.offset = 0;
  for (int32_t i = 0; i < count && p[i].offset < own.offset + size; i++) {
    if (p[i].end > own.offset && meet(l, &own, &p[i])) { own.offset = p[i].end; }
  }
  own.end = own.offset + size;
  int32_t i = count;
  for (; i > 0 && p[i - 1].offset > own.offset; i--) { p[i] = p[i - 1]; }
  p[i] = own;
  return own.end;
}

/* Computes the bytes that are there at each operator. Returns the most, which no layout is lower than. */
static int64_t find_profile(struct layouter *l) {
  int64_t now = 0, most = 0;
  memset(l->bytes, 0, (size_t)l->step->operators * sizeof *l->bytes);
  for (int32_t i = 0; i < l->out->stays; i++) {
    const struct mgd_layout_stay *a = &l->out->stay[i];
    now += wraps(a) ? size_of_stay(l, i) : 0;
    l->bytes[a->from] += size_of_stay(l, i);
    if (a->to + 1 < l->step->operators) { l->bytes[a->to + 1] -= size_of_stay(l, i); }
  }
  for (int32_t o = 0; o < l->step->operators; o++) {
    now += l->bytes[o];
    l->bytes[o] = now;
    most = mgd_max(most, now);
  }
  return most;
}

static int64_t most_bytes_in(const struct layouter *l, const struct mgd_layout_stay *a) {
  int64_t most = 0;
  for (int32_t o = wraps(a) ? 0 : a->from; o <= a->to; o++) { most = mgd_max(most, l->bytes[o]); }
  for (int32_t o = a->from; wraps(a) && o < l->step->operators; o++) { most = mgd_max(most, l->bytes[o]); }
  return most;
}

/* In which stays are placed: the largest first; by bytes and, less, by how long they last; by the most bytes that are
 * there while they last, and then by how long that is. */
enum order { BY_SIZE, BY_SIZE_AND_TIME, BY_CROWD, ORDERS };

/* Orders the stays. l->bytes must be those of find_profile(). */
static void sort_stays(struct layouter *l, enum order order) {
  for (int32_t i = 0; i < l->out->stays; i++) {
    const struct mgd_layout_stay *a = &l->out->stay[i];
    const int64_t n = operators_of(l, a);
    const bool lasts = n >= l->step->operators;
    double weight = (double)size_of_stay(l, i);
    if (order == BY_SIZE_AND_TIME) {
      weight *= sqrt((double)n);
    } else if (order == BY_CROWD && !lasts) {
      const double pages = (double)(most_bytes_in(l, a) / MGD_PLACE_ALIGNMENT);
      weight = pages * ((double)l->step->operators + 1) + (double)n;
    }
    l->order[i] = (struct mgd_plan_entry){lasts ? INT64_MIN : -(int64_t)fmin(weight, MGD_INT64_TOP), i};
  }
  mgd_plan_heap_sort(l->order, l->out->stays);
}

/* Places the stays in this order, those before `first` as in the layout that was accepted last, and keeps the layout if
 * it is the lowest; or stops at one that ends above `limit`. Returns which in the order ends highest. */
static int32_t place_from(struct layouter *l, int32_t first, int64_t limit) {
  int32_t top = 0, count = 0;
  l->height = 0;
  for (int32_t i = 0; count < first; i++) {
    const struct placed *p = &l->accepted[i];
    if (l->rank[p->stay] >= first) { continue; }
    top = p->end > l->height ? l->rank[p->stay] : top;
    l->height = mgd_max(l->height, p->end);
    l->placed[count++] = *p;
  }
  for (; count < l->out->stays && l->height <= limit; count++) {
    const int64_t end = place(l, count, l->order[count].value);
    top = end > l->height ? count : top;
    l->height = mgd_max(l->height, end);
  }
  if (l->height < l->out->height && l->height <= limit) {
    l->out->height = l->height;
    for (int32_t i = 0; i < count; i++) { l->out->stay[l->placed[i].stay].offset = l->placed[i].offset; }
  }
  return top;
}

/* Accepts the layout that was tried last, in whose order only the entries first .. last have changed. */
static void accept(struct layouter *l, int32_t first, int32_t last) {
  struct placed *const before = l->accepted;
  l->accepted = l->placed;
  l->placed = before;
  for (int32_t i = first; i <= last; i++) { l->rank[l->order[i].value] = i; }
}

static void move_entry(struct layouter *l, int32_t from, int32_t to) {
  const struct mgd_plan_entry moved = l->order[from];
  const int32_t by = from < to ? 1 : -1;
  for (int32_t k = from; k != to; k += by) { l->order[k] = l->order[k + by]; }
  l->order[to] = moved;
}

/* Returns a random number of 31 bits (Knuth's MMIX generator). */
static uint32_t random_bits(struct layouter *l) {
  l->random = l->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(l->random >> 33);
}

static int32_t random_below(struct layouter *l, int32_t n) { return (int32_t)(random_bits(l) % (uint32_t)n); }

/* Returns how many bytes higher a try may be, `mean` in the mean: so a rise by d is accepted with the probability
 * exp(-d / mean) (simulated annealing; Kirkpatrick, Gelatt and Vecchi 1983). It is drawn first: bad tries end early. */
static int64_t random_rise(struct layouter *l, double mean) {
  return (int64_t)fmin(-log(((double)random_bits(l) + 1) / 0x1p31) * mean, MGD_INT64_TOP);
}

static int64_t most_tries(const struct layouter *l) {
  const int64_t n = l->out->stays;
  return mgd_min(TRIES * n, COMPARISONS / (n * n / 8 + 1));
}

/* Changes the order, of which `top` ends highest, until the lowest layout has at most `enough` bytes or there is no
 * time. Storages that never leave stay in front. */
static void search_orders(struct layouter *l, int64_t enough, int32_t top) {
  const int64_t tries = most_tries(l);
  const double heat = HEAT * (double)l->out->height / (double)(tries + 1);
  int64_t height = l->height;
  int32_t lasting = 0;
  while (lasting < l->out->stays && l->order[lasting].key == INT64_MIN) { lasting++; }
  for (int64_t i = 0; i < tries && l->out->height > enough && lasting < l->out->stays; i++) {
    const int32_t from = random_below(l, ANY) ? top : lasting + random_below(l, l->out->stays - lasting);
    if (from <= lasting) { continue; }
    const int32_t to = lasting + random_below(l, from - lasting);
    move_entry(l, from, to);
    const int64_t limit = mgd_about_sum(height, random_rise(l, heat * (double)(tries - i)));
    const int32_t highest = place_from(l, to, limit);
    if (l->height <= limit) {
      accept(l, to, from);
      height = l->height;
      top = highest;
    } else {
      move_entry(l, to, from);
    }
  }
}

/* Places all in the best of the orders. Returns which in it ends highest. */
static int32_t place_in_order(struct layouter *l) {
  for (int32_t i = 0; i < l->out->stays; i++) {
    const struct mgd_layout_stay *a = &l->out->stay[i];
    l->unplaced[i] = (struct placed){0, size_of_stay(l, i), a->from, (int32_t)operators_of(l, a), i};
  }
  l->placed = l->unplaced + l->out->stays;
  l->accepted = l->placed + l->out->stays;
  enum order best = BY_SIZE;
  int64_t height = INT64_MAX;
  for (enum order order = BY_SIZE; order < ORDERS; order++) {
    sort_stays(l, order);
    (void)place_from(l, 0, INT64_MAX);
    best = l->height < height ? order : best;
    height = mgd_min(height, l->height);
  }
  sort_stays(l, best);
  const int32_t top = place_from(l, 0, INT64_MAX);
  accept(l, 0, l->out->stays - 1);
  return top;
}

/* Finds a layout of at most `room` bytes, or else the lowest. What a search finds differs by 1 % and more with its
 * random numbers, so a layout that is nearly low enough is worth another search. */
static void choose_offsets(struct layouter *l, int64_t room) {
  const int64_t enough = mgd_max(find_profile(l), room);
  l->out->height = INT64_MAX;
  for (int i = 0; i < AGAIN; i++) {
    search_orders(l, enough, place_in_order(l));
    if (l->out->height <= enough || l->out->height - enough > enough / 64) { break; }
  }
}

/* ---- room for copies ahead of need */

static int32_t find_stay(const struct mgd_layout *layout, int32_t storage, int32_t o) {
  for (int32_t i = layout->first[storage]; i < layout->first[storage + 1]; i++) {
    const struct mgd_layout_stay *a = &layout->stay[i];
    if (wraps(a) ? o >= a->from || o <= a->to : o >= a->from && o <= a->to) { return i; }
  }
  return -1;
}

/* Notes the fetches of storages that have a place. `next`, by storage: scratch, the next operator that uses it. */
static void note_fetches(struct layouter *l, int32_t *next) {
  const struct mgd_plan_step *step = l->step;
  for (int32_t at = 2 * step->operators - 1; at >= 0; at--) {
    const int32_t o = at % step->operators;
    for (int32_t k = step->first_use[o]; k < step->first_use[o + 1]; k++) { next[step->uses[k].storage] = at; }
    for (int32_t i = l->plan->first_action[o + 1]; at == o && i-- > l->plan->first_action[o];) {
      const int32_t s = l->plan->action[i].storage;
      const int32_t stay = l->plan->action[i].kind == MGD_PLAN_FETCH ? find_stay(l->out, s, o) : -1;
      if (stay >= 0) { l->fetch[l->fetches++] = (struct fetch){stay, o, next[s]}; }
    }
  }
}

/* Begins the stay of each fetch no later than the first use of what was fetched before it, as far as no more than
 * `room` bytes are there at once. l->bytes must be those of the last choose_offsets(), and are kept up to date. When
 * the copy before has ended, the operator that uses it begins to run, so the next copy may begin if its place is free
 * by then. Otherwise it would wait for that operator, and the link would be idle. */
static void begin_early(struct layouter *l, int64_t room) {
  const int32_t n = l->step->operators;
  for (int32_t i = l->fetches - 1; i >= 0; i--) {
    const struct fetch *f = &l->fetch[i], *before = &l->fetch[(i + 1) % l->fetches];
    const int32_t until = before->use - (i + 1 < l->fetches ? 0 : n);
    struct mgd_layout_stay *a = &l->out->stay[f->stay];
    const int64_t size = size_of_stay(l, f->stay);
    for (int32_t at = f->at - 1; at >= until; at--) {
      const int32_t o = (at + n) % n;
      if (l->bytes[o] + size > room || find_stay(l->out, a->storage, o) >= 0) { break; }
      l->bytes[o] += size;
      a->from = o;
    }
  }
}

/* Begins fetched stays earlier, as far as there is room for that beside the layout. Two places cannot take turns for an
 * odd number of stays, so the stay at the top begins at its FETCH again until all fit. */
static void choose_early(struct layouter *l, int64_t room, struct mgd_layout_stay *kept) {
  struct mgd_layout *out = l->out;
  if (out->height > room || l->fetches == 0) { return; }
  const int64_t height = out->height, tries = mgd_min(most_tries(l), out->stays);
  memcpy(kept, out->stay, (size_t)out->stays * sizeof *kept);
  begin_early(l, room);
  choose_offsets(l, room);
  int32_t top = out->height > room && tries > 0 ? place_in_order(l) : 0;
  for (int64_t i = 0; i < tries && out->height > room; i++) {
    const int32_t stay = l->order[top].value;
    if (out->stay[stay].from == kept[stay].from) { break; }
    out->stay[stay].from = kept[stay].from;
    l->unplaced[stay].from = kept[stay].from;
    l->unplaced[stay].lasts = (int32_t)operators_of(l, &out->stay[stay]);
    top = place_from(l, 0, INT64_MAX);
  }
  if (out->height > room) {
    memcpy(out->stay, kept, (size_t)out->stays * sizeof *kept);
    out->height = height;
  }
  for (int32_t i = 0; i < out->stays; i++) { out->is_early = out->is_early || out->stay[i].from != kept[i].from; }
}

/* ---- the interface */

static bool sum_fits(const struct mgd_plan_step *step) {
  double sum = 0;
  for (int32_t s = 0; s < step->storages; s++) {
    sum += ((double)step->storage[s].bytes + MGD_PLACE_ALIGNMENT) * 2; /* it is placed anew after each stay */
  }
  return sum * ((double)step->operators + 1) < MGD_INT64_TOP;
}

static int allocate(struct layouter *l, size_t stays, int32_t **dead, int32_t **next, struct mgd_layout_stay **kept) {
  const size_t storages = (size_t)l->step->storages + 1;
  l->from = mgd_alloc_new(&l->alloc, storages, sizeof *l->from);
  l->until = mgd_alloc_new(&l->alloc, storages, sizeof *l->until);
  l->left = mgd_alloc_new(&l->alloc, storages, sizeof *l->left);
  l->unplaced = mgd_alloc_new(&l->alloc, 3 * stays, sizeof *l->unplaced); /* and placed, and accepted */
  l->rank = mgd_alloc_new(&l->alloc, stays, sizeof *l->rank);
  l->order = mgd_alloc_new(&l->alloc, stays, sizeof *l->order);
  l->bytes = mgd_alloc_new(&l->alloc, (size_t)l->step->operators, sizeof *l->bytes);
  l->fetch = mgd_alloc_new(&l->alloc, (size_t)l->plan->actions + 1, sizeof *l->fetch);
  *kept = mgd_alloc_new(&l->alloc, stays, sizeof **kept);
  *dead = mgd_alloc_new(&l->alloc, (size_t)l->step->operators, sizeof **dead);
  *next = mgd_alloc_new(&l->alloc, storages, sizeof **next);
  l->out = mgd_alloc_new(&l->alloc, 1, sizeof *l->out);
  if (!l->out) { return MGD_E_NOMEM; }
  l->out->storages = l->step->storages;
  l->out->stay = mgd_alloc_new(&l->alloc, stays, sizeof *l->out->stay);
  l->out->first = mgd_alloc_new(&l->alloc, storages, sizeof *l->out->first);
  const bool all = l->from && l->until && l->left && l->unplaced && l->rank && l->order && l->bytes && l->fetch &&
      *kept && *dead && *next && l->out->stay && l->out->first;
  return all ? MGD_OK : MGD_E_NOMEM;
}

static void list_deaths(const struct mgd_plan_step *step, int32_t *dead, int32_t *next) {
  memset(dead, 0xff, (size_t)step->operators * sizeof *dead);
  for (int32_t s = 0; s < step->storages; s++) {
    if (step->storage[s].dies >= 0) {
      next[s] = dead[step->storage[s].dies];
      dead[step->storage[s].dies] = s;
    }
  }
}

int mgd_plan_layout_make(const struct mgd_plan_step *step, const struct mgd_plan *plan, int64_t least,
                         const bool *left_out, int64_t room, bool early, int64_t fail_allocation,
                         struct mgd_layout **out) {
  if (!step || !plan || !out || plan->operators != step->operators || room < 0 || fail_allocation < 0) {
    return MGD_E_INVALID;
  }
  if (!sum_fits(step)) { return MGD_E_OVERFLOW; }
  if (plan->actions / 2 + step->storages > MOST_STAYS) { return MGD_E_NO_ROOM; }
  struct layouter l = {.step = step, .plan = plan};
  int32_t *dead = NULL, *next = NULL;
  struct mgd_layout_stay *kept = NULL;
  mgd_alloc_init(&l.alloc, fail_allocation);
  /* each stay ends by a LEAVE, by a death, or never */
  const int code = allocate(&l, (size_t)plan->actions + (size_t)step->storages + 1, &dead, &next, &kept);
  if (code == MGD_OK) {
    memset(l.from, 0xff, (size_t)step->storages * sizeof *l.from);
    memset(l.until, 0xff, (size_t)step->storages * sizeof *l.until);
    list_deaths(step, dead, next);
    find_stays(&l, dead, next);
    close_stays(&l);
    index_stays(&l, least, left_out);
    note_fetches(&l, next);
    choose_offsets(&l, room);
    if (early) { choose_early(&l, room, kept); }
    *out = l.out;
    l.out = NULL;
  }
  mgd_plan_layout_free(l.out);
  mgd_alloc_free(l.from);
  mgd_alloc_free(l.until);
  mgd_alloc_free(l.left);
  mgd_alloc_free(l.unplaced);
  mgd_alloc_free(l.rank);
  mgd_alloc_free(l.order);
  mgd_alloc_free(l.bytes);
  mgd_alloc_free(l.fetch);
  mgd_alloc_free(kept);
  mgd_alloc_free(dead);
  mgd_alloc_free(next);
  return code;
}

void mgd_plan_layout_free(struct mgd_layout *layout) {
  if (layout) {
    mgd_alloc_free(layout->stay);
    mgd_alloc_free(layout->first);
    mgd_alloc_free(layout);
  }
}

int64_t mgd_plan_layout_offset(const struct mgd_layout *layout, int32_t storage, int32_t operator_at) {
  const int32_t stay = find_stay(layout, storage, operator_at);
  return stay >= 0 ? layout->stay[stay].offset : -1;
}
