/* place_plan.c: many objects over devices at once: contiguous layers, exactly, or
 * objects one by one.
 *
 * Layers and devices keep their order: each device takes one run of layers, which may be empty. The best plan has, in
 * this order: the least level that the loads (bytes in use / speed) of devices that take layers reach; the fewest bytes
 * across borders; the most devices that take layers; the least sum of squared loads, so that the layers that the
 * heaviest device does not take are spread evenly. No machine state is needed.
 *
 * The level is a whole number of bytes on the fastest device and is found by bisection over a greedy test. Under it a
 * dynamic programme over devices finds the rest; its cost obeys the quadrangle inequality (a border depends only on the
 * begin of a run, squares are convex, and runs that are too heavy stay so when they grow), so the best begin of a run
 * moves right with its end, and divide and conquer needs O(devices * n log n) steps.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#include <string.h>

#define FASTEST ((int64_t)1 << 20) /* weight of the fastest device */

__extension__ typedef __int128 wide; /* holds a level, which is at most (room + load) * FASTEST, times a weight */

/* The score of a plan for the first layers; smaller is better, except for `used`. */
struct score {
  int64_t border;
  int used; /* devices that hold a layer, -1 when no plan exists */
  double squares;
};

/* The layers that have bytes; a layer without bytes goes with a neighbour.
 * Invariants: sum is strictly increasing from 0; start[0] is 0; a run that begins at layer k > 0 begins at the caller's
 * layer start[k]: the place between layers k - 1 and k that the fewest bytes, cut[k], cross. */
struct problem {
  size_t n, devices;
  int64_t *sum;                 /* n + 1: layers k .. i - 1 weigh sum[i] - sum[k] */
  int64_t *cut;                 /* n + 1 */
  size_t *start;                /* n + 1; start[n] is the caller's n */
  uint32_t *from;               /* devices rows of n + 1: the begin of the run that ends before i */
  struct score *before, *after; /* n + 1 each */
  const struct mgd_share *shares;
  int64_t weight[MGD_MAX_DEVICES]; /* speed, FASTEST at most */
  int64_t cap[MGD_MAX_DEVICES];    /* bytes that each device may take now; below 0 means the same as 0 */
};

/* ---- the least possible level */

/* Returns the end of the longest run of at most `cap` bytes that begins at k. */
static size_t reach(const struct problem *p, size_t k, int64_t cap) {
  size_t low = k, high = p->n;
  while (low < high) {
    size_t middle = high - (high - low) / 2;
    if (p->sum[middle] - p->sum[k] <= cap) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Whether all layers fit if no load rises beyond the level. Taking as much as possible on each device in turn never
 * makes it harder for the next. Sets the caps for that level. */
static bool fits_under(struct problem *p, wide level) {
  size_t k = 0;
  for (size_t j = 0; j < p->devices; j++) {
    wide cap = p->weight[j] * level / FASTEST - p->shares[j].load;
    p->cap[j] = cap < p->shares[j].room ? (int64_t)cap : p->shares[j].room;
    k = reach(p, k, p->cap[j]);
  }
  return k == p->n;
}

/* Sets the caps for the least level at which everything fits. At level 0 it does not fit. */
static int find_caps(struct problem *p) {
  wide low = 0, high = 0;
  for (size_t j = 0; j < p->devices; j++) {
    wide full = ((wide)p->shares[j].load + p->shares[j].room) * FASTEST / p->weight[j] + 1;
    high = full > high ? full : high;
  }
  if (!fits_under(p, high)) {
    return MGD_E_NO_ROOM;
  }
  while (high - low > 1) {
    wide middle = low + (high - low) / 2;
    *(fits_under(p, middle) ? &high : &low) = middle;
  }
  (void)fits_under(p, high);
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

/* Returns the score when device j takes layers k .. i - 1 after the best plan for k. Only the growth of the squared
 * load is counted. */
static struct score extend(const struct problem *p, size_t j, size_t k, size_t i) {
  struct score s = p->before[k];
  if (s.used >= 0) {
    double own = (double)(p->sum[i] - p->sum[k]) / (double)p->weight[j];
    s.border += p->cut[k];
    s.used++;
    s.squares += own * (own + 2.0 * (double)p->shares[j].load / (double)p->weight[j]);
  }
  return s;
}

/* Returns the earliest begin of a run on device j that ends before i. */
static size_t earliest(const struct problem *p, size_t j, size_t i) {
  size_t low = 0, high = i;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (p->sum[i] - p->sum[middle] <= p->cap[j]) {
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
  p->from[j * (p->n + 1) + i] = (uint32_t)(takes ? best : i);
  score_ends(p, j, low, i, left, best);
  score_ends(p, j, i + 1, high, best, right);
}

static void score_all(struct problem *p) {
  for (size_t i = 0; i <= p->n; i++) {
    p->before[i] = (struct score){.used = i == 0 ? 0 : -1};
  }
  for (size_t j = 0; j < p->devices; j++) {
    score_ends(p, j, 0, p->n + 1, 0, p->n);
    struct score *swap = p->before;
    p->before = p->after;
    p->after = swap;
  }
}

/* Follows the begins of runs back and writes a device for each of the caller's n layers. If no layer has bytes, no run
 * exists and all layers go to the first device. */
static void write_plan(const struct problem *p, size_t n, int *out) {
  for (size_t layer = 0; p->n == 0 && layer < n; layer++) {
    out[layer] = 0;
  }
  size_t end = p->n;
  for (size_t j = p->devices; j-- > 0;) {
    size_t begin = p->from[j * (p->n + 1) + end];
    for (size_t layer = p->start[begin]; layer < p->start[end]; layer++) {
      out[layer] = (int)j;
    }
    end = begin;
  }
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

static int validate(const int64_t *bytes, const int64_t *border, size_t n, const struct mgd_share *shares,
                    size_t devices) {
  if (devices == 0 || devices > MGD_MAX_DEVICES || n >= UINT32_MAX) {
    return MGD_E_INVALID;
  }
  for (size_t j = 0; j < devices; j++) {
    if (shares[j].room < 0 || shares[j].load < 0 || !mgd_is_amount(shares[j].speed) || shares[j].speed <= 0.0) {
      return MGD_E_INVALID;
    }
  }
  int64_t sum;
  int code = sum_of(bytes, n, &sum);
  return code == MGD_OK && border && n > 1 ? sum_of(border, n - 1, &sum) : code;
}

/* Gathers the layers that have bytes and the cheapest cut before each, the last one of equals: a layer without bytes,
 * such as an activation, stays with its input. */
static void gather(struct problem *p, const int64_t *bytes, const int64_t *border, size_t n) {
  int64_t cheapest = 0; /* cut since the last layer that has bytes; none before the first */
  size_t where = 0;
  bool inside = false; /* behind a layer that has bytes, no cut seen yet */
  for (size_t i = 0; i < n; i++) {
    int64_t crossing = i > 0 && border ? border[i - 1] : 0;
    if (inside || (p->n > 0 && crossing <= cheapest)) {
      cheapest = crossing;
      where = i;
    }
    inside = bytes[i] > 0;
    if (inside) {
      p->start[p->n] = where;
      p->cut[p->n] = cheapest;
      p->sum[p->n + 1] = p->sum[p->n] + bytes[i];
      p->n++;
    }
  }
  p->start[p->n] = p->n > 0 ? n : 0;
}

static int open_problem(struct problem *p, struct mgd_alloc *alloc, size_t n) {
  p->sum = mgd_alloc_new(alloc, n + 1, sizeof *p->sum);
  p->cut = mgd_alloc_new(alloc, n + 1, sizeof *p->cut);
  p->start = mgd_alloc_new(alloc, n + 1, sizeof *p->start);
  p->before = mgd_alloc_new(alloc, n + 1, sizeof *p->before);
  p->after = mgd_alloc_new(alloc, n + 1, sizeof *p->after);
  p->from = mgd_alloc_new(alloc, (n + 1) * p->devices, sizeof *p->from);
  bool all = p->sum && p->cut && p->start && p->before && p->after && p->from;
  return all ? MGD_OK : MGD_E_NOMEM;
}

static void close_problem(struct problem *p) {
  mgd_alloc_free(p->sum);
  mgd_alloc_free(p->cut);
  mgd_alloc_free(p->start);
  mgd_alloc_free(p->before);
  mgd_alloc_free(p->after);
  mgd_alloc_free(p->from);
}

static void weigh(struct problem *p) {
  double fastest = 0.0;
  for (size_t j = 0; j < p->devices; j++) {
    fastest = fmax(fastest, p->shares[j].speed);
  }
  for (size_t j = 0; j < p->devices; j++) {
    p->weight[j] = mgd_max(1, llround(p->shares[j].speed / fastest * (double)FASTEST));
  }
}

int mgd_place_plan_layers(struct mgd_machine *m, const int64_t *bytes, const int64_t *border, size_t n,
                          const struct mgd_share *shares, size_t devices, int *out) {
  int code = validate(bytes, border, n, shares, devices);
  if (code != MGD_OK) {
    return code;
  }
  struct problem p = {.devices = devices, .shares = shares};
  weigh(&p);
  code = open_problem(&p, &m->alloc, n);
  if (code == MGD_OK) {
    gather(&p, bytes, border, n);
    code = p.n > 0 ? find_caps(&p) : MGD_OK;
  }
  if (code == MGD_OK) {
    score_all(&p);
    write_plan(&p, n, out);
  }
  close_problem(&p);
  return code;
}

/* Places the objects. out may be NULL, to try the plan before it is written. */
static int spread(const int64_t *bytes, size_t n, const struct mgd_share *shares, size_t devices, int *out) {
  struct mgd_share now[MGD_MAX_DEVICES];
  memcpy(now, shares, devices * sizeof *now);
  for (size_t i = 0; i < n; i++) {
    int to = mgd_place_lightest(now, devices, bytes[i]);
    if (to < 0) {
      return MGD_E_NO_ROOM;
    }
    now[to].room -= bytes[i];
    now[to].load = mgd_about_sum(now[to].load, bytes[i]);
    if (out) {
      out[i] = to;
    }
  }
  return MGD_OK;
}

int mgd_place_plan_spread(const int64_t *bytes, size_t n, const struct mgd_share *shares, size_t devices, int *out) {
  int code = validate(bytes, NULL, n, shares, devices);
  code = code == MGD_OK ? spread(bytes, n, shares, devices, NULL) : code;
  return code == MGD_OK ? spread(bytes, n, shares, devices, out) : code;
}
