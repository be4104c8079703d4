/* place_layers.c: contiguous layers over devices, exactly.
 *
 * Layers keep their order and devices theirs: each device takes one run of
 * layers, maybe none. The best plan has, in this order: the least heaviest
 * relative load (bytes / room); the fewest bytes across borders; the most
 * devices in use; the least sum of squared relative loads, so that what the
 * heaviest device leaves over is spread evenly. Needs no machine state.
 *
 * How: the least load is found by bisection over a greedy test and made exact
 * by integer comparison of fractions. Under that load a dynamic programme over
 * devices finds the rest; its cost obeys the quadrangle inequality (a border
 * depends only on where a run begins, squares are convex, and runs that are too
 * heavy stay so when they grow), so that the best beginning of a run moves
 * right with its end and divide and conquer needs O(devices * n log n) steps.
 */
#include "arithmetic.h"
#include "internal_machine.h"

#include <string.h>

__extension__ typedef __int128 wide; /* holds the product of two int64_t */

/* How good a plan for some first layers is; smaller is better except `used`. */
struct score {
  int64_t border;
  int used; /* devices that hold a layer, -1 when no plan exists */
  double squares;
};

/* The layers that have bytes; those that have none go with a neighbour.
 * Invariants: sum is strictly increasing from 0; start[0] is 0; a run that
 * begins at layer k > 0 begins at the caller's layer start[k], chosen between
 * layers k - 1 and k where the fewest bytes, cut[k], cross. */
struct problem {
  size_t n, devices;
  int64_t *sum;                 /* n + 1: layers k .. i - 1 weigh sum[i] - sum[k] */
  int64_t *cut;                 /* n + 1 */
  size_t *start;                /* n + 1; start[n] is the caller's n */
  uint32_t *from;               /* devices rows of n + 1: where the run that ends before i begins */
  struct score *before, *after; /* n + 1 each */
  const int64_t *room;
  int64_t cap[MGD_MAX_DEVICES]; /* bytes that each device may take now */
};

/* ---- the least possible load */

/* The end of the longest run of at most `cap` bytes that begins at k. */
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

/* Whether all layers fit under the caps. Taking as much as possible on each
 * device in turn never makes it harder for the next. If they do, the heaviest
 * relative load of that plan is written as the fraction load / room. */
static bool fits(const struct problem *p, int64_t *load, int64_t *room) {
  size_t k = 0;
  int64_t heaviest = 0, its_room = 1;
  for (size_t j = 0; j < p->devices; j++) {
    size_t end = reach(p, k, p->cap[j]);
    int64_t own = p->sum[end] - p->sum[k];
    if ((wide)own * its_room > (wide)heaviest * p->room[j]) {
      heaviest = own;
      its_room = p->room[j];
    }
    k = end;
  }
  if (k < p->n) {
    return false;
  }
  *load = heaviest;
  *room = its_room;
  return true;
}

/* Caps of t / 2**62 of each room. */
static void cap_at(struct problem *p, int64_t t) {
  for (size_t j = 0; j < p->devices; j++) {
    p->cap[j] = (int64_t)((wide)p->room[j] * t >> 62);
  }
}

/* Caps of load / room of each room, or the largest ones strictly below; a cap
 * of -1 lets nothing in, as 0 does. */
static void cap_by(struct problem *p, int64_t load, int64_t room, bool below) {
  for (size_t j = 0; j < p->devices; j++) {
    wide product = (wide)p->room[j] * load;
    p->cap[j] = (int64_t)((product - below) / room);
  }
}

/* Leaves the caps at the least load under which everything fits. Bisection
 * brackets it to 2**-62, within which only a few fractions lie; then each step
 * asks for a plan strictly better than the last one. */
static int find_caps(struct problem *p) {
  int64_t low = 0, high = (int64_t)1 << 62;
  int64_t load, room;
  cap_at(p, high);
  if (!fits(p, &load, &room)) {
    return MGD_E_NO_ROOM;
  }
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    cap_at(p, middle);
    if (fits(p, &load, &room)) {
      high = middle;
    } else {
      low = middle;
    }
  }
  do {
    cap_by(p, load, room, true);
  } while (fits(p, &load, &room));
  cap_by(p, load, room, false);
  return MGD_OK;
}

/* ---- the best plan under that load */

static bool is_better(const struct score *a, const struct score *b) {
  if (a->used < 0 || b->used < 0) {
    return a->used > b->used;
  }
  if (a->border != b->border) {
    return a->border < b->border;
  }
  return a->used != b->used ? a->used > b->used : a->squares < b->squares;
}

/* The score when device j takes layers k .. i - 1 after the best plan for k. */
static struct score extend(const struct problem *p, size_t j, size_t k, size_t i) {
  struct score s = p->before[k];
  if (s.used >= 0) {
    double load = (double)(p->sum[i] - p->sum[k]) / (double)p->room[j];
    s.border += p->cut[k];
    s.used++;
    s.squares += load * load;
  }
  return s;
}

/* The earliest beginning of a run on device j that ends before i. */
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

/* Scores device j for the ends low .. high - 1, whose best beginnings lie in
 * left .. right: the middle one first, which then bounds both halves. */
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

/* Follows the beginnings back and writes a device for each of the caller's n
 * layers; where none has bytes, no run exists and all stay on the first. */
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

/* ---- the question */

/* Sum of n numbers that must all be >= 0. */
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

static int validate(const int64_t *bytes, const int64_t *border, size_t n, const int64_t *room, size_t devices) {
  if (devices == 0 || devices > MGD_MAX_DEVICES || n >= UINT32_MAX) {
    return MGD_E_INVALID;
  }
  for (size_t j = 0; j < devices; j++) {
    if (room[j] < 0) {
      return MGD_E_INVALID;
    }
  }
  int64_t sum;
  int code = sum_of(bytes, n, &sum);
  return code == MGD_OK && border && n > 1 ? sum_of(border, n - 1, &sum) : code;
}

/* Gathers the layers that have bytes and the cheapest cut before each, the last
 * of equals: a layer without bytes, an activation say, stays with its input. */
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

int mgd_place_layers(struct mgd_machine *m, const int64_t *bytes, const int64_t *border, size_t n, const int64_t *room, size_t devices, int *out) {
  int code = validate(bytes, border, n, room, devices);
  if (code != MGD_OK) {
    return code;
  }
  struct problem p = {.devices = devices, .room = room};
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

static size_t roomiest(const int64_t *left, size_t devices) {
  size_t best = 0;
  for (size_t j = 1; j < devices; j++) {
    if (left[j] > left[best]) {
      best = j;
    }
  }
  return best;
}

/* Writes nothing while out is NULL: a plan is tried before it is given. */
static int spread(const int64_t *bytes, size_t n, const int64_t *room, size_t devices, int64_t *left, int *out) {
  memcpy(left, room, devices * sizeof *left);
  for (size_t i = 0; i < n; i++) {
    size_t to = roomiest(left, devices);
    if (bytes[i] > left[to]) {
      return MGD_E_NO_ROOM;
    }
    left[to] -= bytes[i];
    if (out) {
      out[i] = (int)to;
    }
  }
  return MGD_OK;
}

int mgd_place_spread(struct mgd_machine *m, const int64_t *bytes, size_t n, const int64_t *room, size_t devices, int *out) {
  int code = validate(bytes, NULL, n, room, devices);
  if (code != MGD_OK) {
    return code;
  }
  int64_t *left = mgd_alloc_new(&m->alloc, devices, sizeof *left);
  if (!left) {
    return MGD_E_NOMEM;
  }
  code = spread(bytes, n, room, devices, left, NULL);
  if (code == MGD_OK) {
    code = spread(bytes, n, room, devices, left, out);
  }
  mgd_alloc_free(left);
  return code;
}
