/* A device that trains layer after layer with too little room: that its steps are learned, that the plan is followed
 * and given up, and that whatever is planned, each operator finds the bytes that were written last.
 *
 * Usage: test_step [seed] [steps]
 */
#include <math.h>

#include "trainer.h"

/* ---- tests */

static void a_step_that_repeats_is_learned(uint64_t seed) {
  struct device d = new_device(seed, 0);
  train(&d);
  EXPECT(d.knows && state(&d).logs);
  train(&d);
  train(&d);
  EXPECT(state(&d).follows); /* by the third step */
  EXPECT_INT(state(&d).operators, 3 * LAYERS);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  d.planned = d.needed = 0;
  train(&d);
  EXPECT_INT(state(&d).lost, 0);
  EXPECT(d.planned > LAYERS);
  EXPECT_INT(d.needed, 0); /* all that was needed had come before */
  give_up(&d);
}

/* While a slow operator runs there is time for many copies, which begin before it. All of them do as the plan says. */
static void many_come_before_one_operator(uint64_t seed) {
  enum { MANY = 3 * MGD_STEP_ACTIONS };
  struct device d = new_device(seed, 0);
  struct storage *small[MANY];
  int64_t most = 0;
  d.room = MANY + 10;
  for (int i = 0; i < MANY; i++) {
    small[i] = make(&d, 1);
  }
  for (int step = 0; step < 10; step++) {
    d.needed = most = 0;
    for (int i = 0; i < MANY; i++) {
      const int64_t before = d.planned;
      run(&d, "small", &small[i], 1, false);
      d.worked += 2 * MANY;
      most = d.planned - before > most ? d.planned - before : most;
    }
    run(&d, "large", &small[0], 1, false);
    struct storage *large = make(&d, MANY - 2);
    run(&d, "look", &large, 1, false);
    drop(&d, &large);
  }
  EXPECT(state(&d).follows);
  EXPECT(most > MGD_STEP_ACTIONS);
  EXPECT_INT(d.needed, 0);
  for (int i = 0; i < MANY; i++) {
    drop(&d, &small[i]);
  }
  give_up(&d);
}

static int64_t seven_times(void *context, int64_t from, int64_t to) {
  ++*(int *)context;
  return 7 * (to - from);
}

static int64_t unknown(void *context, int64_t from, int64_t to) { return ++*(int *)context, from < to ? -1 : 0; }

/* What two operators that use 600,000 bytes each are taken to need. */
static int64_t ideal_by(uint64_t seed, const struct mgd_step_clock *clock, bool untimed) {
  struct device d = new_device(seed, 0);
  d.room = 1024000;
  d.clock = clock;
  d.untimed = untimed;
  EXPECT(!mgd_step_logs(d.m, 1));
  struct storage *two[] = {make(&d, 600000), make(&d, 600000)};
  EXPECT(mgd_step_logs(d.m, 1)); /* one had to leave */
  for (int i = 0; i < 20; i++) {
    run(&d, "one", &two[0], 1, true);
    run(&d, "other", &two[1], 1, true);
  }
  EXPECT(state(&d).follows && !mgd_step_logs(d.m, 1));
  const int64_t ideal = state(&d).ideal;
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  give_up(&d);
  return ideal;
}

/* 100 each by what `worked` says, which a clock may have in moments of its own; and by their bytes where nobody knows. */
static void times_are_ns_or_moments(uint64_t seed) {
  int asked = 0;
  const struct mgd_step_clock slow = {&asked, seven_times}, none = {&asked, unknown};
  EXPECT_INT(ideal_by(seed, NULL, false), 200);
  EXPECT_INT(ideal_by(seed, NULL, true), 1200);
  EXPECT_INT(asked, 0);
  EXPECT_INT(ideal_by(seed, &slow, false), 1400);
  EXPECT_INT(asked, 2);
  EXPECT_INT(ideal_by(seed, &slow, true), 1200);
  EXPECT_INT(asked, 2);
  EXPECT_INT(ideal_by(seed, &none, false), 1200);
  EXPECT_INT(asked, 4);
}

/* 60 bytes less than there is are certain, and 40 more would be there if all pieces served. The room is found between:
 * a plan for too much lets bytes leave unasked for, is given up for the one before, and nothing is tried for ever. */
static void what_pieces_are_worth_is_tried(uint64_t seed) {
  struct device d = new_device(seed, 0);
  d.less = 60;
  d.pieces = 100;
  int64_t least = INT64_MAX, most = 0, room = 0, plans = 0;
  for (int i = 0; i < 120; i++) {
    train(&d);
    const struct mgd_step_state now = state(&d);
    least = now.follows && now.room < least ? now.room : least;
    most = now.room > most ? now.room : most;
    EXPECT(i < 100 || (now.room == room && now.plans == plans));
    room = now.room;
    plans = now.plans;
  }
  EXPECT(least < 120 && most > ROOM);
  EXPECT(room > ROOM - 20 && room < most);
  EXPECT(plans <= MGD_STEP_MOST);
  EXPECT_INT(d.refused, 0);
  give_up(&d);
}

/* 1/1024 of the room at first, and 1/128 more after a period in which bytes had to leave all the same. */
static void a_plan_leaves_some_room_free(uint64_t seed) {
  struct device d = new_device(seed, 0);
  d.room = 1024000;
  struct storage *two[] = {make(&d, 600000), make(&d, 600000)};
  for (int i = 0; i < 20; i++) {
    run(&d, "one", &two[0], 1, true);
    run(&d, "other", &two[1], 1, true);
  }
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).plans, 1);
  EXPECT_INT(state(&d).room, 1024000 - 1000);
  evict(&d, 500000);
  for (int i = 0; i < 4; i++) {
    run(&d, "one", &two[0], 1, true);
    run(&d, "other", &two[1], 1, true);
  }
  EXPECT_INT(state(&d).plans, 2);
  EXPECT_INT(state(&d).room, 1024000 - 1000 - 8000);
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  give_up(&d);
}

/* Nothing has to leave: nothing is logged. */
static void what_fits_is_not_logged(uint64_t seed) {
  struct device d = new_device(seed, 0);
  d.room = 1000;
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT(!state(&d).logs && !state(&d).follows && !d.planned);
  give_up(&d);
}

/* Other programs, and the same one with operators more and fewer. */
static void a_plan_is_lost_and_taken_up(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  struct storage *one[] = {d.weights[3]};
  run(&d, names[3], one, 1, false); /* a stranger or two do no harm */
  train(&d);
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).lost, 0);
  for (int i = 0; i < 20; i++) {
    struct storage *any[] = {d.weights[i % LAYERS]};
    run(&d, names[3], any, 1, false);
  }
  EXPECT_INT(state(&d).lost, 1);
  EXPECT(state(&d).logs);
  train(&d);
  EXPECT(state(&d).follows); /* the same plan */
  EXPECT_INT(state(&d).lost, 1);
  give_up(&d);
}

/* Many steps of one kind, then many of another, and so on: each is learned once. */
static void several_steps_are_known(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT_INT(state(&d).known, 1);
  for (int i = 0; i < 4; i++) {
    look(&d);
  }
  EXPECT_INT(state(&d).known, 2);
  EXPECT_INT(state(&d).lost, 1);
  EXPECT_INT(state(&d).operators, 2 * LAYERS);
  static const int times[] = {1, 3, 2, 5, 1, 2}; /* in no order that repeats */
  for (int i = 0; i < 6; i++) {
    for (int k = 0; k < times[i]; k++) {
      train(&d);
      EXPECT_INT(state(&d).operators, 3 * LAYERS);
    }
    for (int k = 0; k < times[(i + 3) % 6]; k++) {
      look(&d);
      EXPECT(state(&d).follows);
      EXPECT_INT(state(&d).operators, 2 * LAYERS);
    }
  }
  EXPECT_INT(state(&d).known, 2);
  drop(&d, &d.weights[0]); /* a new storage: neither step is what it was, and both are learned anew */
  d.weights[0] = make(&d, WEIGHT);
  for (int i = 0; i < 12; i++) {
    train(&d);
    look(&d);
    train(&d);
    train(&d);
    train(&d);
  }
  EXPECT(state(&d).known <= MGD_STEP_PLANS);
  EXPECT(state(&d).follows);
  give_up(&d);
}

static void learning_can_be_switched_off(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT_OK(mgd_step_learn(d.m, false));
  d.planned = 0;
  train(&d);
  EXPECT(!state(&d).follows && !state(&d).logs && !d.planned);
  EXPECT_OK(mgd_step_learn(d.m, true));
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT(state(&d).follows);
  give_up(&d);
}

/* More room than the plan knows of: it is forgotten, or asked again some periods later. */
static void more_room_is_seen(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT(state(&d).follows);
  d.room = 1000;
  for (int i = 0; i < 10; i++) {
    train(&d);
  }
  d.planned = 0;
  train(&d);
  EXPECT_INT(d.planned, 0);
  EXPECT_OK(mgd_device_set_capacity(d.m, 1, 2000));
  EXPECT(!state(&d).follows && !state(&d).logs);
  give_up(&d);
}

/* Two weights are to stay. The step is learned anew, without them, and they are home all the time. */
static void what_is_to_leave_last_is_not_planned(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT(state(&d).follows);
  for (int i = 0; i < 2; i++) {
    EXPECT_OK(mgd_handle_advise(d.m, &d.weights[i]->h, MGD_ADVICE_LAST));
  }
  EXPECT(!state(&d).follows);
  for (int i = 0; i < 6; i++) {
    train(&d);
  }
  EXPECT(state(&d).follows);
  EXPECT_INT(d.m->devices[1].storages.last_bytes, 2 * WEIGHT);
  for (int i = 0; i < 2; i++) {
    d.planned = d.needed = 0;
    train(&d);
    EXPECT(d.planned > LAYERS);
    EXPECT_INT(d.needed, 0);
    EXPECT(d.weights[0]->content >= 0 && d.weights[1]->content >= 0);
    EXPECT(d.weights[0]->h.role[0] < 0 && d.weights[2]->h.role[0] >= 0);
  }
  EXPECT_OK(mgd_handle_advise(d.m, &d.weights[2]->h, MGD_ADVICE_FIRST | MGD_ADVICE_READ));
  EXPECT(state(&d).follows); /* that is the plan's to decide */
  give_up(&d);
}

/* A device from which nothing leaves any more logs no more. */
static void a_quiet_device_logs_no_more(uint64_t seed) {
  struct device d = new_device(seed, 0);
  train(&d);
  EXPECT(state(&d).logs);
  d.room = 1000;
  for (int i = 0; i < 5000; i++) {
    struct storage *any[] = {d.weights[pick(&d.random, LAYERS)]};
    run(&d, names[3], any, 1, pick(&d.random, 2));
  }
  EXPECT(!state(&d).logs);
  give_up(&d);
}

/* Advice for a storage that lives in one step only does not forget the plan, which gives the role to another one in the
 * next step. */
static void advice_for_a_result_keeps_the_plan(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) { train(&d); }
  EXPECT(state(&d).follows);
  struct storage *in[] = {d.weights[0], d.weights[0]};
  run(&d, names[0], in, 2, false);
  d.results[0] = make(&d, RESULT);
  EXPECT(d.results[0]->h.role[0] >= 0);
  EXPECT_OK(mgd_handle_advise(d.m, &d.results[0]->h, MGD_ADVICE_LAST));
  EXPECT(state(&d).follows && state(&d).known == 1);
  drop(&d, &d.results[0]);
  give_up(&d);
}

/* Plans of devices that share a bus take longer than alone if they ask for more than it carries. */
static void a_prediction_counts_the_bus(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 4; i++) { train(&d); }
  const struct mgd_step_state alone = state(&d);
  EXPECT(alone.follows && alone.bytes_in > 0 && alone.predicted > 0);
  const double asked = fmax((double)alone.bytes_in, (double)alone.bytes_out) / (double)alone.predicted;
  const mgd_mask here = 1 << 1, elsewhere = 1 << 2;
  EXPECT_CODE(mgd_link_share(d.m, 0, 1.0), MGD_E_INVALID);
  EXPECT_CODE(mgd_link_share(d.m, here, 0.0), MGD_E_INVALID);
  EXPECT_CODE(mgd_link_share(d.m, here, (double)NAN), MGD_E_INVALID);
  EXPECT_OK(mgd_link_share(d.m, elsewhere, asked / 100));
  EXPECT_OK(mgd_link_share(d.m, here, 2 * asked));
  EXPECT(state(&d).predicted == alone.predicted);
  EXPECT_OK(mgd_link_share(d.m, here | elsewhere, asked / 3));
  const int64_t wanted = 3 * alone.predicted, found = state(&d).predicted;
  EXPECT(found >= wanted - 3 && found <= wanted + 3);
  for (int i = 3; i < MGD_MAX_DEVICES; i++) { EXPECT_OK(mgd_link_share(d.m, here, 2 * asked)); }
  EXPECT_CODE(mgd_link_share(d.m, here, 2 * asked), MGD_E_NOMEM);
  give_up(&d);
}

/* Two devices follow like plans on a bus that carries what one of them asks for. A device that follows none asks for
 * nothing. */
static void plans_of_two_devices_share_the_bus(uint64_t seed) {
  enum { SIZE = 600000 };
  struct device d = new_device(seed, 0);
  struct storage *two[2][2];
  int64_t alone = 0;
  int id;
  d.room = INT64_C(1) << 40;
  EXPECT_OK(mgd_device_add(d.m, "sim:1", d.room, &id));
  for (int k = 0; k < 2; k++) {
    const struct mgd_link link = {1, 1.0};
    bool plans = false;
    EXPECT_OK(mgd_link_set(d.m, MGD_HOST, 1 + k, link));
    EXPECT_OK(mgd_link_set(d.m, 1 + k, MGD_HOST, link));
    for (int i = 0; i < 2; i++) { two[k][i] = make_on(&d, 1 + k, SIZE); }
    EXPECT_OK(mgd_step_begin(d.m, 1 + k));
    for (int i = 0; !plans; i = 1 - i) { plans = issue(&d, i ? "other" : "one", &two[k][i], 1); }
    EXPECT_INT(state(&d).predicted, k == 0 ? 0 : alone); /* the other one logs, or does not even log */
    EXPECT_OK(mgd_step_plan(d.m, 1 + k, -SIZE / 2, 0, NULL));
    if (k == 0) {
      const struct mgd_step_state now = state(&d);
      alone = now.predicted;
      EXPECT(now.follows && alone > 0 && now.bytes_in > 0);
      const double asked = fmax((double)now.bytes_in, (double)now.bytes_out) / (double)alone;
      EXPECT_OK(mgd_link_share(d.m, 1 << 1 | 1 << 2, asked));
      EXPECT(state(&d).predicted >= alone - 1 && state(&d).predicted <= alone + 1);
      alone = state(&d).predicted;
    }
  }
  EXPECT(state(&d).predicted >= 2 * alone - 2 && state(&d).predicted <= 2 * alone + 2);
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < 2; i++) { drop(&d, &two[k][i]); }
  }
  give_up(&d);
}

static int64_t no_time(void *context, int64_t from, int64_t to) {
  EXPECT(!context && from <= to);
  return 0;
}

/* Neither operators nor copies take time: the plan takes none on a bus either. */
static void a_plan_without_time_asks_for_nothing(uint64_t seed) {
  enum { SIZE = 600000 };
  const struct mgd_step_clock clock = {NULL, no_time};
  struct device d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  struct storage *two[] = {make(&d, SIZE), make(&d, SIZE)};
  EXPECT_OK(mgd_link_set(d.m, MGD_HOST, 1, (struct mgd_link){0}));
  EXPECT_OK(mgd_link_set(d.m, 1, MGD_HOST, (struct mgd_link){0}));
  EXPECT_OK(mgd_link_share(d.m, 1 << 1, 1.0));
  EXPECT_OK(mgd_step_begin(d.m, 1));
  bool plans = false;
  for (int i = 0; !plans; i = 1 - i) { plans = issue(&d, i ? "other" : "one", &two[i], 1); }
  EXPECT_OK(mgd_step_plan(d.m, 1, -SIZE / 2, 0, &clock));
  EXPECT(state(&d).follows && state(&d).bytes_in > 0);
  EXPECT_INT(state(&d).predicted, 0);
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  give_up(&d);
}

/* Weights die and others take their place; the room changes; whatever happens, the bytes are right. */
static void whatever_happens_bytes_are_right(uint64_t seed, int64_t steps) {
  struct device d = new_device(seed, 0);
  for (int64_t i = 0; i < steps; i++) {
    if (pick(&d.random, 12) == 0) {
      const int64_t which = pick(&d.random, LAYERS);
      drop(&d, &d.weights[which]);
      d.weights[which] = make(&d, WEIGHT);
    }
    if (pick(&d.random, 12) == 0) {
      const uint32_t advice = (uint32_t)pick(&d.random, 16);
      EXPECT_CODE(mgd_handle_advise(d.m, &d.weights[pick(&d.random, LAYERS)]->h, advice), (advice & 3) == 3 ? MGD_E_INVALID : MGD_OK);
    }
    if (pick(&d.random, 12) == 0) {
      d.room = ROOM - pick(&d.random, 60);
      evict(&d, 0);
    }
    for (int64_t odd = pick(&d.random, 12); odd > 8; odd--) {
      struct storage *any[] = {d.weights[pick(&d.random, LAYERS)]};
      run(&d, names[3], any, 1, pick(&d.random, 2));
    }
    train(&d);
  }
  give_up(&d);
}

static void nonsense_is_refused(uint64_t seed) {
  struct device d = new_device(seed, 0);
  struct mgd_action actions[MGD_STEP_ACTIONS];
  struct mgd_step_state s;
  const struct mgd_step_call call = {0};
  size_t n = MGD_STEP_ACTIONS - 1;
  bool plans = true;
  EXPECT_CODE(mgd_step_operator(d.m, 1, &call, actions, &n, &plans), MGD_E_INVALID);
  EXPECT_CODE(mgd_step_rest(d.m, 1, &call, actions, &n), MGD_E_INVALID);
  EXPECT_CODE(mgd_step_begin(d.m, 2), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_step_begin(d.m, MGD_HOST), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_step_plan(d.m, 1, 5, 0, NULL), MGD_E_ABSENT);
  EXPECT_CODE(mgd_step_read(d.m, 2, &s), MGD_E_NO_DEVICE);
  n = MGD_STEP_ACTIONS;
  EXPECT_CODE(mgd_step_operator(d.m, 1, &call, actions, &n, &plans), MGD_E_ABSENT);
  EXPECT(n == 0 && !plans);
  n = MGD_STEP_ACTIONS;
  EXPECT_OK(mgd_step_rest(d.m, 1, &call, actions, &n)); /* nobody follows a plan: there is nothing to do */
  EXPECT_INT(n, 0);
  EXPECT_CODE(mgd_step_operator(d.m, 2, &call, actions, &(size_t){MGD_STEP_ACTIONS}, &plans), MGD_E_ABSENT);
  EXPECT_OK(mgd_step_begin(d.m, 1));
  EXPECT_CODE(mgd_step_plan(d.m, 1, 5, 0, NULL), MGD_E_ABSENT); /* no period has ended */
  EXPECT_CODE(mgd_step_plan(d.m, 2, 5, 0, NULL), MGD_E_ABSENT);
  give_up(&d);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_step: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  a_step_that_repeats_is_learned(seed);
  many_come_before_one_operator(seed);
  times_are_ns_or_moments(seed);
  what_pieces_are_worth_is_tried(seed);
  a_plan_leaves_some_room_free(seed);
  what_fits_is_not_logged(seed);
  a_plan_is_lost_and_taken_up(seed);
  several_steps_are_known(seed);
  learning_can_be_switched_off(seed);
  more_room_is_seen(seed);
  what_is_to_leave_last_is_not_planned(seed);
  a_quiet_device_logs_no_more(seed);
  advice_for_a_result_keeps_the_plan(seed);
  a_prediction_counts_the_bus(seed);
  plans_of_two_devices_share_the_bus(seed);
  a_plan_without_time_asks_for_nothing(seed);
  nonsense_is_refused(seed);
  for (uint64_t i = 0; i < 10; i++) {
    whatever_happens_bytes_are_right(seed + i, steps / 5000 + 10);
  }
  return 0;
}
