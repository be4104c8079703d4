/* Addresses for the storages of a followed plan: which get one, which block they need, and what happens if it is too
 * small.
 *
 * Usage: test_step_places [seed]
 */
#include "trainer.h"

#define BIG 4
#define SIZE (8 * MIB)
#define PAGE (2 * MIB)
#define OUTSIDE (4 * MIB) /* of the room, for what has no address */
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

static void a_plan_with_less_room_is_made_for_a_small_block(uint64_t seed) {
  int64_t bytes;
  set_up(seed, SIZE, 0, 25 * MIB);
  const int64_t room = state(&d).room;
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 16 * MIB + OUTSIDE + PAGE - 1, 0, &bytes));
  EXPECT_INT(bytes, 16 * MIB);
  EXPECT_INT(layout()->height, 16 * MIB);
  EXPECT_INT(state(&d).room, room - 8 * MIB - room / 1024);
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
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 24 * MIB + OUTSIDE, 0, &bytes), MGD_E_NO_ROOM);
  EXPECT_INT(bytes, 0);
  EXPECT(l->plan == plan && !l->layout && l->laid_out);
  EXPECT_INT(state(&d).room, room);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 26 * MIB + OUTSIDE, 0, &bytes));
  EXPECT_INT(bytes, 26 * MIB);
  EXPECT_INT(layout()->height, 3 * (SIZE + MGD_PLACE_ALIGNMENT));
  tear_down();
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
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes), MGD_E_NO_ROOM);
  EXPECT_INT(bytes, 0);
  EXPECT(state(&d).follows && !layout() && !mgd_step_layout_is_wanted(d.m, 1));
  tear_down();
}

static void what_is_too_small_has_no_address(uint64_t seed) {
  int64_t bytes = 77;
  set_up(seed, SIZE, MIB, 25 * MIB);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, SIZE, &bytes));
  EXPECT_INT(bytes, 0);
  EXPECT(layout() && layout()->stays == 0);
  EXPECT_INT(places_for(NULL, 0), 0);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, MIB, &bytes));
  EXPECT_INT(bytes, 60 * MIB);
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
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes), MGD_E_NOMEM);
  EXPECT_INT(bytes, 0);
  EXPECT(!layout() && mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes));
  EXPECT_INT(bytes, 60 * MIB);
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
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes));
  EXPECT_INT(bytes, 60 * MIB);
  EXPECT_INT(addresses_of(big[0]), 0);
  for (int i = 1; i < BIG; i++) { EXPECT(addresses_of(big[i]) > 0); }
  EXPECT_INT(addresses_of(result), 1);
  EXPECT_OK(mgd_restore_end(d.m, &big[1]->h, MGD_SPILLED, &left));
  EXPECT(!left);
  for (int i = 0; i < 2; i++) { (void)mgd_handle_unuse(&big[i]->h, me, 1); }
  tear_down();
}

static void places_are_those_of_the_running_operator(uint64_t seed) {
  int64_t bytes;
  d = new_device(seed, 0); /* it logs nothing */
  mgd_step_layout_forget(d.m, 1);
  EXPECT_INT(places_for(NULL, 0), 0);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1) && !mgd_step_layout_is_wanted(d.m, 2));
  give_up(&d);
  set_up(seed, SIZE, MIB, 25 * MIB);
  EXPECT_OK(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes));
  EXPECT_INT(places_for(NULL, MIB), 0); /* the last operator makes nothing */
  EXPECT_INT(places_for(NULL, 0), 1);   /* the next one does */
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
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 64 * MIB, 0, &bytes), MGD_E_ABSENT);
  drop(&d, &stranger);
  tear_down();
}

int main(int argc, char **argv) {
  static void (*const tests[])(uint64_t) = {
      a_plan_with_less_room_is_made_for_a_small_block,
      a_block_for_no_plan_is_refused,
      too_many_results_get_no_addresses,
      what_is_too_small_has_no_address,
      without_memory_there_are_no_addresses,
      what_is_on_the_device_has_no_address,
      places_are_those_of_the_running_operator,
  };
  return RUN_ALL(tests);
}
