/* A device that trains layer after layer with too little room: that its steps are learned, that the plan is followed
 * and given up, and that whatever is planned, each operator finds the bytes that were written last.
 *
 * Usage: test_step [seed] [steps]
 */
#include <math.h>

#include "core/steps/step_file.h"
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
  drop(&d, &two[0]);
  drop(&d, &two[1]);
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
  drop(&d, &two[0]);
  drop(&d, &two[1]);
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

/* Each layer is looked at twice; as long as a step, and too much for the device. */
static void look(struct device *d) {
  for (int i = 0; i < 2 * LAYERS; i++) {
    struct storage *in[] = {d->weights[i / 2]};
    run(d, names[3], in, 1, false);
    if (i % 2 == 0) {
      d->results[i / 2] = make(d, RESULT);
    }
  }
  for (int i = 0; i < LAYERS; i++) {
    drop(d, &d->results[i]);
  }
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

/* What a plan says may be wrong; then it costs time. */
static void a_plan_may_lie(uint64_t seed) {
  struct device d = new_device(seed, 0);
  EXPECT_CODE(mgd_step_lie(d.m, 1, seed), MGD_E_ABSENT);
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  for (uint64_t lie = 1; lie <= 20; lie++) {
    EXPECT_OK(mgd_step_lie(d.m, 1, seed * 100 + lie));
    train(&d);
    train(&d);
    EXPECT(state(&d).follows);
  }
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

/* What is recorded may be wrong: the plan is lost and found, and bytes are right. */
static void a_record_may_be_wrong(uint64_t seed) {
  struct device d = new_device(seed, 0);
  EXPECT_OK(mgd_step_disturb(d.m, seed));
  for (int i = 0; i < 60; i++) {
    train(&d);
  }
  EXPECT(state(&d).plans > 0 && state(&d).predicted > 0);
  EXPECT_OK(mgd_step_disturb(d.m, 0));
  for (int i = 0; i < 4; i++) {
    train(&d);
  }
  EXPECT(state(&d).follows);
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

/* Each allocation fails in its turn; without memory nothing is learned, and all goes on. */
static void without_memory_all_goes_on(uint64_t seed) {
  for (int64_t fail = 1; fail < 120; fail++) {
    struct device d = new_device(seed, 0);
    d.m->alloc.fail_at = 0;
    train(&d);
    atomic_store(&d.m->alloc.made, 0);
    d.m->alloc.fail_at = fail;
    for (int i = 0; i < 4; i++) {
      train(&d);
    }
    d.m->alloc.fail_at = 0;
    give_up(&d);
  }
}

/* What a device that trains has learned. The caller frees it. */
static int64_t *saved(uint64_t seed, size_t *n, int64_t *planned) {
  struct device d = new_device(seed, 0);
  int64_t *numbers = NULL;
  int steps = 0;
  for (int i = 0; i < 8; i++) {
    d.planned = d.needed = 0;
    train(&d);
  }
  EXPECT_INT(d.needed, 0);
  *planned = d.planned;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &numbers, n, &steps));
  EXPECT(steps == 1 && numbers);
  give_up(&d);
  return numbers;
}

/* Another process: the plan is followed in its first step, and its second copies what any step does. */
static void a_step_goes_through_a_file(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed + 1, 0);
  int steps = 0;
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  EXPECT_INT(steps, 1);
  EXPECT(state(&d).logs && !state(&d).follows && state(&d).known == 1);
  train(&d);
  EXPECT(state(&d).follows && d.planned > 0);
  EXPECT_INT(state(&d).plans, 1);
  d.planned = d.needed = 0;
  train(&d);
  EXPECT_INT(d.planned, planned);
  EXPECT_INT(d.needed, 0);
  EXPECT_INT(state(&d).lost, 0);
  int64_t *again = NULL;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &again, &n, &steps));
  EXPECT(memcmp(again, numbers, n * sizeof *again) == 0);
  free(again);
  free(numbers);
  give_up(&d);
}

/* Steps of another program are never met, and do not keep this one from being learned. */
static void another_program_learns_its_own(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  for (int i = 0; i < 6; i++) {
    look(&d);
  }
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).operators, 2 * LAYERS);
  EXPECT_INT(state(&d).known, 2);
  for (int i = 0; i < 3; i++) { /* as many as there is place for; the one that is followed is kept or lost whole */
    EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
    train(&d);
  }
  EXPECT_INT(state(&d).known, MGD_STEP_PLANS);
  free(numbers);
  give_up(&d);
}

/* The step is planned for the room that is there. */
static void a_file_is_planned_for_the_room(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  for (int64_t room = ROOM - 20; room <= ROOM + 400; room += 20) {
    struct device d = new_device(seed, 0);
    int steps;
    d.room = room;
    EXPECT_OK(mgd_device_set_capacity(d.m, 1, room));
    EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
    train(&d);
    EXPECT(state(&d).follows);
    EXPECT_INT(state(&d).lost, 0);
    d.needed = d.planned = 0;
    train(&d);
    EXPECT_INT(d.needed, 0);
    EXPECT((d.planned == 0) == (room >= ROOM + 100)); /* 12 * 20 and a result: all that is ever there at once */
    give_up(&d);
  }
  free(numbers);
}

/* Each byte in turn is another one, and the file ends at each place: it is refused, or costs time. */
static void a_damaged_file_is_harmless(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  for (size_t cut = 1; cut < n; cut++) {
    EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, cut, &steps), MGD_E_INVALID);
    EXPECT_INT(steps, 0);
  }
  int64_t refused = 0;
  for (size_t at = 0; at < n * sizeof *numbers; at++) {
    const int64_t good = numbers[at / sizeof *numbers];
    ((unsigned char *)numbers)[at] ^= (unsigned char)(1 + pick(&d.random, 255));
    const int code = mgd_step_file_load(d.m, 1, numbers, n, &steps);
    EXPECT(code == MGD_OK || code == MGD_E_INVALID || code == MGD_E_NO_ROOM || code == MGD_E_OVERFLOW);
    refused += code != MGD_OK;
    if (code == MGD_OK && at % 16 == 0) {
      train(&d);
      train(&d);
    }
    numbers[at / sizeof *numbers] = good;
    EXPECT_OK(mgd_step_learn(d.m, false));
    EXPECT_OK(mgd_step_learn(d.m, true));
  }
  EXPECT(refused > (int64_t)n);
  EXPECT_OK(mgd_step_learn(d.m, false));
  EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, n, &steps), MGD_E_ABSENT);
  EXPECT_CODE(mgd_step_file_load(d.m, 2, numbers, n, &steps), MGD_E_NO_DEVICE);
  int64_t *none = numbers;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &none, &n, &steps));
  EXPECT(!none && n == 0 && steps == 0);
  EXPECT_CODE(mgd_step_file_save(d.m, 2, &none, &n, &steps), MGD_E_NO_DEVICE);
  free(numbers);
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
  without_memory_all_goes_on(seed);
  more_room_is_seen(seed);
  what_is_to_leave_last_is_not_planned(seed);
  a_quiet_device_logs_no_more(seed);
  a_plan_may_lie(seed);
  a_prediction_counts_the_bus(seed);
  a_record_may_be_wrong(seed);
  a_step_goes_through_a_file(seed);
  another_program_learns_its_own(seed);
  a_file_is_planned_for_the_room(seed);
  a_damaged_file_is_harmless(seed);
  nonsense_is_refused(seed);
  for (uint64_t i = 0; i < 10; i++) {
    whatever_happens_bytes_are_right(seed + i, steps / 5000 + 10);
  }
  return 0;
}
