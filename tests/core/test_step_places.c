/* Addresses for the storages of a followed plan: which get one, which block they need, and what happens if it is too
 * small.
 *
 * Usage: test_step_places [seed]
 */
#include "trainer.h"

#define BIG 4
#define READ 16
#define SIZE (8 * MIB)
#define PAGE (2 * MIB)
#define OUTSIDE PAGE /* of the room, for what has no address and finds no room beside */
#define DUE 12 /* the operator after which a plan is due: 8 are compared with those of a period before */

static struct device d;
static struct storage *big[BIG], *result;
static const char *const uses_of[BIG] = {"w", "x", "y", "z"};

/* Runs the operator after `i` others; the first of each step makes a result of these bytes, if any, for the second. */
static bool issue_one(int i, int64_t bytes) {
  const bool plans = issue(&d, uses_of[i % BIG], &big[i % BIG], 1);
  if (i % BIG == 0 && bytes > 0) { result = make(&d, bytes); }
  if (i % BIG == 1 && result) { drop(&d, &result); }
  return plans;
}

/* A device on which no storage has its bytes, where a step is followed whose next operator is the first of all. */
static void set_up(uint64_t seed, int64_t size, int64_t bytes, int64_t room) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  for (int i = 0; i < BIG; i++) { big[i] = make(&d, size); }
  d.room = 0;
  evict(&d, 0);
  EXPECT(state(&d).logs);
  d.room = INT64_C(1) << 40;
  for (int i = 0; i < DUE; i++) { EXPECT(issue_one(i, bytes) == (i == DUE - 1)); }
  EXPECT_OK(mgd_step_plan(d.m, 1, room, 0, NULL));
  EXPECT(state(&d).follows && state(&d).plans == 1);
  EXPECT_INT(state(&d).room, room - room / 1024);
}

static void tear_down(void) {
  for (int i = 0; i < BIG; i++) { drop(&d, &big[i]); }
  if (result) { drop(&d, &result); }
  give_up(&d);
}

static int places_for(const struct mgd_handle *h, int64_t bytes) {
  struct mgd_step_place places[2 * BIG];
  return mgd_step_layout_places(d.m, 1, h, bytes, places, 2 * BIG);
}

static const struct mgd_layout *layout(void) { return d.m->devices[1].step->known[0].layout; }

/* How many times on the device have an address, of those of the storage. */
static int addresses_of(const struct storage *s) {
  const int32_t r = s->h.role[0];
  EXPECT(r >= 0);
  return layout()->first[r + 1] - layout()->first[r];
}

/* ---- the block */

/* The plan for a block of two weights is the one with the most room, to a 64th, that leaves no room for a third. */
static void a_plan_with_less_room_is_made_for_a_small_block(uint64_t seed) {
  int64_t bytes;
  set_up(seed, SIZE, 0, 25 * MIB);
  const int64_t room = state(&d).room;
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 16 * MIB + OUTSIDE + PAGE - 1, 0, 0, &bytes));
  EXPECT_INT(bytes, 16 * MIB);
  EXPECT_INT(layout()->height, 16 * MIB);
  EXPECT(state(&d).room < 3 * SIZE && state(&d).room >= 3 * SIZE - room / 64);
  EXPECT_INT(state(&d).plans, 1);
  tear_down();
}

/* Each of the 8 tries makes a plan whose bytes are a little more than the block. The plan stays as it was. */
static void a_block_for_no_plan_is_refused(uint64_t seed) {
  int64_t bytes = 77;
  set_up(seed, SIZE + 1, 0, 31 * MIB);
  const struct mgd_step_learned *l = &d.m->devices[1].step->known[0];
  const struct mgd_plan *plan = l->plan;
  const int64_t room = state(&d).room;
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 24 * MIB + OUTSIDE, 0, 0, &bytes), MGD_E_NO_ROOM);
  EXPECT_INT(bytes, 0);
  EXPECT(l->plan == plan && !l->layout && l->laid_out);
  EXPECT_INT(state(&d).room, room);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 26 * MIB + OUTSIDE, 0, 0, &bytes));
  EXPECT_INT(bytes, 26 * MIB);
  EXPECT_INT(layout()->height, 3 * (SIZE + MGD_PLACE_ALIGNMENT));
  tear_down();
}

static struct storage *layers[READ], *results[READ];

/* Runs the operator after `i` others: forwards each layer makes a result, which dies when the layer is read again. */
static bool issue_layer(int i) {
  const bool forward = i % (2 * READ) < READ;
  const int at = forward ? i % READ : READ - 1 - i % READ;
  struct storage *const reads[] = {layers[at], results[at]};
  const bool plans = issue(&d, uses_of[forward], reads, forward ? 1 : 2);
  if (forward) {
    results[at] = make(&d, layers[at]->h.bytes / 2);
  } else {
    drop(&d, &results[at]);
  }
  return plans;
}

/* A device that follows the plan of a step of layers of random sizes. */
static void set_up_layers(uint64_t seed, int64_t room) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  for (int i = 0; i < READ; i++) { layers[i] = make(&d, (1 + pick(&d.random, 4096)) << 10); }
  d.room = 0;
  evict(&d, 0);
  d.room = INT64_C(1) << 40;
  for (int i = 0; !issue_layer(i); i++) {}
  EXPECT_OK(mgd_step_plan(d.m, 1, room, 0, NULL));
}

static int64_t bytes_copied(void) { return state(&d).bytes_in + state(&d).bytes_out; }

/* What pieces cost, plans for a little more or less room make good, in all of these steps together. A step's block has
 * its room, and less than a page more. */
static void plans_with_addresses_copy_no_more(uint64_t seed) {
  int64_t with = 0, without = 0;
  for (seed = 1; seed <= 40; seed++) {
    int64_t bytes;
    set_up_layers(seed, (4 + (int64_t)seed % 12) * MIB);
    without += bytes_copied();
    EXPECT_OK(mgd_step_layout_make(d.m, 1, state(&d).room + OUTSIDE + PAGE - 1, 0, 0, &bytes));
    with += bytes_copied();
    for (int i = 0; i < READ; i++) {
      drop(&d, &layers[i]);
      if (results[i]) { drop(&d, &results[i]); }
    }
    give_up(&d);
  }
  EXPECT(with <= without);
}

/* More storages than a layout may have: all but a few are results of one operator of the step that is planned. */
static void too_many_results_get_no_addresses(uint64_t seed) {
  enum { MANY = 20000 };
  int64_t bytes = 77;
  bool plans = false;
  set_up(seed, SIZE, 0, 25 * MIB);
  mgd_step_layout_forget(d.m, 1);
  EXPECT_OK(mgd_step_learn(d.m, false));
  EXPECT_OK(mgd_step_learn(d.m, true));
  EXPECT_OK(mgd_step_begin(d.m, 1));
  for (int i = 0; !plans; i++) {
    plans = issue_one(i, 0);
    for (int k = 0; k < MANY && i == 10; k++) {
      result = make(&d, 1);
      drop(&d, &result);
    }
  }
  EXPECT_OK(mgd_step_plan(d.m, 1, 25 * MIB, 0, NULL));
  EXPECT_INT(d.m->devices[1].step->known[0].roles, BIG + MANY);
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes), MGD_E_NO_ROOM);
  EXPECT_INT(bytes, 0);
  EXPECT(state(&d).follows && !layout() && !mgd_step_layout_is_wanted(d.m, 1));
  tear_down();
}

static void what_is_too_small_has_no_address(uint64_t seed) {
  int64_t bytes = 77;
  set_up(seed, SIZE, MIB, 25 * MIB);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, SIZE, &bytes));
  EXPECT_INT(bytes, 0);
  EXPECT(layout() && layout()->stays == 0);
  EXPECT_INT(places_for(NULL, 0), 0);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, MIB, &bytes));
  EXPECT_INT(bytes, 64 * MIB - OUTSIDE);
  EXPECT(addresses_of(big[0]) > 0);
  EXPECT(!issue_one(0, MIB));
  EXPECT_INT(addresses_of(result), 0);
  EXPECT_INT(places_for(NULL, MIB), 0);
  EXPECT_INT(places_for(&big[0]->h, SIZE), 1);
  tear_down();
}

static void without_memory_there_are_no_addresses(uint64_t seed) {
  int64_t bytes = 77;
  set_up(seed, SIZE, 0, 25 * MIB);
  d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + 1;
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes), MGD_E_NOMEM);
  EXPECT_INT(bytes, 0);
  EXPECT(!layout() && mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes));
  EXPECT_INT(bytes, 64 * MIB - OUTSIDE);
  tear_down();
}

/* ---- the places */

/* What is on the device stays where it is. What is away gets addresses, and so does what is being fetched, and each
 * result, although one of the last step is there. */
static void what_is_on_the_device_has_no_address(uint64_t seed) {
  struct mgd_action actions[1 + MGD_MAX_DEVICES];
  int64_t room[MGD_MAX_DEVICES], bytes;
  int where;
  void *left = NULL;
  set_up(seed, SIZE, MIB, 25 * MIB);
  for (int i = 0; i < MGD_MAX_DEVICES; i++) { room[i] = INT64_MAX; }
  EXPECT(!issue_one(0, MIB));
  for (int i = 0; i < 2; i++) {
    struct mgd_handle *h = &big[i]->h;
    size_t n = sizeof actions / sizeof *actions;
    (void)mgd_handle_use(h, me, ++d.tick);
    EXPECT_OK(mgd_restore_begin(d.m, &h, 1, room, actions, &n, &where));
    EXPECT(n == 1 && actions[0].kind == MGD_DO_RESTORE);
    if (i == 0) { end_coming(&d, &actions[0], MGD_RESIDENT); }
  }
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes));
  EXPECT_INT(bytes, 64 * MIB - OUTSIDE);
  EXPECT_INT(addresses_of(big[0]), 0);
  for (int i = 1; i < BIG; i++) { EXPECT(addresses_of(big[i]) > 0); }
  EXPECT_INT(addresses_of(result), 1);
  EXPECT_OK(mgd_restore_end(d.m, &big[1]->h, MGD_SPILLED, &left));
  EXPECT(!left);
  for (int i = 0; i < 2; i++) { (void)mgd_handle_unuse(&big[i]->h, me, 1); }
  tear_down();
}

/* The places of all that begins in the next operators, of which the step has fewer than are looked at; the soonest of
 * them first. The first operator of the plan runs. */
static void expect_places_of_what_begins(void) {
  const struct mgd_layout *all = layout();
  struct mgd_step_place places[2 * BIG];
  EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, 0, places, 2 * BIG), all->stays);
  for (int n = 0; n < all->stays; n++) {
    int64_t bytes = 0, expected = 0;
    EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, 0, places, n), n);
    for (int i = 0; i < n; i++) { bytes += places[i].offset + places[i].bytes; }
    for (int after = 0, found = 0; after < BIG; after++) {
      for (int i = 0; i < all->stays && found < n; i++) {
        const struct mgd_layout_stay *a = &all->stay[i];
        if (a->from != after) { continue; }
        found++;
        expected += a->offset + d.m->devices[1].step->known[0].role[a->storage].bytes;
      }
    }
    EXPECT_INT(bytes, expected);
  }
}

static void places_are_those_of_the_running_operator(uint64_t seed) {
  int64_t bytes;
  d = new_device(seed, 0); /* it logs nothing */
  mgd_step_layout_forget(d.m, 1);
  EXPECT_INT(places_for(NULL, 0), 0);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1) && !mgd_step_layout_is_wanted(d.m, 2));
  give_up(&d);
  set_up(seed, SIZE, MIB, 25 * MIB);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes));
  EXPECT_INT(places_for(NULL, MIB), 0); /* the last operator makes nothing */
  expect_places_of_what_begins();
  EXPECT(!issue_one(0, MIB));
  EXPECT_INT(places_for(NULL, MIB), 1);
  EXPECT_INT(places_for(NULL, MIB + 1), 0);
  EXPECT_INT(places_for(&result->h, MIB), 1);
  EXPECT_INT(places_for(&big[0]->h, SIZE), 1);
  struct storage *stranger = make(&d, MIB);
  EXPECT_INT(places_for(&stranger->h, MIB), 0);
  EXPECT(!issue(&d, "strange", &stranger, 1));
  EXPECT_INT(places_for(NULL, 0), 0); /* it is not known where the program is */
  EXPECT(!issue_one(1, MIB));
  EXPECT_INT(places_for(&big[1]->h, SIZE), 1);
  for (int i = 0; i < 7; i++) { EXPECT(!issue(&d, "strange", &stranger, 1)); }
  EXPECT(state(&d).logs && state(&d).lost == 1);
  EXPECT_INT(places_for(NULL, 0), 0);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes), MGD_E_ABSENT);
  drop(&d, &stranger);
  tear_down();
}

/* ---- what operators have for themselves */

static void request(int64_t bytes, uintptr_t at) {
  d.requests[d.requested++] = (struct mgd_step_request){(const void *)at, bytes};
}

/* Like issue_one(i, MIB). The operator that makes the result asks for memory before and after it. */
static bool issue_hungry(int i, bool to_excess) {
  const bool plans = issue_one(i, MIB);
  d.requested = 0;
  if (i % BIG == 0) {
    request(3 * MIB, 1);
    request(2 * MIB, 2);
    request(MIB, 3); /* the result */
    request(5 * MIB, 1);
    request(to_excess ? 1000 * MIB : MIB, 4);
  }
  return plans;
}

/* Learns such a step. */
static void learn_hungry(uint64_t seed, bool to_excess) {
  set_up(seed, SIZE, MIB, 25 * MIB);
  EXPECT_OK(mgd_step_learn(d.m, false));
  EXPECT_OK(mgd_step_learn(d.m, true));
  EXPECT_OK(mgd_step_begin(d.m, 1));
  int i = 0;
  while (!issue_hungry(i, to_excess)) { i++; }
  EXPECT_INT(i, DUE - 1);
}

static int places_of(int64_t bytes) {
  struct mgd_step_place places[2 * BIG];
  const int n = mgd_step_layout_places(d.m, 1, NULL, bytes, places, 2 * BIG);
  for (int i = 0; i < n; i++) { EXPECT_INT(places[i].bytes, bytes); }
  return n;
}

/* What got an address twice is one place of the larger size. The result is the last request of its size. */
static void what_an_operator_has_for_itself_has_places(uint64_t seed) {
  int64_t bytes;
  learn_hungry(seed, false);
  EXPECT_OK(mgd_step_plan(d.m, 1, 36 * MIB, 0, NULL));
  const struct mgd_step_learned *l = &d.m->devices[1].step->known[0];
  EXPECT_INT(l->roles, BIG + 1 + 3);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes));
  for (int step = 0; step < 3; step++) {
    EXPECT(!issue_hungry(0, false));
    EXPECT_INT(places_of(MIB), 2);
    EXPECT_INT(places_of(2 * MIB), 1);
    EXPECT_INT(places_of(3 * MIB), 0);
    EXPECT_INT(places_of(5 * MIB), 1);
    EXPECT(l->role[result->h.role[0]].bytes == MIB && !l->role[result->h.role[0]].own);
    struct storage *other = make(&d, 2 * MIB); /* a result that is not in the plan */
    EXPECT_INT(other->h.role[0], -1);
    drop(&d, &other);
    for (int i = 1; i < BIG; i++) {
      EXPECT(!issue_hungry(i, false));
      EXPECT_INT(places_of(2 * MIB) + places_of(5 * MIB), 0);
    }
  }
  EXPECT_INT(state(&d).lost, 0);
  tear_down();
}

/* It counts as in use while the operator runs. The step has 33 MiB beside it, and 41 with it. */
static void bytes_leave_for_what_an_operator_has_for_itself(uint64_t seed) {
  learn_hungry(seed, false);
  EXPECT_CODE(mgd_step_plan(d.m, 1, 42 * MIB, 0, NULL), MGD_E_WAIT);
  tear_down();
  learn_hungry(seed, false);
  EXPECT_OK(mgd_step_plan(d.m, 1, 36 * MIB, 0, NULL));
  EXPECT_INT(state(&d).bytes_in, SIZE);
  tear_down();
}

static void what_is_more_than_the_device_has_is_not_planned(uint64_t seed) {
  int64_t bytes;
  set_up(seed, SIZE, MIB, 25 * MIB);
  const int64_t without = state(&d).bytes_in;
  tear_down();
  learn_hungry(seed, true);
  EXPECT_OK(mgd_step_plan(d.m, 1, 25 * MIB, 0, NULL));
  EXPECT_INT(state(&d).bytes_in, without);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, 0, &bytes));
  EXPECT(!issue_hungry(0, true));
  EXPECT_INT(places_of(2 * MIB), 0);
  EXPECT_INT(places_of(MIB), 1);
  tear_down();
}

/* ---- results that need no address */

/* The result of these bytes of a step of storages of that size has an address if one byte is missing beside. */
static void expect_room_beside(uint64_t seed, int64_t made, int64_t size, int64_t room, int64_t least, int64_t beside) {
  for (int missing = 0; missing < 2; missing++) {
    int64_t bytes;
    set_up(seed, size, made, room);
    EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, beside - missing, least, &bytes));
    EXPECT_INT(bytes, layout()->stays > 0 ? 64 * MIB - OUTSIDE : 0);
    EXPECT(!issue_one(0, made));
    EXPECT_INT(addresses_of(result), missing);
    EXPECT_INT(places_for(NULL, made), missing);
    EXPECT_INT(addresses_of(big[0]) > 0, size > least);
    tear_down();
  }
}

/* A page stays free. A result counts with what it leaves of a page that is full of its like: of 684 KiB two fit. */
static void small_results_lie_beside_the_block(uint64_t seed) {
  expect_room_beside(seed, MIB, SIZE, 25 * MIB, 0, PAGE + MIB);
  expect_room_beside(seed, 684 << 10, SIZE, 25 * MIB, 0, PAGE + MIB);
  expect_room_beside(seed, 600 << 10, SIZE, 25 * MIB, 0, PAGE + PAGE / 3);
}

static void what_comes_home_and_is_small_lies_beside_first(uint64_t seed) {
  expect_room_beside(seed, MIB, MIB / 2, 2 * MIB, MIB / 2 - 1, PAGE + MIB);
  expect_room_beside(seed, MIB, MIB / 2, 2 * MIB, MIB / 2, PAGE + BIG * MIB / 2 + MIB);
}

/* The block gives up a page if there is less. */
static void what_is_small_has_a_page_if_there_is_no_room_beside(uint64_t seed) {
  for (int missing = 0; missing < 2; missing++) {
    int64_t bytes;
    set_up(seed, SIZE, MIB, 25 * MIB);
    EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 2 * PAGE + MIB - missing, MIB, &bytes));
    EXPECT_INT(bytes, 64 * MIB - missing * OUTSIDE);
    tear_down();
  }
}

/* Of two that are there at once one lies beside if there is room for one. What is large has an address. */
static void results_that_are_there_at_once_share_the_room_beside(uint64_t seed) {
  for (int fit = 0; fit < 3; fit++) {
    int64_t bytes;
    learn_hungry(seed, false);
    EXPECT_OK(mgd_step_plan(d.m, 1, 36 * MIB, 0, NULL));
    EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, (fit + 1) * MIB + PAGE - 1, 0, &bytes));
    EXPECT(!issue_hungry(0, false));
    EXPECT_INT(places_of(MIB), 2 - fit);
    EXPECT_INT(places_of(2 * MIB), 1);
    tear_down();
  }
}

int main(int argc, char **argv) {
  static void (*const tests[])(uint64_t) = {
      a_plan_with_less_room_is_made_for_a_small_block,
      a_block_for_no_plan_is_refused,
      plans_with_addresses_copy_no_more,
      too_many_results_get_no_addresses,
      what_is_too_small_has_no_address,
      without_memory_there_are_no_addresses,
      what_is_on_the_device_has_no_address,
      places_are_those_of_the_running_operator,
      what_an_operator_has_for_itself_has_places,
      bytes_leave_for_what_an_operator_has_for_itself,
      what_is_more_than_the_device_has_is_not_planned,
      small_results_lie_beside_the_block,
      what_comes_home_and_is_small_lies_beside_first,
      what_is_small_has_a_page_if_there_is_no_room_beside,
      results_that_are_there_at_once_share_the_room_beside,
  };
  return RUN_ALL(tests);
}
