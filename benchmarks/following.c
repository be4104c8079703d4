/* following.c: what learning costs a device that is short of room; following.py compiles it with the core and runs it.
 *
 * Prints, of operators that are logged, that are followed with a few copies in a step, and with nearly one copy each:
 * nanoseconds an operator, the clock's own taken off, and copies an operator. Of each operator of the step the fastest
 * of many laps counts.
 */
#include <time.h>

#include "core/steps/internal_step.h"
#include "../tests/core/expect.h"

#define OPERATORS 1000
#define WEIGHT 2000000 /* not small for the planner */
#define LAPS 200

static struct mgd_machine *m;
static struct mgd_handle weights[OPERATORS];
static const char name[] = "read";
static int64_t worked, copies, least[OPERATORS];
static uint64_t tick;

static int64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What an executor would do when the copies have begun; not timed. */
static void end_actions(const struct mgd_action *actions, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const struct mgd_action *a = &actions[i];
    void *left = NULL;
    if (a->kind == MGD_DO_RESTORE) {
      EXPECT_OK(mgd_restore_end(m, a->handle, MGD_ARRIVING, &left));
      copies++;
    } else {
      EXPECT_OK(mgd_evict_end(m, a->handle, a->kind == MGD_DO_SPARE ? 1 : MGD_HOST, a->memory ? a->memory : malloc(1),
                              &left));
    }
    free(left);
    (void)mgd_handle_put(a->handle, 1);
  }
}

static void fetch(struct mgd_handle *h) {
  struct mgd_handle *one[] = {h};
  struct mgd_action actions[8 + MGD_MAX_DEVICES];
  int64_t room[MGD_MAX_DEVICES];
  size_t made = sizeof actions / sizeof *actions;
  int where = 0;
  for (int i = 0; i < MGD_MAX_DEVICES; i++) {
    room[i] = INT64_MAX;
  }
  EXPECT_OK(mgd_restore_begin(m, one, 1, room, actions, &made, &where));
  for (size_t i = 0; i < made; i++) {
    void *left = NULL;
    EXPECT_OK(mgd_restore_end(m, actions[i].handle, MGD_RESIDENT, &left));
    free(left);
  }
}

/* One lap; the plan is for so much room. */
static void lap(int64_t room) {
  struct mgd_action actions[MGD_STEP_ACTIONS];
  for (int i = 0; i < OPERATORS; i++) {
    const struct mgd_step_use uses[] = {{&weights[i], false}, {&weights[(i + 1) % OPERATORS], false}};
    const struct mgd_step_call call = {.name = name, .uses = uses, .n = 2, .worked = worked};
    size_t n = MGD_STEP_ACTIONS;
    bool plans = false;
    for (int u = 0; u < 2; u++) {
      (void)mgd_handle_use(uses[u].handle, me, ++tick);
    }
    const int64_t start = now_ns();
    EXPECT_OK(mgd_step_operator(m, 1, &call, actions, &n, &plans));
    const int64_t took = now_ns() - start;
    least[i] = took < least[i] ? took : least[i];
    end_actions(actions, n);
    if (plans) {
      struct mgd_residency_usage u;
      EXPECT_OK(mgd_residency_read(m, 1, &u));
      (void)mgd_step_plan(m, 1, room - (u.idle + u.in_use + u.held + u.moving), 0, NULL);
    }
    for (int k = 0; k < 2; k++) {
      fetch(uses[k].handle);
      (void)mgd_handle_unuse(uses[k].handle, me, 1);
    }
    worked += 1000;
  }
}

static void begin_anew(void) {
  EXPECT_OK(mgd_step_learn(m, false));
  EXPECT_OK(mgd_step_learn(m, true));
  EXPECT_OK(mgd_step_begin(m, 1));
}

static double sum_of_least(void) {
  int64_t sum = 0;
  for (int i = 0; i < OPERATORS; i++) {
    sum += least[i];
  }
  return (double)sum / OPERATORS;
}

static void forget_times(void) {
  for (int i = 0; i < OPERATORS; i++) {
    least[i] = INT64_MAX;
  }
}

static void measure(const char *what, int64_t room, bool follows, double clock) {
  struct mgd_step_state s;
  begin_anew();
  for (int i = 0; follows && i < 4; i++) {
    lap(room);
  }
  forget_times();
  for (int i = 0; i < LAPS; i++) {
    if (!follows) { /* the log of one lap, again and again */
      begin_anew();
    }
    copies = 0;
    lap(room);
  }
  EXPECT_OK(mgd_step_read(m, 1, &s));
  EXPECT(s.follows == follows);
  printf("%s %.1f %.3f\n", what, sum_of_least() - clock, (double)copies / OPERATORS);
}

int main(void) {
  const struct mgd_config config = {0};
  int id;
  EXPECT_OK(mgd_machine_create(&config, &m));
  EXPECT_OK(mgd_device_add(m, "sim:0", (int64_t)OPERATORS * WEIGHT, &id));
  EXPECT_OK(mgd_user_join(m, &me));
  EXPECT_OK(mgd_link_set(m, MGD_HOST, 1, (struct mgd_link){1, 32.0}));
  EXPECT_OK(mgd_link_set(m, 1, MGD_HOST, (struct mgd_link){1, 32.0}));
  for (int i = 0; i < OPERATORS; i++) {
    EXPECT_OK(mgd_handle_open(m, &weights[i], 1, WEIGHT));
  }
  forget_times();
  for (int i = 0; i < 1000 * OPERATORS; i++) {
    const int64_t start = now_ns(), took = now_ns() - start;
    least[i % OPERATORS] = took < least[i % OPERATORS] ? took : least[i % OPERATORS];
  }
  const double clock = sum_of_least();
  measure("logged", 0, false, clock);
  measure("followed", (int64_t)(OPERATORS - 16) * WEIGHT, true, clock);
  measure("copied", (int64_t)10 * WEIGHT, true, clock);
  return 0;
}
