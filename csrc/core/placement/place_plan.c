/* place_plan.c: many objects over devices at once: contiguous layers, exactly, or
 * objects one by one.
 *
 * Layers and devices keep their order: each device takes one run of layers, which may be empty. Each run has a cost,
 * which is its bytes or its time; the load of a device is (what it has already + the cost of its run) / speed. The best
 * plan has, in this order: the least level that the loads of devices that take layers, and the times of links, reach;
 * the fewest bytes across borders; the most devices that take layers; the least sum of squared loads, so that the
 * layers that the heaviest device does not take are spread evenly. Room is a limit beside the level. No machine state
 * is needed.
 *
 * The level is a whole number of bytes or ns on the fastest device and is found by bisection: a level is tested by
 * computing at which places the runs of the first devices can end. Under it a dynamic programme over devices finds the
 * rest; its cost obeys the quadrangle inequality (a border depends only on the begin of a run, squares are convex, and
 * runs that are too heavy stay so when they grow; a place where a link forbids a cut is no begin of any run), so the
 * best begin of a run moves right with its end, and divide and conquer needs O(devices * n log n) steps.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#include <stdlib.h>
#include <string.h>

#define FASTEST ((int64_t)1 << 20) /* weight of the fastest device */
#define ENDLESS 0x1p100            /* ns; the time of a link that takes longer */

__extension__ typedef __int128 wide; /* holds a level, which is at most 2**100, times a weight */

#define UNLIMITED ((wide)1 << 126) /* more bytes than a run can need */

/* The score of a plan for the first layers; smaller is better, except for `used`. */
struct score {
  int64_t border;
  int used; /* devices that hold a layer, -1 when no plan exists */
  double squares;
};

/* A place where a run may begin and another end: between two layers that weigh something, or at either end. */
struct place {
  int64_t cost, bytes, part_bytes; /* sums over the layers before it */
  int64_t border;                  /* the fewest bytes that cross between both layers; 0 at either end */
  size_t start;                    /* the caller's layer that a run from here begins with */
  bool reached;                    /* devices that were looked at can take all layers before it */
};

/* The layers that weigh something, which have a cost or bytes; another layer goes with a neighbour.
 * Invariants: the sums of the places never decrease, and one of them increases, from 0 at place 0; the start of place 0
 * is 0, and of place n the caller's n. */
struct problem {
  const struct mgd_stages_request *asked;
  size_t n;                     /* layers; places 0 .. n */
  struct place *places;         /* n + 1 */
  uint32_t *from;               /* devices rows of n + 1: the begin of the run that ends at a place */
  struct score *before, *after; /* n + 1 each */
  int64_t weight[MGD_MAX_DEVICES]; /* speed, FASTEST at most */
  int64_t busy[MGD_MAX_DEVICES];   /* the cost that a device has already */
  wide room[MGD_MAX_DEVICES];      /* bytes that a run may need */
  int64_t cap[MGD_MAX_DEVICES];    /* the cost that a run may have under the level; below 0 means the same as 0 */
  wide level;
};

/* ---- what a device and a link can take */

/* Returns the bytes that the run from place k to place i needs on device j. */
static wide needed(const struct problem *p, size_t j, size_t k, size_t i) {
  const struct place *begin = &p->places[k], *end = &p->places[i];
  return end->bytes - begin->bytes + (wide)p->asked->in_flight[j] * (end->part_bytes - begin->part_bytes);
}

/* Whether device j can take the run from place k to place i under the level; if so, it can take each part of it. */
static bool can_take(const struct problem *p, size_t j, size_t k, size_t i) {
  return p->places[i].cost - p->places[k].cost <= p->cap[j] && needed(p, j, k, i) <= p->room[j];
}

/* Returns the ns for which a cut at a place keeps the link behind device j busy: its bytes cross forward and, as
 * gradients, back. */
static wide link_time(const struct problem *p, size_t j, size_t place) {
  if (!p->asked->bandwidth || j + 1 == p->asked->devices) { return 0; }
  double ns = mgd_duration(2.0 * (double)p->places[place].border, p->asked->bandwidth[j]);
  return (wide)fmin(ceil(ns), ENDLESS);
}

/* ---- the least possible level */

/* Sets the limits for a level. */
static void set_level(struct problem *p, wide level) {
  p->level = level;
  for (size_t j = 0; j < p->asked->devices; j++) {
    wide cap = p->weight[j] * level / FASTEST - p->busy[j];
    p->cap[j] = cap < p->places[p->n].cost ? (int64_t)cap : p->places[p->n].cost;
  }
}

/* Whether all layers fit under a level, whose limits it sets. For each device in turn it finds the places that the runs
 * up to there can end at. To take as much as possible is not enough: a shorter run may end at a border that the link
 * has time for. But the last begin is enough for each end, since it makes the shortest run. */
static bool fits_under(struct problem *p, wide level) {
  set_level(p, level);
  for (size_t i = 0; i <= p->n; i++) { p->places[i].reached = i == 0; }
  size_t top = 0; /* the last place that is reached */
  for (size_t j = 0; j < p->asked->devices; j++) {
    size_t begin = 0, end = 0;
    for (size_t i = 0; i <= p->n; i++) {
      begin = p->places[i].reached ? i : begin;
      bool takes = begin == i || can_take(p, j, begin, i);
      if (!takes && i > top) { break; /* no later place is reached, and no run is longer */ }
      p->places[i].reached = takes && link_time(p, j, i) <= level;
      end = p->places[i].reached ? i : end;
    }
    top = end;
  }
  return top == p->n;
}

/* Returns a level that limits nothing. */
static wide highest(const struct problem *p) {
  wide high = 0;
  for (size_t j = 0; j < p->asked->devices; j++) {
    wide all = ((wide)p->busy[j] + p->places[p->n].cost) * FASTEST / p->weight[j] + 1;
    high = all > high ? all : high;
    for (size_t i = 0; i <= p->n; i++) {
      wide crossing = link_time(p, j, i);
      high = crossing > high ? crossing : high;
    }
  }
  return high;
}

/* Sets the limits for the least level at which everything fits. */
static int find_level(struct problem *p) {
  wide low = -1, high = highest(p);
  if (!fits_under(p, high)) {
    return MGD_E_NO_ROOM;
  }
  while (high - low > 1) {
    wide middle = low + (high - low) / 2;
    *(fits_under(p, middle) ? &high : &low) = middle;
  }
  set_level(p, high);
  return MGD_OK;
}

/* ---- the best plan under that level */

static bool is_better(const struct score *a, const struct score *b) {
  if (a->used < 0 || b->used < 0) {
    return a->used > b->used;
  }
  if (a->border != b->border) {
    return a->border < b->border;
  }
  return a->used != b->used ? a->used > b->used : a->squares < b->squares;
}

/* Returns the score when device j takes the run from place k to place i after the best plan for k. Only the growth of
 * the squared load is counted. */
static struct score extend(const struct problem *p, size_t j, size_t k, size_t i) {
  struct score s = p->before[k];
  if (s.used >= 0) {
    double own = (double)(p->places[i].cost - p->places[k].cost) / (double)p->weight[j];
    s.border += p->places[k].border;
    s.used++;
    s.squares += own * (own + 2.0 * (double)p->busy[j] / (double)p->weight[j]);
  }
  return s;
}

/* Returns the earliest begin of a run on device j that ends at place i. */
static size_t earliest(const struct problem *p, size_t j, size_t i) {
  size_t low = 0, high = i;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (can_take(p, j, middle, i)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* Scores device j for the ends low .. high - 1, whose best begins are in left .. right: the middle one first, which
 * then bounds both halves. */
static void score_ends(struct problem *p, size_t j, size_t low, size_t high, size_t left, size_t right) {
  if (low >= high) {
    return;
  }
  size_t i = low + (high - low) / 2;
  size_t first = earliest(p, j, i);
  size_t best = first > left ? first : left;
  struct score most = {.used = -1};
  for (size_t k = best; k < i && k <= right; k++) {
    struct score s = extend(p, j, k, i);
    if (is_better(&s, &most)) {
      most = s;
      best = k;
    }
  }
  bool takes = is_better(&most, &p->before[i]); /* or the device stays empty */
  p->after[i] = takes ? most : p->before[i];
  if (link_time(p, j, i) > p->level) { p->after[i].used = -1; }
  p->from[j * (p->n + 1) + i] = (uint32_t)(takes ? best : i);
  score_ends(p, j, low, i, left, best);
  score_ends(p, j, i + 1, high, best, right);
}

static void score_all(struct problem *p) {
  for (size_t i = 0; i <= p->n; i++) {
    p->before[i] = (struct score){.used = i == 0 ? 0 : -1};
  }
  for (size_t j = 0; j < p->asked->devices; j++) {
    score_ends(p, j, 0, p->n + 1, 0, p->n);
    struct score *swap = p->before;
    p->before = p->after;
    p->after = swap;
  }
}

/* Follows the begins of runs back and writes a device for each of the caller's layers. If no layer weighs anything, no
 * run exists and all layers go to the first device. Returns the bytes for which devices have no room, or INT64_MAX if
 * that is less. */
static int64_t write_plan(const struct problem *p, int *out) {
  for (size_t layer = 0; p->n == 0 && layer < p->asked->n; layer++) { out[layer] = 0; }
  int64_t missing = 0;
  size_t end = p->n;
  for (size_t j = p->asked->devices; j-- > 0;) {
    size_t begin = p->from[j * (p->n + 1) + end];
    for (size_t layer = p->places[begin].start; layer < p->places[end].start; layer++) { out[layer] = (int)j; }
    wide lacks = needed(p, j, begin, end) - p->asked->shares[j].room;
    missing = lacks > INT64_MAX ? INT64_MAX : lacks > 0 ? mgd_about_sum(missing, (int64_t)lacks) : missing;
    end = begin;
  }
  return missing;
}

/* ---- the interface */

/* Sums n numbers, which must all be >= 0. */
static int sum_of(const int64_t *numbers, size_t n, int64_t *sum) {
  *sum = 0;
  for (size_t i = 0; i < n; i++) {
    if (numbers[i] < 0) {
      return MGD_E_INVALID;
    }
    if (!mgd_add(*sum, numbers[i], sum)) {
      return MGD_E_OVERFLOW;
    }
  }
  return MGD_OK;
}

static bool devices_are_valid(const struct mgd_stages_request *q) {
  for (size_t j = 0; j < q->devices; j++) {
    const struct mgd_share *share = &q->shares[j];
    bool links = j + 1 == q->devices || !q->bandwidth || mgd_is_amount(q->bandwidth[j]);
    if (share->room < 0 || share->load < 0 || !mgd_is_amount(share->speed) || share->speed <= 0.0 || !links ||
        q->in_flight[j] < 0) {
      return false;
    }
  }
  return true;
}

static int validate(const struct mgd_stages_request *q) {
  if (q->devices == 0 || q->devices > MGD_MAX_DEVICES || q->n >= UINT32_MAX || !devices_are_valid(q)) {
    return MGD_E_INVALID;
  }
  int64_t sum;
  int code = sum_of(q->ns, q->n, &sum);
  code = code == MGD_OK ? sum_of(q->bytes, q->n, &sum) : code;
  code = code == MGD_OK ? sum_of(q->part_bytes, q->n, &sum) : code;
  return code == MGD_OK && q->border && q->n > 1 ? sum_of(q->border, q->n - 1, &sum) : code;
}

/* Gathers the layers that weigh something and the cheapest cut before each, the last one of equals: a layer that weighs
 * nothing, such as an activation, stays with its input. */
static void gather(struct problem *p) {
  const struct mgd_stages_request *q = p->asked;
  int64_t cheapest = 0; /* cut since the last layer that weighs something; none before the first */
  size_t where = 0;
  bool inside = false; /* behind a layer that weighs something, no cut seen yet */
  for (size_t i = 0; i < q->n; i++) {
    int64_t crossing = i > 0 && q->border ? q->border[i - 1] : 0;
    if (inside || (p->n > 0 && crossing <= cheapest)) {
      cheapest = crossing;
      where = i;
    }
    inside = q->ns[i] > 0 || q->bytes[i] > 0 || q->part_bytes[i] > 0;
    if (inside) {
      struct place *before = &p->places[p->n++];
      before->start = where;
      before->border = cheapest;
      before[1].cost = before->cost + q->ns[i];
      before[1].bytes = before->bytes + q->bytes[i];
      before[1].part_bytes = before->part_bytes + q->part_bytes[i];
    }
  }
  p->places[p->n].start = p->n > 0 ? q->n : 0;
}

static int open_problem(struct problem *p, struct mgd_alloc *alloc) {
  size_t places = p->asked->n + 1;
  p->places = mgd_alloc_new(alloc, places, sizeof *p->places);
  p->before = mgd_alloc_new(alloc, places, sizeof *p->before);
  p->after = mgd_alloc_new(alloc, places, sizeof *p->after);
  p->from = mgd_alloc_new(alloc, places * p->asked->devices, sizeof *p->from);
  return p->places && p->before && p->after && p->from ? MGD_OK : MGD_E_NOMEM;
}

static void close_problem(struct problem *p) {
  mgd_alloc_free(p->places);
  mgd_alloc_free(p->before);
  mgd_alloc_free(p->after);
  mgd_alloc_free(p->from);
}

/* Sets what devices can do. `loads`: the bytes in use on a device are a cost that it has already. */
static void weigh(struct problem *p, bool loads, bool spills) {
  const struct mgd_share *shares = p->asked->shares;
  double fastest = 0.0;
  for (size_t j = 0; j < p->asked->devices; j++) { fastest = fmax(fastest, shares[j].speed); }
  for (size_t j = 0; j < p->asked->devices; j++) {
    p->weight[j] = mgd_max(1, llround(shares[j].speed / fastest * (double)FASTEST));
    p->busy[j] = loads ? shares[j].load : 0;
    p->room[j] = spills ? UNLIMITED : shares[j].room;
  }
}

/* Solves a valid problem. *missing is written unless it is NULL. */
static int solve(struct problem *p, struct mgd_alloc *alloc, int *out, int64_t *missing) {
  int code = open_problem(p, alloc);
  if (code == MGD_OK) {
    gather(p);
    code = find_level(p);
  }
  if (code == MGD_OK) {
    score_all(p);
    int64_t lacks = write_plan(p, out);
    if (missing) { *missing = lacks; }
  }
  close_problem(p);
  return code;
}

int mgd_place_plan_stages(struct mgd_machine *m, const struct mgd_stages_request *request, int *out, int64_t *missing) {
  int code = validate(request);
  if (code != MGD_OK) { return code; }
  struct problem p = {.asked = request};
  weigh(&p, false, missing != NULL);
  return solve(&p, &m->alloc, out, missing);
}

/* Layers whose cost is their bytes. */
static struct mgd_stages_request by_bytes(const int64_t *bytes, const int64_t *border, size_t n,
                                          const struct mgd_share *shares, size_t devices) {
  static const int64_t none[MGD_MAX_DEVICES];
  return (struct mgd_stages_request){.n = n,
                                     .devices = devices,
                                     .ns = bytes,
                                     .bytes = bytes,
                                     .part_bytes = bytes,
                                     .border = border,
                                     .shares = shares,
                                     .in_flight = none};
}

int mgd_place_plan_layers(struct mgd_machine *m, const int64_t *bytes, const int64_t *border, size_t n,
                          const struct mgd_share *shares, size_t devices, int *out) {
  const struct mgd_stages_request request = by_bytes(bytes, border, n, shares, devices);
  int code = validate(&request);
  if (code != MGD_OK) { return code; }
  struct problem p = {.asked = &request};
  weigh(&p, true, false);
  return solve(&p, &m->alloc, out, NULL);
}

/* ---- objects one by one */

struct object {
  int64_t bytes;
  size_t index; /* the caller's */
  int to; /* its device */
};

static int compare_objects(const void *one, const void *other) {
  const struct object *a = one, *b = other;
  if (a->bytes != b->bytes) { return a->bytes > b->bytes ? -1 : 1; }
  return a->index < b->index ? -1 : 1;
}

/* Chooses a device for each object, the largest first (Graham 1969, "longest processing time"). */
static int spread(struct object *objects, size_t n, const struct mgd_share *shares, size_t devices) {
  struct mgd_share now[MGD_MAX_DEVICES];
  memcpy(now, shares, devices * sizeof *now);
  qsort(objects, n, sizeof *objects, compare_objects);
  for (size_t i = 0; i < n; i++) {
    int to = mgd_place_lightest(now, devices, objects[i].bytes);
    if (to < 0) { return MGD_E_NO_ROOM; }
    now[to].room -= objects[i].bytes;
    now[to].load = mgd_about_sum(now[to].load, objects[i].bytes);
    objects[i].to = to;
  }
  return MGD_OK;
}

int mgd_place_plan_spread(struct mgd_machine *m, const int64_t *bytes, size_t n, const struct mgd_share *shares,
                          size_t devices, int *out) {
  const struct mgd_stages_request request = by_bytes(bytes, NULL, n, shares, devices);
  int code = validate(&request);
  if (code != MGD_OK || n == 0) { return code; }
  struct object *objects = mgd_alloc_new(&m->alloc, n, sizeof *objects);
  if (!objects) { return MGD_E_NOMEM; }
  for (size_t i = 0; i < n; i++) { objects[i] = (struct object){.bytes = bytes[i], .index = i}; }
  code = spread(objects, n, shares, devices);
  for (size_t i = 0; code == MGD_OK && i < n; i++) { out[objects[i].index] = objects[i].to; }
  mgd_alloc_free(objects);
  return code;
}
