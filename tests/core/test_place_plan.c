/* Layers over devices: exact against a brute-force optimum, fast on large cases.
 *
 * Usage: test_place_plan [seed] [steps]; steps / 20 random cases are tried.
 */
#include <math.h>
#include <time.h>

#include "expect.h"

#define MAX_LAYERS 7
#define MAX_DEVICES 4

__extension__ typedef __int128 wide;

/* What a plan is worth; the order of fields is the order of importance. */
struct worth {
  bool fits;
  wide level; /* the heaviest load of those that take layers, in bytes on the fastest device */
  int64_t border;
  int used;
  double squares;
};

struct question {
  size_t n, devices;
  int64_t bytes[MAX_LAYERS], border[MAX_LAYERS], room[MAX_DEVICES], load[MAX_DEVICES];
  double speed[MAX_DEVICES]; /* 0: 1 */
  bool has_border;
};

static double speed_of(const struct question *q, size_t j) { return q->speed[j] > 0.0 ? q->speed[j] : 1.0; }

static int64_t weight_of(const struct question *q, size_t j) {
  double fastest = 0.0;
  for (size_t d = 0; d < q->devices; d++) {
    fastest = fmax(fastest, speed_of(q, d));
  }
  return llround(speed_of(q, j) / fastest * 0x1p20);
}

static struct worth weigh(const struct question *q, const int *plan) {
  struct worth w = {.fits = true};
  int64_t own[MAX_DEVICES] = {0};
  for (size_t i = 0; i < q->n; i++) {
    own[plan[i]] += q->bytes[i];
    w.border += q->has_border && i > 0 && plan[i] != plan[i - 1] ? q->border[i - 1] : 0;
  }
  for (size_t j = 0; j < q->devices; j++) {
    wide weight = weight_of(q, j), level = (((wide)q->load[j] + own[j]) * (1 << 20) + weight - 1) / weight;
    double before = (double)q->load[j] / (double)weight, after = before + (double)own[j] / (double)weight;
    w.fits = w.fits && own[j] <= q->room[j];
    w.used += own[j] > 0;
    w.squares += after * after;
    w.level = own[j] > 0 && level > w.level ? level : w.level;
  }
  return w;
}

/* Below 0 when a is better, above when b is, 0 when equal as far as doubles tell. */
static int compare(const struct worth *a, const struct worth *b) {
  if (a->fits != b->fits) {
    return a->fits ? -1 : 1;
  }
  if (a->level != b->level) {
    return a->level < b->level ? -1 : 1;
  }
  if (a->border != b->border) {
    return a->border < b->border ? -1 : 1;
  }
  if (a->used != b->used) {
    return a->used > b->used ? -1 : 1;
  }
  if (fabs(a->squares - b->squares) > 1e-9 * b->squares) {
    return a->squares < b->squares ? -1 : 1;
  }
  return 0;
}

/* Tries every way to give layers i.. to devices from `device` on. */
static void try_all(const struct question *q, int *plan, size_t i, int device, struct worth *best) {
  if (i == q->n) {
    struct worth w = weigh(q, plan);
    if (compare(&w, best) < 0) {
      *best = w;
    }
    return;
  }
  for (int d = device; d < (int)q->devices; d++) {
    plan[i] = d;
    try_all(q, plan, i + 1, d, best);
  }
}

static int solve(struct mgd_machine *m, const struct question *q, int *plan) {
  struct mgd_share shares[MAX_DEVICES];
  for (size_t j = 0; j < q->devices; j++) {
    shares[j] = (struct mgd_share){q->room[j], q->load[j], speed_of(q, j)};
  }
  return mgd_place_plan_layers(m, q->bytes, q->has_border ? q->border : NULL, q->n, shares, q->devices, plan);
}

static void expect_best(struct mgd_machine *m, const struct question *q, uint64_t seed) {
  int plan[MAX_LAYERS], scratch[MAX_LAYERS];
  struct worth best = {.fits = false};
  for (size_t i = 0; i < MAX_LAYERS; i++) {
    plan[i] = 77;
  }
  try_all(q, scratch, 0, 0, &best);
  int code = solve(m, q, plan);
  struct worth got = {0};
  bool right = best.fits ? code == MGD_OK : code == MGD_E_NO_ROOM && plan[0] == 77;
  for (size_t i = 0; right && best.fits && i < q->n; i++) {
    right = plan[i] >= (i ? plan[i - 1] : 0) && plan[i] < (int)q->devices;
  }
  if (right && best.fits) {
    got = weigh(q, plan);
    right = compare(&got, &best) == 0;
  }
  if (!right) {
    fprintf(stderr,
            "seed %" PRIu64 ": %s, %zu layers over %zu devices; got level %g border %" PRId64 " used %d squares %g, best %g %" PRId64 " %d %g\n", seed,
            mgd_text_error_name(code), q->n, q->devices, (double)got.level, got.border, got.used, got.squares, (double)best.level, best.border, best.used, best.squares);
    exit(1);
  }
}

/* Small numbers make ties, zeros and tight rooms; large ones test exactness. */
static struct question invent(uint64_t *state) {
  struct question q = {.n = (size_t)pick(state, MAX_LAYERS + 1), .devices = 1 + (size_t)pick(state, MAX_DEVICES)};
  int64_t scale = pick(state, 3) ? 1 : (int64_t)1 << 56;
  int64_t most = pick(state, 2) ? 4 : 12;
  int64_t noise = scale > 1 ? 3 : 1;
  for (size_t i = 0; i < q.n; i++) {
    q.bytes[i] = pick(state, 4) ? pick(state, most + 1) % 13 * scale / 2 + pick(state, noise) : 0;
    q.border[i] = pick(state, most);
  }
  bool same = pick(state, 2), busy = pick(state, 2), alike = pick(state, 2);
  for (size_t j = 0; j < q.devices; j++) {
    q.room[j] = same ? 30 * (scale / 2 + 1) : pick(state, 30) * (scale / 2 + pick(state, 2));
    q.load[j] = busy ? pick(state, 10) * (scale / 2 + pick(state, 2)) : 0;
    q.speed[j] = alike ? 1.5 : (double)(1 + pick(state, 6));
  }
  q.has_border = pick(state, 4);
  return q;
}

static void random_cases_equal_the_optimum(uint64_t seed, int64_t cases) {
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t state = seed;
  for (int64_t i = 0; i < cases; i++) {
    struct question q = invent(&state);
    expect_best(m, &q, seed);
  }
  mgd_machine_destroy(m);
}

/* ---- by hand */

static void expect_plan(int line, struct question q, const char *expected) {
  struct mgd_machine *m = new_machine(0, 0);
  int plan[MAX_LAYERS];
  char text[MAX_LAYERS + 1] = "";
  EXPECT_OK(solve(m, &q, plan));
  for (size_t i = 0; i < q.n; i++) {
    text[i] = (char)('0' + plan[i]);
  }
  expect_text(__FILE__, line, "the plan", text, expected);
  mgd_machine_destroy(m);
}
#define EXPECT_PLAN(expected, ...) expect_plan(__LINE__, (struct question){__VA_ARGS__}, expected)

static void plans_read_as_one_would_draw_them(void) {
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {9, 9});
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .bytes = {1, 1, 1, 3}, .room = {9, 9});
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {3, 90}); /* room is a limit and no measure */
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {1, 90});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {90, 90}, .speed = {1.0, 3.0});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {90, 90}, .load = {2, 0});
  EXPECT_PLAN("1111", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {90, 90}, .load = {5, 0});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {90, 3}, .load = {5, 0});
  EXPECT_PLAN("111", .n = 3, .devices = 2, .bytes = {1, 1, 1}, .room = {0, 9});
  EXPECT_PLAN("0", .n = 1, .devices = 3, .bytes = {5}, .room = {9, 9, 9});
  EXPECT_PLAN("", .n = 0, .devices = 3, .room = {9, 9, 9});
  EXPECT_PLAN("000", .n = 3, .devices = 2, .bytes = {0, 0, 0}, .room = {0, 0});
}

static void among_equal_loads_the_fewest_border_bytes_win(void) {
  EXPECT_PLAN("00111", .n = 5, .devices = 2, .bytes = {2, 1, 1, 1, 2}, .room = {9, 9}, .has_border = true, .border = {1, 1, 9, 1});
  EXPECT_PLAN("00011", .n = 5, .devices = 2, .bytes = {2, 1, 1, 1, 2}, .room = {9, 9}, .has_border = true, .border = {1, 9, 1, 1});
  /* Three devices could be used, at the price of border bytes: two are. */
  EXPECT_PLAN("011", .n = 3, .devices = 3, .bytes = {4, 2, 2}, .room = {9, 9, 9}, .has_border = true, .border = {1, 1});
}

static void free_borders_use_every_device_and_even_out_the_rest(void) {
  EXPECT_PLAN("012", .n = 3, .devices = 3, .bytes = {4, 2, 2}, .room = {9, 9, 9});
  EXPECT_PLAN("0112233", .n = 7, .devices = 4, .bytes = {9, 1, 1, 1, 1, 1, 1}, .room = {9, 9, 9, 9});
}

static void layers_without_bytes_go_where_the_cut_is_cheapest(void) {
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .bytes = {1, 0, 0, 1}, .room = {9, 9}, .has_border = true, .border = {5, 3, 1});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .bytes = {1, 0, 0, 1}, .room = {9, 9}, .has_border = true, .border = {1, 3, 5});
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .bytes = {1, 0, 0, 1}, .room = {9, 9}); /* all equal: with its input */
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .bytes = {0, 1, 1, 0}, .room = {9, 9}, .has_border = true, .border = {0, 3, 0});
}

static void one_byte_decides_even_among_huge_layers(void) {
  const int64_t huge = (int64_t)1 << 60;
  EXPECT_PLAN("011", .n = 3, .devices = 2, .bytes = {huge + 1, 1, huge}, .room = {2 * huge, 2 * huge});
  EXPECT_PLAN("001", .n = 3, .devices = 2, .bytes = {huge, 1, huge + 1}, .room = {2 * huge, 2 * huge});
}

/* ---- what goes wrong */

static void impossible_and_meaningless_questions_are_refused(void) {
  struct mgd_machine *m = new_machine(0, 0);
  const int64_t bytes[] = {5, 6}, negative[] = {5, -1}, large[] = {INT64_MAX, 1};
  const struct mgd_share room[] = {{10, 0, 1.0}, {5, 0, 1.0}};
  const struct mgd_share bad[][1] = {{{-1, 0, 1.0}}, {{10, -1, 1.0}}, {{10, 0, 0.0}}, {{10, 0, -1.0}}, {{10, 0, (double)NAN}}, {{10, 0, (double)INFINITY}}};
  int out[2] = {77, 77};
  EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, 2, room, 2, out), MGD_E_NO_ROOM);
  EXPECT_CODE(mgd_place_plan_layers(m, negative, NULL, 2, room, 2, out), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_plan_layers(m, bytes, &negative[1], 2, room, 2, out), MGD_E_INVALID);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, 1, bad[i], 1, out), MGD_E_INVALID);
    EXPECT_CODE(mgd_place_plan_spread(m, bytes, 1, bad[i], 1, out), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, 2, room, 0, out), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, 2, room, MGD_MAX_DEVICES + 1, out), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, UINT32_MAX, room, 2, out), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_plan_layers(m, large, NULL, 2, room, 2, out), MGD_E_OVERFLOW);
  EXPECT_INT(out[0], 77);
  EXPECT_INT(out[1], 77);
  mgd_machine_destroy(m);
}

static void each_allocation_may_fail(void) {
  const int64_t bytes[] = {5, 6};
  const struct mgd_share room[] = {{10, 0, 1.0}, {10, 0, 1.0}};
  for (int64_t n = 4; n <= 8; n++) {
    struct mgd_machine *m = NULL;
    const struct mgd_config config = {.fail_allocation = n};
    int out[2] = {77, 77};
    EXPECT_OK(mgd_machine_create(&config, &m));
    EXPECT_CODE(mgd_place_plan_layers(m, bytes, NULL, 2, room, 2, out), n < 8 ? MGD_E_NOMEM : MGD_OK);
    EXPECT_INT(out[0], n < 8 ? 77 : 0);
    EXPECT_INT(out[1], n < 8 ? 77 : 1);
    mgd_machine_destroy(m);
  }
  struct mgd_machine *m = NULL;
  const struct mgd_config config = {.fail_allocation = 4};
  int out[2] = {77, 77};
  EXPECT_OK(mgd_machine_create(&config, &m));
  EXPECT_CODE(mgd_place_plan_spread(m, bytes, 2, room, 2, out), MGD_E_NOMEM);
  EXPECT(out[0] == 77 && out[1] == 77);
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 2, room, 2, out));
  mgd_machine_destroy(m);
}

/* ---- size */

static void large_case(const char *what, size_t devices, int64_t first, bool borders, uint64_t seed) {
  enum { LAYERS = 10000 };
  static int64_t bytes[LAYERS], border[LAYERS];
  static struct mgd_share room[MGD_MAX_DEVICES];
  static int plan[LAYERS];
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t state = seed;
  int64_t load[MGD_MAX_DEVICES] = {0}, total = 0, heaviest = 0, largest = 0;
  for (size_t i = 0; i < LAYERS; i++) {
    bytes[i] = i == 0 ? first : 1 + pick(&state, 1 << 20);
    border[i] = pick(&state, 1 << 16);
    total += bytes[i];
    largest = bytes[i] > largest ? bytes[i] : largest;
  }
  for (size_t j = 0; j < devices; j++) {
    room[j] = (struct mgd_share){total, 0, 1.0};
  }
  clock_t begin = clock();
  EXPECT_OK(mgd_place_plan_layers(m, bytes, borders ? border : NULL, LAYERS, room, devices, plan));
  double ms = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
  for (size_t i = 0; i < LAYERS; i++) {
    load[plan[i]] += bytes[i];
  }
  for (size_t j = 0; j < devices; j++) {
    heaviest = load[j] > heaviest ? load[j] : heaviest;
    EXPECT(load[j] > 0);
  }
  EXPECT(heaviest <= total / (int64_t)devices + largest); /* no contiguous plan needs more */
  printf("10000 layers over %zu devices, %s: %.1f ms\n", devices, what, ms);
  EXPECT(ms < 2000.0);
  mgd_machine_destroy(m);
}

static void each_alone_goes_where_least_is_in_use(void) {
  struct mgd_machine *m = new_machine(0, 0);
  int out[4];
  const int64_t bytes[] = {5, 5, 5, 1}, negative[] = {-1, 1};
  const struct mgd_share even[] = {{10, 0, 1.0}, {10, 0, 1.0}}, uneven[] = {{4, 0, 1.0}, {12, 0, 1.0}}, scarce[] = {{6, 0, 1.0}, {9, 0, 1.0}};
  const struct mgd_share large[] = {{10, 0, 1.0}, {90, 0, 1.0}}, busy[] = {{90, 6, 1.0}, {90, 0, 1.0}}, fast[] = {{90, 0, 1.0}, {90, 0, 2.5}};
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 4, even, 2, out)); /* ties: the first */
  EXPECT(out[0] == 0 && out[1] == 1 && out[2] == 0 && out[3] == 1);
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 4, large, 2, out)); /* room is a limit and no measure */
  EXPECT(out[0] == 0 && out[1] == 1 && out[2] == 0 && out[3] == 1);
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 4, busy, 2, out));
  EXPECT(out[0] == 1 && out[1] == 1 && out[2] == 0 && out[3] == 1);
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 4, fast, 2, out));
  EXPECT(out[0] == 1 && out[1] == 1 && out[2] == 0 && out[3] == 1);
  EXPECT_OK(mgd_place_plan_spread(m, bytes, 2, uneven, 2, out));
  EXPECT(out[0] == 1 && out[1] == 1);
  EXPECT(mgd_place_plan_spread(m, bytes, 3, scarce, 2, out) == MGD_E_NO_ROOM);
  EXPECT(out[0] == 1 && out[1] == 1); /* untouched */
  EXPECT(mgd_place_plan_spread(m, negative, 2, even, 2, out) != MGD_OK);
  const int64_t rising[] = {1, 2, 3, 6}; /* the largest first, or the loads would be 4 and 8 */
  EXPECT_OK(mgd_place_plan_spread(m, rising, 4, large, 2, out));
  EXPECT(out[0] == 1 && out[1] == 1 && out[2] == 1 && out[3] == 0);
  EXPECT_OK(mgd_place_plan_spread(m, NULL, 0, even, 2, out));
  mgd_machine_destroy(m);
}

/* ---- how even it gets: bytes in use for the speed differ by one object at most, where room never binds */

static double load_of(const struct mgd_share *s) { return (double)s->load / s->speed; }

static void expect_even(const struct mgd_share *shares, size_t devices, double most, uint64_t seed) {
  double heaviest = 0.0, lightest = INFINITY;
  for (size_t j = 0; j < devices; j++) {
    heaviest = fmax(heaviest, load_of(&shares[j]));
    lightest = fmin(lightest, load_of(&shares[j]));
  }
  if (heaviest - lightest > most * (1 + 1e-9)) {
    fprintf(stderr, "seed %" PRIu64 ": %zu devices, heaviest %g, lightest %g, largest object %g\n", seed, devices, heaviest, lightest, most);
    exit(1);
  }
}

/* Layers are contiguous and devices in order, so equal speeds are asked for there (Barany and Grinberg 2013: it can be done). */
static void nobody_has_more_than_one_object_more(uint64_t seed, int64_t cases) {
  enum { OBJECTS = 60, DEVICES = 6 };
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t state = seed;
  for (int64_t c = 0; c < cases; c++) {
    size_t n = (size_t)pick(&state, OBJECTS + 1), devices = 1 + (size_t)pick(&state, DEVICES);
    struct mgd_share shares[2][DEVICES];
    int64_t bytes[OBJECTS], largest = 0;
    int plan[OBJECTS];
    double slowest = INFINITY;
    for (size_t i = 0; i < n; i++) {
      bytes[i] = pick(&state, 4) ? pick(&state, 100) : pick(&state, 5000);
      largest = bytes[i] > largest ? bytes[i] : largest;
    }
    for (size_t j = 0; j < devices; j++) {
      shares[0][j] = (struct mgd_share){OBJECTS * 5000 + pick(&state, 100000), 0, 0.5 + (double)pick(&state, 8)};
      shares[1][j] = (struct mgd_share){OBJECTS * 5000 + pick(&state, 100000), 0, 3.0};
      slowest = fmin(slowest, shares[0][j].speed);
    }
    EXPECT_OK(mgd_place_plan_spread(m, bytes, n, shares[0], devices, plan));
    for (size_t i = 0; i < n; i++) { shares[0][plan[i]].load += bytes[i]; }
    expect_even(shares[0], devices, (double)largest / slowest, seed);
    EXPECT_OK(mgd_place_plan_layers(m, bytes, NULL, n, shares[1], devices, plan));
    for (size_t i = 0; i < n; i++) {
      shares[1][plan[i]].load += bytes[i];
    }
    expect_even(shares[1], devices, (double)largest / 3.0, seed);
  }
  mgd_machine_destroy(m);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_place_plan: seed %" PRIu64 ", %" PRId64 " cases\n", seed, steps / 20);
  plans_read_as_one_would_draw_them();
  among_equal_loads_the_fewest_border_bytes_win();
  free_borders_use_every_device_and_even_out_the_rest();
  layers_without_bytes_go_where_the_cut_is_cheapest();
  one_byte_decides_even_among_huge_layers();
  impossible_and_meaningless_questions_are_refused();
  each_allocation_may_fail();
  each_alone_goes_where_least_is_in_use();
  nobody_has_more_than_one_object_more(seed, steps / 50);
  random_cases_equal_the_optimum(seed, steps / 20);
  if (steps >= 100000) { /* not under the slow tools */
    large_case("like layers", 16, 1000, true, seed);
    large_case("one giant layer", 16, (int64_t)1 << 40, false, seed);
    large_case("like layers", 63, 1000, false, seed);
  }
  return 0;
}
