/* Windows: the cheapest row of neighbours, beside every other row; and which storages of a machine leave for it.
 *
 * Usage: test_window [seed] [steps]; steps / 20 random rows are searched.
 */
#include "core/window.h"
#include "trainer.h"

#define MOST 12 /* blocks of a random row */

/* The least cost of all windows, each looked at by itself; below 0: there is none. */
static double least_cost(const struct mgd_window_block *block, const double *cost, size_t n, int64_t bytes) {
  double least = -1;
  for (size_t first = 0; first < n; first++) {
    double sum = 0;
    int64_t size = 0;
    for (size_t i = first; i < n && cost[i] >= 0 && (i == first || !block[i].begins); i++) {
      sum += cost[i];
      size += block[i].bytes;
      if (size >= bytes && (least < 0 || sum < least)) { least = sum; }
    }
  }
  return least;
}

static void the_cheapest_window_is_found(uint64_t seed, int64_t rows) {
  uint64_t random = seed;
  int64_t found = 0;
  for (int64_t k = 0; k < rows; k++) {
    struct mgd_window_block block[MOST] = {{0}};
    double cost[MOST];
    const size_t n = (size_t)pick(&random, MOST + 1);
    for (size_t i = 0; i < n; i++) {
      block[i].bytes = 1 + pick(&random, 5);
      block[i].begins = pick(&random, 4) == 0;
      cost[i] = (double)(pick(&random, 6) - 1); /* whole numbers, so that sums are exact */
    }
    const int64_t bytes = 1 + pick(&random, 20);
    size_t first = 0, last = 0;
    const double least = least_cost(block, cost, n, bytes);
    const bool is_there = mgd_window_find(block, cost, n, bytes, &first, &last);
    EXPECT(is_there == (least >= 0));
    if (!is_there) { continue; }
    found++;
    double sum = 0;
    int64_t size = 0;
    EXPECT(first <= last && last < n);
    for (size_t i = first; i <= last; i++) {
      EXPECT(cost[i] >= 0 && (i == first || !block[i].begins));
      sum += cost[i];
      size += block[i].bytes;
    }
    EXPECT(size >= bytes && !(sum < least) && !(sum > least));
  }
  EXPECT(found > rows / 4 && found < rows);
}

/* A window has a block also if no bytes are asked for. */
static void a_window_is_never_empty(void) {
  const struct mgd_window_block row[3] = {{.bytes = 4}, {.bytes = 2}, {.bytes = 3}};
  const double cost[3] = {3, 1, 2};
  size_t first = 7, last = 7;
  EXPECT(!mgd_window_find(row, cost, 0, 0, &first, &last));
  EXPECT(first == 7 && last == 7);
  EXPECT(mgd_window_find(row, cost, 3, 0, &first, &last));
  EXPECT(first == 1 && last == 1);
}

/* ---- on a device: the blocks of twelve weights in a row, in which every third is free */

#define BLOCKS (LAYERS * 3 / 2)

static char memory[BLOCKS * WEIGHT];
static struct mgd_window_block block[BLOCKS];
static const void *addresses[LAYERS];
static struct device d;

static const void *at(const struct mgd_handle *h) {
  for (int i = 0; i < LAYERS; i++) {
    if (&d.weights[i]->h == h) { return addresses[i]; }
  }
  return NULL;
}

static void set_up(uint64_t seed) {
  d = new_device(seed, 0);
  for (int i = 0, weight = 0; i < BLOCKS; i++) {
    block[i] = (struct mgd_window_block){memory + (size_t)i * WEIGHT, WEIGHT, i % 3 == 2, i == 0};
    if (!block[i].is_free) { addresses[weight++] = block[i].at; }
  }
}

/* `n`: the room for actions. */
static void expect_leaving_in(size_t n, int64_t bytes, int64_t most, const char *expected) {
  struct mgd_action actions[LAYERS + 2];
  char said[100] = "";
  EXPECT(n <= LAYERS + 2);
  const int code = mgd_window_evict(d.m, 1, bytes, most, block, BLOCKS, at, actions, &n);
  for (int i = 0; i < LAYERS && code == MGD_OK; i++) {
    for (size_t k = 0; k < n; k++) {
      if (actions[k].handle == &d.weights[i]->h) {
        (void)snprintf(said + strlen(said), sizeof said - strlen(said), "%d ", i);
      }
    }
  }
  for (size_t k = 0; k < n && code == MGD_OK; k++) { end_leaving(&d, &actions[k]); }
  EXPECT_TEXT(code == MGD_OK ? said : mgd_text_error_name(code), expected);
}

static void expect_leaving(int64_t bytes, int64_t most, const char *expected) {
  expect_leaving_in(LAYERS + 2, bytes, most, expected);
}

static void the_storages_of_one_window_leave(void) {
  const int64_t pressed = d.m->devices[1].storages.pressed;
  struct storage *used[] = {d.weights[3], d.weights[2], d.weights[1]};
  /* Two weights and the free block beside them are enough: those that were used least recently, with no recent one. */
  run(&d, "use", used, 3, false);
  expect_leaving(3 * WEIGHT, ROOM, "4 5 ");
  EXPECT_INT(d.m->devices[1].storages.pressed - pressed, 2 * WEIGHT);
}

static void what_may_not_leave_ends_a_window(void) {
  for (int i = 0; i < LAYERS; i += 2) { EXPECT_OK(mgd_handle_pin(d.m, &d.weights[i]->h, MGD_PIN_ASKED, true)); }
  expect_leaving(3 * WEIGHT, ROOM, "ABSENT");
  for (int i = 0; i < LAYERS; i += 2) { EXPECT_OK(mgd_handle_pin(d.m, &d.weights[i]->h, MGD_PIN_ASKED, false)); }
}

/* A storage whose place is not known, one in use and one in a block that is free by now are in no window. */
static void where_a_storage_is_and_whether_it_is_used(void) {
  struct storage *used[] = {d.weights[3], d.weights[2], d.weights[1], d.weights[0]};
  run(&d, "use", used, 4, false);
  addresses[4] = (const char *)addresses[4] + 1;
  expect_leaving(3 * WEIGHT, ROOM, "5 6 ");
  for (int i = 5; i <= 6; i++) { run(&d, "write", &d.weights[i], 1, true); } /* they are home, and dear */
  EXPECT(mgd_handle_use(&d.weights[7]->h, me, d.weights[7]->h.stamp));
  expect_leaving(3 * WEIGHT, ROOM, "8 9 ");
  for (int i = 8; i <= 9; i++) { run(&d, "write", &d.weights[i], 1, true); }
  EXPECT(!mgd_handle_unuse(&d.weights[7]->h, me, 1));
  block[9].is_free = true; /* that of weight 6 */
  expect_leaving(3 * WEIGHT, ROOM, "7 ");
}

/* The only storage that may leave is the oldest and the newest one. */
static void one_storage_is_not_recent(void) {
  for (int i = 0; i < LAYERS; i++) {
    if (i != 3) { EXPECT_OK(mgd_handle_pin(d.m, &d.weights[i]->h, MGD_PIN_ASKED, true)); }
  }
  expect_leaving(3 * WEIGHT, ROOM, "ABSENT");
  expect_leaving(2 * WEIGHT, ROOM, "3 ");
}

/* What is only read costs half: its way to the host is free. */
static void what_is_only_read_is_cheap(void) {
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[8]->h, MGD_ADVICE_READ));
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[9]->h, MGD_ADVICE_READ));
  expect_leaving(3 * WEIGHT, ROOM, "8 9 ");
  expect_leaving(3 * WEIGHT, ROOM, "0 1 ");
}

/* Storages with a copy on the host need no room there. */
static void a_copy_on_the_host_needs_no_more_room(void) {
  struct storage *both[] = {d.weights[0], d.weights[1]};
  expect_leaving(3 * WEIGHT, ROOM, "0 1 ");
  run(&d, "use", both, 2, false);
  for (int i = 2; i < LAYERS; i++) { EXPECT_OK(mgd_handle_pin(d.m, &d.weights[i]->h, MGD_PIN_ASKED, true)); }
  EXPECT(both[0]->h.memory && both[1]->h.memory);
  EXPECT_OK(mgd_host_set_limit(d.m, 0));
  expect_leaving(3 * WEIGHT, ROOM, "0 1 ");
}

static int refused_after;

/* Lets the first so many go that are asked for, and no other. */
static bool changes_its_mind(const struct mgd_handle *unused) {
  (void)unused;
  return refused_after-- > 0;
}

/* All owners let go when the window is chosen, and none does when its storages are to leave. */
static void owners_may_refuse_after_all(void) {
  refused_after = LAYERS;
  EXPECT_OK(mgd_evict_veto(d.m, changes_its_mind));
  expect_leaving(3 * WEIGHT, ROOM, "ABSENT");
  EXPECT_INT(refused_after, -1); /* behind the first that stays none is asked */
  EXPECT_INT(d.m->devices[1].storages.pressed, 0);
  EXPECT_OK(mgd_evict_veto(d.m, NULL));
  expect_leaving(3 * WEIGHT, ROOM, "0 1 ");
}

/* Advice decides before times do: what is to leave last ends a window, what is to leave first costs nothing. */
static void advice_is_followed(void) {
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[0]->h, MGD_ADVICE_LAST));
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[8]->h, MGD_ADVICE_FIRST));
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[9]->h, MGD_ADVICE_NEXT));
  expect_leaving(3 * WEIGHT, ROOM, "8 9 ");
  expect_leaving(3 * WEIGHT, ROOM, "1 2 ");
}

/* A window is for pieces: it does not let more leave than is missing, nor a part of what the host has no room for. */
static void a_window_that_costs_too_much_is_none(void) {
  expect_leaving(3 * WEIGHT, 2 * WEIGHT - 1, "ABSENT");
  EXPECT_OK(mgd_host_set_limit(d.m, 2 * WEIGHT - 1));
  expect_leaving(3 * WEIGHT, 2 * WEIGHT, "ABSENT");
  EXPECT_OK(mgd_host_set_limit(d.m, 2 * WEIGHT));
  expect_leaving(3 * WEIGHT, 2 * WEIGHT, "0 1 ");
}

/* There is room for one departure: the other storage of the window stays, and leaves at the next call. */
static void the_rest_of_a_window_leaves_later(void) {
  expect_leaving_in(2, 3 * WEIGHT, ROOM, "0 ");
  block[0].is_free = true;
  expect_leaving_in(2, 3 * WEIGHT, ROOM, "1 ");
}

/* Each of the three allocations fails in its turn. */
static void without_memory_none_leaves(void) {
  for (int fail = 1; fail <= 4; fail++) {
    d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + fail;
    expect_leaving(3 * WEIGHT, ROOM, fail <= 3 ? "NOMEM" : "0 1 ");
  }
  d.m->alloc.fail_at = 0;
}

static void what_cannot_be_is_refused(void) {
  struct mgd_action actions[2];
  size_t n = 1;
  EXPECT_CODE(mgd_window_evict(d.m, 1, WEIGHT, ROOM, block, BLOCKS, at, actions, &n), MGD_E_INVALID);
  n = 2;
  EXPECT_CODE(mgd_window_evict(d.m, 1, 0, ROOM, block, BLOCKS, at, actions, &n), MGD_E_INVALID);
  EXPECT_CODE(mgd_window_evict(d.m, 0, WEIGHT, ROOM, block, BLOCKS, at, actions, &n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_window_evict(d.m, 2, WEIGHT, ROOM, block, BLOCKS, at, actions, &n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_window_evict(d.m, 1, WEIGHT, ROOM, block, 0, at, actions, &n), MGD_E_ABSENT);
  expect_leaving(sizeof memory + 1, ROOM, "ABSENT");
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_window: seed %" PRIu64 ", %" PRId64 " rows\n", seed, steps / 20);
  (void)fflush(stdout);
  the_cheapest_window_is_found(seed, steps / 20 + 100);
  a_window_is_never_empty();
  static void (*const on_a_device[])(void) = {
      the_storages_of_one_window_leave,
      what_may_not_leave_ends_a_window,
      where_a_storage_is_and_whether_it_is_used,
      one_storage_is_not_recent,
      what_is_only_read_is_cheap,
      a_copy_on_the_host_needs_no_more_room,
      owners_may_refuse_after_all,
      advice_is_followed,
      a_window_that_costs_too_much_is_none,
      the_rest_of_a_window_leaves_later,
      without_memory_none_leaves,
      what_cannot_be_is_refused,
  };
  for (size_t i = 0; i < sizeof on_a_device / sizeof *on_a_device; i++) {
    set_up(seed);
    on_a_device[i]();
    give_up(&d);
  }
  return 0;
}
