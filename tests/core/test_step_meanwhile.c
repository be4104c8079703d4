/* What other threads do while one plans: steps are forgotten, operators are logged and followed, storages die. The
 * planning thread must notice, and must not lose or keep what the others changed.
 *
 * The check that follows each transition of a debug build lets the other thread in: right after the planner has left
 * the mutex, `meanwhile` runs as that thread would. In builds without checks it never runs, so nothing is tested.
 *
 * Usage: test_step_meanwhile [seed]
 */
#include "core/steps/step_file.h"
#include "trainer.h"

#define SIZE 600000
#define BLOCK (INT64_C(64) << 20)
#define DUE 10 /* the operator after which a plan is due: 8 are compared with those two before */

static struct device d;
static struct storage *two[2];
static void (*meanwhile)(void); /* NULL: it has run */
static bool breaks; /* an invariant seems to be broken when the planner leaves the mutex */
static int64_t *numbers; /* the learned step in numbers, and how many they are */
static size_t count;

static int check_and_let_in(const struct mgd_machine *m) {
  const struct mgd_step *s = m->devices[1].step;
  int code = mgd_check_locked(m);
  if (s && s->planning && meanwhile) {
    void (*const runs)(void) = meanwhile;
    meanwhile = NULL;
    EXPECT(pthread_mutex_unlock(&d.m->mutex) == 0);
    runs();
    EXPECT(pthread_mutex_lock(&d.m->mutex) == 0);
  }
  if (s && s->planning && breaks) {
    breaks = false;
    code = MGD_E_BROKEN;
  }
  return code;
}

/* There is room for one of the two storages, so the step must be planned. */
static int plan(int64_t free) { return mgd_step_plan(d.m, 1, free, 0, NULL); }

static bool issue_one(int which) { return issue(&d, which ? "other" : "one", &two[which], 1); }

/* Counts the operators up to the one that ends a period. */
static int issue_until_due(void) {
  int issued = 1;
  while (!issue_one(1 - issued % 2)) { issued++; }
  return issued;
}

static void set_up(uint64_t seed) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  d.m->check = check_and_let_in;
  for (int i = 0; i < 2; i++) { two[i] = make(&d, SIZE); }
  EXPECT_OK(mgd_step_begin(d.m, 1));
  EXPECT_INT(issue_until_due(), DUE);
}

static void set_up_following(uint64_t seed) {
  set_up(seed);
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).known, 1);
}

static void tear_down(void) {
  EXPECT(!meanwhile && !breaks);
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  give_up(&d);
}

static void expect_nothing_learned(void) {
  struct mgd_step_state now = state(&d);
  EXPECT(!now.logs && !now.follows && now.logged == 0 && now.known == 0);
  EXPECT(!mgd_step_logs(d.m, 1));
}

/* What the planner reads is still there, but no other call finds it. */
static void forget(void) {
  EXPECT_OK(mgd_step_learn(d.m, false));
  expect_nothing_learned();
  EXPECT_OK(mgd_step_learn(d.m, true));
  EXPECT_OK(mgd_step_begin(d.m, 1));
  expect_nothing_learned();
  bool plans = true;
  EXPECT_CODE(issue_uses(&d, "one", NULL, 0, &plans), MGD_E_ABSENT);
  EXPECT(!plans && d.m->devices[1].step->planning);
}

static void expect_learned_anew(void) {
  EXPECT(!d.m->devices[1].step);
  expect_nothing_learned();
  EXPECT_INT(two[0]->h.seen, -1);
  EXPECT_INT(two[0]->h.role[0], -1);
  EXPECT_OK(mgd_step_begin(d.m, 1));
  EXPECT_INT(issue_until_due(), DUE);
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).known, 1);
}

static void what_is_forgotten_is_not_planned(uint64_t seed) {
  set_up(seed);
  meanwhile = forget;
  EXPECT_CODE(plan(-SIZE / 2), MGD_E_ABSENT);
  expect_learned_anew();
  tear_down();
  set_up(seed);
  meanwhile = forget;
  EXPECT_CODE(plan(-4 * SIZE), MGD_E_ABSENT); /* there would be no room */
  expect_learned_anew();
  tear_down();
}

static void what_is_forgotten_is_not_planned_again(uint64_t seed) {
  set_up_following(seed);
  meanwhile = forget;
  EXPECT_CODE(plan(-SIZE / 4), MGD_E_ABSENT);
  expect_learned_anew();
  tear_down();
}

static void what_is_forgotten_gets_no_addresses(uint64_t seed) {
  int64_t bytes = 77;
  set_up_following(seed);
  meanwhile = forget;
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, BLOCK, 0, 0, &bytes), MGD_E_ABSENT);
  EXPECT_INT(bytes, 0);
  expect_learned_anew();
  EXPECT(mgd_step_layout_is_wanted(d.m, 1));
  tear_down();
}

static void log_an_operator(void) { EXPECT(!issue_one(0)); } /* it would be due if no thread planned */

static void log_too_much(void) {
  const size_t n = MGD_STEP_USES + 1;
  struct mgd_step_use *uses = calloc(n, sizeof *uses);
  bool plans = true;
  EXPECT(uses);
  for (size_t i = 0; i < n; i++) { uses[i].handle = &two[0]->h; }
  EXPECT_OK(issue_uses(&d, "many", uses, n, &plans));
  EXPECT(!plans);
  free(uses);
}

/* The period that was planned does not end with the last operator any more. The next operator ends one again. */
static void a_log_that_went_on_is_not_followed(uint64_t seed) {
  set_up(seed);
  meanwhile = log_an_operator;
  EXPECT_CODE(plan(-SIZE / 2), MGD_E_ABSENT);
  EXPECT(state(&d).logs && state(&d).known == 0);
  EXPECT_INT(state(&d).logged, DUE + 1);
  EXPECT_CODE(plan(-SIZE / 2), MGD_E_ABSENT);
  EXPECT(issue_one(1));
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT(state(&d).follows);
  tear_down();
}

static void a_log_that_began_anew_is_not_followed(uint64_t seed) {
  set_up(seed);
  meanwhile = log_too_much;
  EXPECT_CODE(plan(-SIZE / 2), MGD_E_ABSENT);
  EXPECT(state(&d).logs && state(&d).known == 0);
  EXPECT_INT(state(&d).logged, 0);
  EXPECT_INT(issue_until_due(), DUE);
  EXPECT_OK(plan(-SIZE / 2));
  tear_down();
}

static void ask_for_plans(void) {
  int64_t bytes = 77;
  int steps = 77;
  EXPECT_CODE(plan(0), MGD_E_ABSENT);
  EXPECT_CODE(mgd_step_lie(d.m, 1, 1), MGD_E_ABSENT);
  EXPECT(!mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_CODE(mgd_step_layout_make(d.m, 1, BLOCK, 0, 0, &bytes), MGD_E_ABSENT);
  EXPECT_INT(bytes, 0);
  EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, count, &steps), MGD_E_WAIT);
  EXPECT_INT(steps, 0);
  EXPECT_INT(state(&d).known, 1);
}

static void one_thread_plans_at_a_time(uint64_t seed) {
  int steps;
  set_up_following(seed);
  EXPECT_OK(mgd_step_file_save(d.m, 1, &numbers, &count, &steps));
  EXPECT_INT(steps, 1);
  const int64_t room = state(&d).room;
  meanwhile = ask_for_plans;
  EXPECT_OK(plan(-SIZE / 4));
  EXPECT_INT(state(&d).plans, 2);
  EXPECT_INT(state(&d).room, room + SIZE / 4);
  EXPECT(mgd_step_layout_is_wanted(d.m, 1));
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, count, &steps));
  EXPECT_INT(steps, 1);
  EXPECT_INT(state(&d).known, 2);
  free(numbers);
  tear_down();
}

static void let_all_die(void) {
  for (int i = 0; i < LAYERS; i++) { drop(&d, &d.weights[i]); }
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  EXPECT_INT(state(&d).known, 0);
  EXPECT_INT(d.m->devices[1].step->known[0].alive, 0);
  EXPECT(d.m->devices[1].step->known[0].plan); /* the planner reads it */
}

/* The step is known no more, and its place is free for the next one. */
static void a_step_may_die_while_it_is_planned(uint64_t seed) {
  set_up_following(seed);
  meanwhile = let_all_die;
  EXPECT_OK(plan(-SIZE / 4));
  EXPECT_INT(state(&d).known, 0);
  for (int i = 0; i < 2; i++) { two[i] = make(&d, SIZE); }
  EXPECT_INT(issue_until_due(), DUE);
  EXPECT_INT(state(&d).lost, 1);
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT(state(&d).follows && d.m->devices[1].step->which == 0);
  EXPECT_INT(state(&d).known, 1);
  for (int i = 0; i < LAYERS; i++) { d.weights[i] = make(&d, WEIGHT); }
  tear_down();
}

static void follow_many_periods(void) {
  for (int i = 0; i < 32; i++) { EXPECT(!issue_one(i % 2)); }
  EXPECT_INT(state(&d).laps, 16);
}

/* Periods end, and no plan is asked for. It is when the next eight have ended. */
static void a_plan_is_followed_while_it_is_made_again(uint64_t seed) {
  set_up_following(seed);
  EXPECT_INT(state(&d).laps, 0);
  meanwhile = follow_many_periods;
  EXPECT_OK(plan(-SIZE / 4));
  EXPECT_INT(state(&d).plans, 2);
  for (int i = 0; i < 16; i++) { EXPECT(issue_one(i % 2) == (i == 14)); }
  EXPECT_INT(state(&d).lost, 0);
  tear_down();
}

/* A plan that was made beside a broken invariant is not taken. */
static void a_broken_invariant_is_reported(uint64_t seed) {
  set_up(seed);
  breaks = true;
  EXPECT_CODE(plan(-SIZE / 2), MGD_E_BROKEN);
  EXPECT(state(&d).logs && state(&d).known == 0);
  EXPECT_INT(issue_until_due(), 16 * 2); /* it is tried again sixteen periods later */
  EXPECT_OK(plan(-SIZE / 2));
  const int64_t room = state(&d).room;
  breaks = true;
  EXPECT_CODE(plan(-SIZE / 4), MGD_E_BROKEN);
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).room, room);
  EXPECT_OK(plan(-SIZE / 8));
  EXPECT_INT(state(&d).room, room + SIZE / 8 * 3);
  tear_down();
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_step_meanwhile: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  static void (*const tests[])(uint64_t) = {
      what_is_forgotten_is_not_planned,      what_is_forgotten_is_not_planned_again,
      what_is_forgotten_gets_no_addresses,   a_log_that_went_on_is_not_followed,
      a_log_that_began_anew_is_not_followed, one_thread_plans_at_a_time,
      a_step_may_die_while_it_is_planned,    a_plan_is_followed_while_it_is_made_again,
      a_broken_invariant_is_reported,
  };
  for (size_t i = 0; MGD_DEBUG >= 2 && i < sizeof tests / sizeof *tests; i++) { tests[i](seed); }
  return 0;
}
