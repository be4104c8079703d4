/* Stages of a pipeline over devices: exact against a brute-force optimum, fast on large cases.
 *
 * Usage: test_place_stages [seed] [steps]; steps / 50 random cases are tried, and 1000 at least.
 */
#include <math.h>
#include <time.h>

#include "expect.h"

#ifndef MAX_LAYERS
#define MAX_LAYERS 9
#define MAX_DEVICES 4
#endif

__extension__ typedef __int128 wide;

/* The worth of a plan; the order of fields is the order of importance. */
struct worth {
  bool fits;
  wide longest;   /* ns of the slowest stage or link */
  int64_t border; /* bytes */
  int used;
  double squares;
  wide missing; /* bytes; of no importance */
};

struct question {
  size_t n, devices;
  int64_t ns[MAX_LAYERS], bytes[MAX_LAYERS], part_bytes[MAX_LAYERS], border[MAX_LAYERS];
  int64_t room[MAX_DEVICES], load[MAX_DEVICES], in_flight[MAX_DEVICES];
  double speed[MAX_DEVICES]; /* 0: 1 */
  double bandwidth[MAX_DEVICES];
  bool has_border, has_bandwidth, spills;
};

static double speed_of(const struct question *q, size_t j) { return q->speed[j] > 0.0 ? q->speed[j] : 1.0; }

static int64_t weight_of(const struct question *q, size_t j) {
  double fastest = 0.0;
  for (size_t d = 0; d < q->devices; d++) { fastest = fmax(fastest, speed_of(q, d)); }
  return llround(speed_of(q, j) / fastest * 0x1p20);
}

static void take_longer(struct worth *w, wide ns) { w->longest = ns > w->longest ? ns : w->longest; }

/* Adds what the cut between layers i - 1 and i costs. */
static void weigh_cut(const struct question *q, const int *plan, size_t i, struct worth *w) {
  if (plan[i] == plan[i - 1] || !q->has_border) { return; }
  w->border += q->border[i - 1];
  for (int j = plan[i - 1]; j < plan[i] && q->has_bandwidth; j++) {
    double rate = q->bandwidth[j];
    take_longer(w, rate > 0.0 ? (wide)ceil(2.0 * (double)q->border[i - 1] / rate) : 0);
  }
}

static struct worth weigh(const struct question *q, const int *plan) {
  struct worth w = {.fits = true};
  for (size_t j = 0; j < q->devices; j++) {
    wide weight = weight_of(q, j), ns = 0, bytes = 0;
    bool used = false;
    for (size_t i = 0; i < q->n; i++) {
      bool here = plan[i] == (int)j;
      ns += here ? q->ns[i] : 0;
      bytes += here ? q->bytes[i] + (wide)q->in_flight[j] * q->part_bytes[i] : 0;
      used = used || (here && (q->ns[i] > 0 || q->bytes[i] > 0 || q->part_bytes[i] > 0));
    }
    w.missing += bytes > q->room[j] ? bytes - q->room[j] : 0;
    w.used += used;
    w.squares += (double)ns / (double)weight * ((double)ns / (double)weight);
    take_longer(&w, (ns * (1 << 20) + weight - 1) / weight);
  }
  for (size_t i = 1; i < q->n; i++) { weigh_cut(q, plan, i, &w); }
  w.fits = w.missing == 0 || q->spills;
  return w;
}

/* Below 0 when a is better, above when b is, 0 when equal as far as doubles tell. */
static int compare(const struct worth *a, const struct worth *b) {
  if (a->fits != b->fits) { return a->fits ? -1 : 1; }
  if (a->longest != b->longest) { return a->longest < b->longest ? -1 : 1; }
  if (a->border != b->border) { return a->border < b->border ? -1 : 1; }
  if (a->used != b->used) { return a->used > b->used ? -1 : 1; }
  if (fabs(a->squares - b->squares) > 1e-9 * b->squares) { return a->squares < b->squares ? -1 : 1; }
  return 0;
}

/* Tries every way to give layers i.. to devices from `device` on. */
static void try_all(const struct question *q, int *plan, size_t i, int device, struct worth *best) {
  if (i == q->n) {
    struct worth w = weigh(q, plan);
    if (compare(&w, best) < 0) { *best = w; }
    return;
  }
  for (int d = device; d < (int)q->devices; d++) {
    plan[i] = d;
    try_all(q, plan, i + 1, d, best);
  }
}

static int solve(struct mgd_machine *m, const struct question *q, int *plan, int64_t *missing) {
  struct mgd_share shares[MAX_DEVICES];
  for (size_t j = 0; j < q->devices; j++) { shares[j] = (struct mgd_share){q->room[j], q->load[j], speed_of(q, j)}; }
  const struct mgd_stages_request request = {.n = q->n,
                                             .devices = q->devices,
                                             .ns = q->ns,
                                             .bytes = q->bytes,
                                             .part_bytes = q->part_bytes,
                                             .border = q->has_border ? q->border : NULL,
                                             .shares = shares,
                                             .in_flight = q->in_flight,
                                             .bandwidth = q->has_bandwidth ? q->bandwidth : NULL};
  return mgd_place_plan_stages(m, &request, plan, q->spills ? missing : NULL);
}

/* Returns whether an answer is the best there is; `got` and `best` are for the reader. */
static bool is_best(struct mgd_machine *m, const struct question *q, int *code, struct worth *got, struct worth *best) {
  int plan[MAX_LAYERS], scratch[MAX_LAYERS];
  int64_t missing = -1;
  for (size_t i = 0; i < MAX_LAYERS; i++) { plan[i] = 77; }
  try_all(q, scratch, 0, 0, best);
  *code = solve(m, q, plan, &missing);
  if (!best->fits) { return *code == MGD_E_NO_ROOM && plan[0] == 77 && missing == -1; }
  for (size_t i = 0; i < q->n; i++) {
    if (plan[i] < (i ? plan[i - 1] : 0) || plan[i] >= (int)q->devices) { return false; }
  }
  *got = weigh(q, plan);
  wide lacks = !q->spills ? -1 : got->missing < INT64_MAX ? got->missing : INT64_MAX;
  return *code == MGD_OK && compare(got, best) == 0 && missing == lacks;
}

static bool expect_best(struct mgd_machine *m, const struct question *q, uint64_t seed) {
  struct worth best = {.fits = false}, got = {.fits = false};
  int code;
  if (!is_best(m, q, &code, &got, &best)) {
    fprintf(stderr,
            "seed %" PRIu64 ": %s, %zu layers over %zu devices; got longest %g border %" PRId64
            " used %d squares %g, best %g %" PRId64 " %d %g\n",
            seed, mgd_text_error_name(code), q->n, q->devices, (double)got.longest, got.border, got.used, got.squares,
            (double)best.longest, best.border, best.used, best.squares);
    exit(1);
  }
  return best.fits;
}

static void invent_devices(struct question *q, uint64_t *state, int64_t scale) {
  bool same = pick(state, 2), alike = pick(state, 2), gpipe = pick(state, 2);
  int64_t parts = 1 + pick(state, 5), roomy = 1 + pick(state, 60);
  for (size_t j = 0; j < q->devices; j++) {
    int64_t left = (int64_t)(q->devices - j);
    q->room[j] = same ? roomy * scale : pick(state, roomy + 1) * scale + pick(state, 2);
    q->load[j] = pick(state, 9);
    q->in_flight[j] = gpipe || parts < left ? parts : left;
    q->speed[j] = alike ? 1.5 : (double)(1 + pick(state, 6));
    q->bandwidth[j] = pick(state, 6) ? 0.25 * (double)(1 + pick(state, 8)) : 0.0;
  }
}

/* Small numbers make ties, zeros and tight rooms; large ones test exactness. */
static struct question invent(uint64_t *state) {
  struct question q = {.n = (size_t)pick(state, MAX_LAYERS + 1), .devices = 1 + (size_t)pick(state, MAX_DEVICES)};
  int64_t scale = pick(state, 3) ? 1 : (int64_t)1 << 55;
  int64_t most = pick(state, 2) ? 4 : 12, noise = scale > 1 ? 3 : 1, kind = pick(state, 4);
  for (size_t i = 0; i < q.n; i++) {
    bool light = pick(state, 4) == 0; /* no layer has all three, so that each of them decides somewhere */
    q.ns[i] = light || kind == 1 ? 0 : pick(state, most) * scale + pick(state, noise);
    q.bytes[i] = light || kind == 2 ? 0 : pick(state, most) * scale + pick(state, noise);
    q.part_bytes[i] = light || kind == 3 ? 0 : pick(state, most);
    q.border[i] = pick(state, 2 * most) * (pick(state, 8) ? 1 : scale / 4 + 1);
  }
  invent_devices(&q, state, scale);
  q.has_border = pick(state, 8);
  q.has_bandwidth = pick(state, 4);
  q.spills = pick(state, 4) == 0;
  return q;
}

static void random_cases_equal_the_optimum(uint64_t seed, int64_t cases) {
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t state = seed;
  int64_t fit = 0;
  for (int64_t i = 0; i < cases; i++) {
    struct question q = invent(&state);
    fit += expect_best(m, &q, seed);
  }
  EXPECT(fit > cases / 4 && fit < cases - cases / 20); /* both answers are tested */
  mgd_machine_destroy(m);
}

/* ---- by hand */

static void expect_plan(int line, struct question q, int64_t missing, const char *expected) {
  struct mgd_machine *m = new_machine(0, 0);
  int plan[MAX_LAYERS];
  int64_t lacks = 0;
  char text[MAX_LAYERS + 1] = "";
  q.spills = q.spills || missing > 0;
  for (size_t j = 0; j < q.devices; j++) {
    q.room[j] = q.room[j] ? q.room[j] : 100;
    q.in_flight[j] = q.in_flight[j] ? q.in_flight[j] : 1;
  }
  EXPECT_OK(solve(m, &q, plan, &lacks));
  for (size_t i = 0; i < q.n; i++) { text[i] = (char)('0' + plan[i]); }
  expect_text(__FILE__, line, "the plan", text, expected);
  expect_int(__FILE__, line, "bytes missing", lacks, missing);
  mgd_machine_destroy(m);
}
#define EXPECT_PLAN(expected, ...) expect_plan(__LINE__, (struct question){__VA_ARGS__}, 0, expected)
#define EXPECT_SPILL(expected, missing, ...) expect_plan(__LINE__, (struct question){__VA_ARGS__}, missing, expected)

static void the_longest_stage_is_as_short_as_possible(void) {
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .ns = {1, 1, 1, 1});
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .ns = {1, 1, 1, 3});
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .ns = {1, 1, 1, 3},
              .bytes = {9, 9, 9, 0}); /* bytes are a limit and no measure */
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .speed = {1.0, 3.0});
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .load = {50, 0}); /* bytes in use take no time */
  EXPECT_PLAN("0112233", .n = 7, .devices = 4, .ns = {9, 1, 1, 1, 1, 1, 1});
  EXPECT_PLAN("", .n = 0, .devices = 3);
  EXPECT_PLAN("000", .n = 3, .devices = 2, .ns = {0, 0, 0});
}

static void layers_without_time_have_bytes(void) {
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .bytes = {1, 1, 1, 1}, .room = {2, 2});
  EXPECT_PLAN("011", .n = 3, .devices = 2, .ns = {1, 0, 1}, .bytes = {0, 5, 0}, .room = {4, 5});
  EXPECT_PLAN("001", .n = 3, .devices = 2, .ns = {1, 0, 1}); /* neither: it stays with its input */
}

static void room_counts_the_parts_in_flight(void) {
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {1, 1, 1, 1}, .room = {4, 2},
              .in_flight = {2, 1});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {1, 1, 1, 1}, .room = {3, 9},
              .in_flight = {2, 1});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .bytes = {1, 1, 1, 1}, .part_bytes = {1, 1, 1, 1},
              .room = {5, 9}, .in_flight = {2, 1});
  EXPECT_PLAN("1111", .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {1, 1, 1, 1}, .room = {1, 4},
              .in_flight = {2, 1});
}

static void a_slow_link_is_a_bottleneck(void) {
  /* 2 * 9 bytes at 2 bytes/ns take 9 ns: the cut is elsewhere though its stages take 6 ns. */
  EXPECT_PLAN("0001", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .has_border = true, .border = {4, 9, 3},
              .has_bandwidth = true, .bandwidth = {2.0});
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .has_border = true, .border = {4, 9, 3},
              .has_bandwidth = true, .bandwidth = {4.5});
  EXPECT_PLAN("0011", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .has_border = true, .border = {4, 9, 3},
              .has_bandwidth = true); /* 0: no time */
  /* No link is worth it: all are on one device. */
  EXPECT_PLAN("0000", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .has_border = true, .border = {9, 9, 9},
              .has_bandwidth = true, .bandwidth = {1.0});
  /* A rate so small that the time is no number of ns: the link is used only for want of room. */
  EXPECT_PLAN("1111", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .bytes = {1, 1, 1, 1}, .room = {3, 4},
              .has_border = true, .border = {9, 9, 9}, .has_bandwidth = true, .bandwidth = {0x1p-1070});
  EXPECT_PLAN("0111", .n = 4, .devices = 2, .ns = {2, 2, 2, 2}, .bytes = {1, 1, 1, 1}, .room = {1, 3},
              .has_border = true, .border = {9, 9, 9}, .has_bandwidth = true, .bandwidth = {0x1p-1070});
  /* No time at all is less than 1 ns, which the first link takes for its border of 1 byte. */
  EXPECT_PLAN("112", .n = 3, .devices = 3, .bytes = {1, 1, 1}, .room = {1, 2, 1}, .has_border = true, .border = {1, 5},
              .has_bandwidth = true, .bandwidth = {2.0, 0.0});
}

static void a_shorter_run_may_end_at_a_cheaper_border(void) {
  /* As much as fits under 6 ns on device 0 are three layers, but their border takes 8 ns. */
  EXPECT_PLAN("00112", .n = 5, .devices = 3, .ns = {2, 2, 2, 4, 5}, .has_border = true, .border = {1, 1, 4, 1},
              .has_bandwidth = true, .bandwidth = {1.0, 1.0});
}

static void a_border_passes_the_links_of_empty_devices(void) {
  /* Device 1 has no room. Its second link is too slow for the border in the middle. */
  EXPECT_PLAN("0022", .n = 4, .devices = 3, .ns = {2, 2, 2, 2}, .bytes = {2, 2, 2, 2}, .room = {9, 1, 9},
              .has_border = true, .border = {4, 9, 3}, .has_bandwidth = true, .bandwidth = {9.0, 9.0});
  EXPECT_PLAN("0002", .n = 4, .devices = 3, .ns = {2, 2, 2, 2}, .bytes = {2, 2, 2, 2}, .room = {9, 1, 9},
              .has_border = true, .border = {4, 9, 3}, .has_bandwidth = true, .bandwidth = {9.0, 2.0});
  EXPECT_PLAN("0002", .n = 4, .devices = 3, .ns = {2, 2, 2, 2}, .bytes = {2, 2, 2, 2}, .room = {9, 1, 9},
              .has_border = true, .border = {4, 9, 3}, .has_bandwidth = true, .bandwidth = {2.0, 9.0});
}

static void one_ns_decides_even_among_huge_layers(void) {
  const int64_t huge = (int64_t)1 << 60;
  EXPECT_PLAN("011", .n = 3, .devices = 2, .ns = {huge + 1, 1, huge});
  EXPECT_PLAN("001", .n = 3, .devices = 2, .ns = {huge, 1, huge + 1});
}

static void what_spills_says_how_much(void) {
  EXPECT_SPILL("0011", 4, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .bytes = {3, 3, 3, 3}, .room = {4, 4});
  EXPECT_SPILL("0011", 2, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .bytes = {3, 3, 3, 3}, .room = {4, 6});
  EXPECT_SPILL("0011", 3, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {3, 3, 3, 3}, .room = {15, 3},
               .in_flight = {2, 1});
  EXPECT_SPILL("0011", 0, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .spills = true);
  const int64_t huge = (int64_t)1 << 61;
  EXPECT_SPILL("0011", INT64_MAX, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {huge, 0, 0, huge},
               .in_flight = {2, 9});
  EXPECT_SPILL("0011", INT64_MAX, .n = 4, .devices = 2, .ns = {1, 1, 1, 1}, .part_bytes = {huge, 0, huge, huge},
               .in_flight = {3, 2});
}

/* ---- what goes wrong */

static void impossible_and_meaningless_questions_are_refused(void) {
  struct mgd_machine *m = new_machine(0, 0);
  static const struct question fine = {.n = 2,
                                       .devices = 2,
                                       .ns = {1, 1},
                                       .bytes = {5, 6},
                                       .part_bytes = {0, 1},
                                       .room = {11, 7},
                                       .in_flight = {2, 1},
                                       .border = {1},
                                       .bandwidth = {1.0},
                                       .has_border = true,
                                       .has_bandwidth = true};
  int out[MAX_LAYERS] = {77, 77};
#define REFUSED(code, what, ...)                \
  do {                                          \
    struct question q = fine;                   \
    q.what = __VA_ARGS__;                       \
    EXPECT_CODE(solve(m, &q, out, NULL), code); \
  } while (0)
  REFUSED(MGD_E_NO_ROOM, room[1], 6);
  REFUSED(MGD_E_INVALID, room[1], -1);
  REFUSED(MGD_E_INVALID, load[0], -1);
  REFUSED(MGD_E_INVALID, speed[0], (double)INFINITY);
  REFUSED(MGD_E_INVALID, in_flight[1], -1);
  REFUSED(MGD_E_INVALID, bandwidth[0], -1.0);
  REFUSED(MGD_E_INVALID, bandwidth[0], (double)NAN);
  REFUSED(MGD_E_INVALID, ns[1], -1);
  REFUSED(MGD_E_INVALID, bytes[1], -1);
  REFUSED(MGD_E_INVALID, part_bytes[1], -1);
  REFUSED(MGD_E_INVALID, border[0], -1);
  REFUSED(MGD_E_OVERFLOW, ns[1], INT64_MAX);
  REFUSED(MGD_E_OVERFLOW, bytes[1], INT64_MAX);
  REFUSED(MGD_E_OVERFLOW, part_bytes[0], INT64_MAX);
  REFUSED(MGD_E_INVALID, devices, 0);
  EXPECT_INT(out[0], 77);
  EXPECT_INT(out[1], 77);
  REFUSED(MGD_OK, room[0], 12); /* the question was fine */
  EXPECT(out[0] == 0 && out[1] == 1);
  mgd_machine_destroy(m);
}

static void each_allocation_may_fail(void) {
  static const struct question q = {.n = 2, .devices = 2, .ns = {5, 6}, .room = {10, 10}};
  for (int64_t n = 4; n <= 8; n++) {
    struct mgd_machine *m = NULL;
    const struct mgd_config config = {.fail_allocation = n};
    int out[2] = {77, 77};
    EXPECT_OK(mgd_machine_create(&config, &m));
    EXPECT_CODE(solve(m, &q, out, NULL), n < 8 ? MGD_E_NOMEM : MGD_OK);
    EXPECT_INT(out[0], n < 8 ? 77 : 0);
    EXPECT_INT(out[1], n < 8 ? 77 : 1);
    mgd_machine_destroy(m);
  }
}

/* ---- size */

static void large_case(const char *what, bool links, bool spills, uint64_t seed) {
  enum { LAYERS = 2000, DEVICES = 16 };
  static int64_t ns[LAYERS], bytes[LAYERS], part_bytes[LAYERS], border[LAYERS];
  int64_t in_flight[DEVICES], took[DEVICES] = {0}, total = 0, largest = 0, longest = 0, missing;
  struct mgd_share shares[DEVICES];
  double bandwidth[DEVICES - 1]; /* one less, for the tools that see a read behind the end */
  int plan[LAYERS];
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t state = seed;
  for (size_t i = 0; i < LAYERS; i++) {
    ns[i] = 1 + pick(&state, 1 << 20);
    bytes[i] = pick(&state, 1 << 20);
    part_bytes[i] = pick(&state, 1 << 20);
    border[i] = pick(&state, 1 << 20);
    total += ns[i];
    largest = ns[i] > largest ? ns[i] : largest;
  }
  for (size_t j = 0; j < DEVICES; j++) {
    int64_t even = LAYERS / DEVICES * ((int64_t)1 << 19);
    in_flight[j] = (int64_t)(DEVICES - j);
    shares[j] = (struct mgd_share){(1 + in_flight[j]) * even * 5 / 4, 0, 1.0};
    if (j > 0) { bandwidth[j - 1] = 0x1p-6; }
  }
  const struct mgd_stages_request request = {
      LAYERS, DEVICES, ns, bytes, part_bytes, border, shares, in_flight, links ? bandwidth : NULL};
  clock_t begin = clock();
  EXPECT_OK(mgd_place_plan_stages(m, &request, plan, spills ? &missing : NULL));
  double ms = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
  for (size_t i = 0; i < LAYERS; i++) {
    took[plan[i]] += ns[i];
    longest = took[plan[i]] > longest ? took[plan[i]] : longest;
  }
  EXPECT(longest <= total / DEVICES * 5 / 4 && (links || !spills || longest <= total / DEVICES + largest));
  printf("2000 layers over 16 devices, %s: %.1f ms\n", what, ms);
  EXPECT(ms < 2000.0);
  mgd_machine_destroy(m);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  int64_t cases = steps / 50 > 1000 ? steps / 50 : 1000;
  printf("test_place_stages: seed %" PRIu64 ", %" PRId64 " cases\n", seed, cases);
  the_longest_stage_is_as_short_as_possible();
  layers_without_time_have_bytes();
  room_counts_the_parts_in_flight();
  a_slow_link_is_a_bottleneck();
  a_shorter_run_may_end_at_a_cheaper_border();
  a_border_passes_the_links_of_empty_devices();
  one_ns_decides_even_among_huge_layers();
  what_spills_says_how_much();
  impossible_and_meaningless_questions_are_refused();
  each_allocation_may_fail();
  random_cases_equal_the_optimum(seed, cases);
  if (steps >= 100000) { /* not under the slow tools */
    large_case("time alone", false, true, seed);
    large_case("limits of room", false, false, seed);
    large_case("slow links", true, false, seed);
  }
  return 0;
}
