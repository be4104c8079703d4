/* Programs whose steps are more than one training loop: another model after the first, rounds that hold passes which
 * repeat, and what is forgotten while a thread plans.
 *
 * Usage: test_step_rounds [seed]
 */
#define _POSIX_C_SOURCE 200809L /* barriers */
#include <pthread.h>

#include "trainer.h"

/* Operators in a row that use results alone, more than tell one place of a step from another. */
static void run_chain(struct device *d, int n) {
  struct storage *last = make(d, RESULT);
  for (int i = 0; i < n; i++) {
    run(d, "activation", &last, 1, false);
    struct storage *next = make(d, RESULT);
    drop(d, &last);
    last = next;
  }
  drop(d, &last);
}

static void train_with_chain(struct device *d) {
  run_chain(d, 2 * MGD_STEP_WINDOW);
  train(d);
}

static void take_new_weights(struct device *d) {
  for (int i = 0; i < LAYERS; i++) { d->weights[i] = make(d, WEIGHT); }
}

static void expect_learned_by_the_third_step(struct device *d, void (*step)(struct device *)) {
  for (int i = 0; i < 3; i++) { step(d); }
  EXPECT(state(d).follows);
  step(d);
  step(d);
  d->needed = 0;
  step(d);
  EXPECT_INT(d->needed, 0);
}

/* The first model dies, and its plan with it. */
static void a_second_training_is_learned(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int k = 0; k < 2; k++) {
    expect_learned_by_the_third_step(&d, train_with_chain);
    EXPECT_INT(state(&d).known, 1);
    for (int i = 0; i < LAYERS; i++) {
      EXPECT_INT(state(&d).known, 1);
      drop(&d, &d.weights[i]);
    }
    EXPECT_INT(state(&d).known, 0);
    EXPECT(!state(&d).follows);
    take_new_weights(&d);
  }
  give_up(&d);
}

/* Two models of one kind are alive. The plan for one is not taken up for the other, and does not keep it from being
 * learned. */
static void another_model_is_learned_beside_the_first(uint64_t seed) {
  struct device d = new_device(seed, 0);
  struct storage *first[LAYERS];
  expect_learned_by_the_third_step(&d, train_with_chain);
  memcpy(first, d.weights, sizeof first);
  take_new_weights(&d);
  expect_learned_by_the_third_step(&d, train_with_chain);
  EXPECT_INT(state(&d).known, 2);
  for (int i = 0; i < LAYERS; i++) { drop(&d, &first[i]); }
  EXPECT_INT(state(&d).known, 1);
  EXPECT(state(&d).follows);
  give_up(&d);
}

/* Passes over the weights, all of them alike. */
static void score(struct device *d, int passes) {
  for (int k = 0; k < passes; k++) {
    struct storage *last = make(d, RESULT);
    for (int i = 0; i < LAYERS; i++) {
      struct storage *in[] = {d->weights[i], last};
      run(d, "score", in, 2, false);
      struct storage *next = make(d, RESULT);
      drop(d, &last);
      last = next;
    }
    drop(d, &last);
  }
}

/* The passes repeat within the round, and are planned first. The round is planned all the same, and is followed without
 * a break from the fourth one on. */
static void a_pass_does_not_hide_the_round(uint64_t seed) {
  for (int passes = 1; passes <= 9; passes += 2) {
    struct device d = new_device(seed, 0);
    d.room = ROOM / 2; /* neither the pass nor the step has enough */
    evict(&d, 0);
    for (int i = 0; i < 3; i++) {
      score(&d, passes);
      train(&d);
    }
    const int64_t lost = state(&d).lost;
    EXPECT(state(&d).follows);
    EXPECT_INT(state(&d).operators, (3 + passes) * LAYERS);
    for (int i = 0; i < 5; i++) {
      d.needed = 0;
      score(&d, passes);
      train(&d);
    }
    EXPECT_INT(state(&d).lost, lost);
    EXPECT_INT(d.needed, 0);
    give_up(&d);
  }
}

/* When the log is full and nothing longer was found, operators are followed and not logged. After the plan has been
 * lost they are logged again, and a longer round is found then. */
static void a_round_is_found_after_many_steps(uint64_t seed) {
  struct device d = new_device(seed, 0);
  int steps = 0;
  do { train(&d); } while (++steps < 10 || state(&d).logged > 0);
  EXPECT(state(&d).follows);
  EXPECT(steps < MGD_STEP_OPERATORS / (3 * LAYERS) + 2);
  for (int i = 0; i < 4; i++) {
    score(&d, 5);
    train(&d);
  }
  EXPECT_INT(state(&d).operators, 8 * LAYERS);
  give_up(&d);
}

/* ---- while a thread plans */

struct forgetter {
  struct mgd_machine *m;
  pthread_t thread;
  pthread_barrier_t begins;
  bool started;
};

static void *forget(void *of) {
  struct forgetter *f = of;
  (void)pthread_barrier_wait(&f->begins);
  EXPECT_OK(mgd_step_learn(f->m, false));
  EXPECT_OK(mgd_step_learn(f->m, true));
  return NULL;
}

/* Called with the mutex, right before the planner leaves it: the other thread gets it then. */
static int64_t between(void *context, int64_t from, int64_t to) {
  struct forgetter *f = context;
  if (!f->started) {
    f->started = true;
    EXPECT(pthread_create(&f->thread, NULL, forget, f) == 0);
    (void)pthread_barrier_wait(&f->begins);
  }
  return to - from;
}

static void what_is_forgotten_while_a_thread_plans_stays_forgotten(uint64_t seed) {
  for (int i = 0; i < 10; i++) {
    struct device d = new_device(seed, 0);
    struct forgetter f = {.m = d.m};
    const struct mgd_step_clock clock = {&f, between};
    d.clock = &clock;
    EXPECT(pthread_barrier_init(&f.begins, NULL, 2) == 0);
    for (int k = 0; !f.started; k = (k + 1) % 8) { /* a long step, so that planning takes long */
      run_chain(&d, k);
      train(&d);
    }
    EXPECT(pthread_join(f.thread, NULL) == 0);
    EXPECT(pthread_barrier_destroy(&f.begins) == 0);
    EXPECT(!state(&d).follows);
    EXPECT_INT(state(&d).known, 0);
    d.clock = NULL;
    EXPECT_OK(mgd_step_begin(d.m, 1));
    expect_learned_by_the_third_step(&d, train);
    give_up(&d);
  }
}

/* ---- places */

/* The followed plan gets places in a block, what is on the device then has none, and the program goes on. */
static void what_is_away_gets_its_place(uint64_t seed) {
  struct device d = new_device(seed, 0);
  const int64_t block = INT64_C(64) << 20;
  struct mgd_step_place places[4 * LAYERS];
  bool was_home[LAYERS];
  int64_t bytes;
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, block, 0, 0, &bytes), MGD_E_ABSENT);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  while (!state(&d).follows) { train(&d); }
  EXPECT(mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, 0, 0, 0, &bytes), MGD_E_NO_ROOM);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, 0, places, 4 * LAYERS), 0);
  evict(&d, ROOM / 2);
  for (int i = 0; i < LAYERS; i++) { was_home[i] = d.weights[i]->h.state != MGD_SPILLED; }
  EXPECT_OK(mgd_step_layout_make(d.m, 1, block, 0, 0, &bytes));
  EXPECT_INT(bytes, block - (INT64_C(2) << 20));
  int found = mgd_step_layout_places(d.m, 1, NULL, 0, places, 4 * LAYERS);
  EXPECT(found > 0);
  for (int i = 0; i < found; i++) {
    EXPECT(places[i].offset >= 0 && places[i].offset % MGD_PLACE_ALIGNMENT == 0);
    EXPECT(places[i].offset + places[i].bytes <= bytes);
  }
  EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, 0, places, 1), 1);
  EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, RESULT + WEIGHT + 1, places, 4 * LAYERS), 0);
  train(&d);
  EXPECT(state(&d).follows);
  int placed = 0;
  for (int i = 0; i < LAYERS; i++) { /* the first operators of train() */
    struct mgd_handle *h = &d.weights[i]->h;
    struct storage *in[] = {d.weights[i], i ? d.results[i - 1] : d.weights[i]};
    run(&d, names[0], in, 2, false);
    EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, RESULT, places, 4 * LAYERS), 1);
    d.results[i] = make(&d, RESULT);
    EXPECT_INT(mgd_step_layout_places(d.m, 1, h, WEIGHT, places, 1), !was_home[i]);
    placed += !was_home[i];
    h->home = MGD_HOST; /* as if it were of another device, whose roles have other numbers */
    EXPECT_INT(mgd_step_layout_places(d.m, 1, h, WEIGHT, places, 1), 0);
    h->home = 1;
  }
  EXPECT(placed > 0);
  mgd_step_layout_forget(d.m, 1);
  EXPECT_INT(mgd_step_layout_places(d.m, 1, NULL, 0, places, 4 * LAYERS), 0);
  for (int i = 0; i < LAYERS; i++) { drop(&d, &d.results[i]); }
  give_up(&d);
}

/* Trains until a period has ended in which bytes had to leave, and the plan was looked at again. */
static void train_short_of_room(struct device *d) {
  train(d);
  train(d);
  evict(d, ROOM / 2); /* as for something that is not in the plan */
  train(d);
  train(d);
}

/* When bytes have to leave in spite of addresses, the places are no longer kept free ahead of copies. If that is not
 * enough, a plan with less room is made, as without such places. */
static void places_ahead_of_copies_are_given_up_first(uint64_t seed) {
  struct device d = new_device(seed, 0);
  const int64_t block = INT64_C(64) << 20;
  int64_t bytes;
  while (!state(&d).follows) { train(&d); }
  EXPECT_OK(mgd_step_layout_make(d.m, 1, block, 0, 0, &bytes));
  const int64_t plans = state(&d).plans, room = state(&d).room;
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  train_short_of_room(&d);
  EXPECT_INT(state(&d).plans, plans);
  EXPECT_INT(state(&d).room, room);
  EXPECT(mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_layout_make(d.m, 1, block, 0, 0, &bytes));
  train_short_of_room(&d);
  EXPECT_INT(state(&d).plans, plans + 1);
  EXPECT(state(&d).room < room);
  EXPECT(mgd_step_layout_is_wanted(d.m, 1));
  give_up(&d);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_step_rounds: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  a_second_training_is_learned(seed);
  another_model_is_learned_beside_the_first(seed);
  a_pass_does_not_hide_the_round(seed);
  a_round_is_found_after_many_steps(seed);
  what_is_forgotten_while_a_thread_plans_stays_forgotten(seed);
  what_is_away_gets_its_place(seed);
  places_ahead_of_copies_are_given_up_first(seed);
  return 0;
}
