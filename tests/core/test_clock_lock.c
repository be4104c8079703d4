/* The interpreter's lock on the clock: who is behind fills what others left free, and who is alone never waits. */
#include "expect.h"

#define HOST (-1)
#define ISSUE 100
#define PYTHON 60
#define TURNS 4096 /* that a clock remembers */

/* Operators take 10 ns, and cost who issues them 100, of which 60 are Python's. */
static struct mgd_clock *new_clock(int devices, int64_t python, int64_t failing) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create_failing(devices, failing, &c));
  for (int d = 0; d < devices; d++) {
    const struct mgd_speed speed = {.launch_ns = 10, .issue_ns = ISSUE, .python_ns = python};
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, speed));
  }
  return c;
}

static int64_t time_of(struct mgd_clock *c, int thread) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, HOST, thread, &ns));
  return ns;
}

/* Thread i has device i for itself. The time at which the thread has issued an operator. */
static int64_t issue(struct mgd_clock *c, int thread) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};
  EXPECT_OK(mgd_clock_run(c, thread, thread, 0, &work));
  return time_of(c, thread);
}

static void who_is_alone_never_waits(void) {
  struct mgd_clock *c = new_clock(1, PYTHON, 0);
  const struct mgd_transfer t = {0, 0, HOST, 0, 8, true, NULL};
  for (int i = 1; i <= 3 * TURNS; i++) {
    EXPECT_INT(issue(c, 0), i * ISSUE);
  }
  EXPECT_OK(mgd_clock_copy(c, 0, &t)); /* takes no time over its link, and waits for the last operator */
  EXPECT_INT(time_of(c, 0), 3 * TURNS * ISSUE + ISSUE);
  mgd_clock_destroy(c);
}

static void two_that_issue_all_the_time_wait_for_each_other(void) {
  struct mgd_clock *c = new_clock(2, PYTHON, 0);
  EXPECT_INT(issue(c, 0), 100); /* Python's part from 0 to 60 */
  EXPECT_INT(issue(c, 1), 160); /* 60 to 120 */
  EXPECT_INT(issue(c, 0), 220); /* it would from 100 on; 120 to 180 */
  EXPECT_INT(issue(c, 1), 280);
  for (int i = 2; i < 50; i++) {
    EXPECT_INT(issue(c, 0), 120 * i + 100);
    EXPECT_INT(issue(c, 1), 120 * i + 160);
  }
  mgd_clock_destroy(c);
  c = new_clock(2, ISSUE, 0); /* all is Python's: each takes twice as long */
  for (int i = 0; i < 50; i++) {
    EXPECT_INT(issue(c, 0), 2 * ISSUE * i + ISSUE);
    EXPECT_INT(issue(c, 1), 2 * ISSUE * i + 2 * ISSUE);
  }
  mgd_clock_destroy(c);
  c = new_clock(2, 0, 0); /* nothing is: they know nothing of each other */
  for (int i = 1; i < 50; i++) {
    EXPECT_INT(issue(c, 0), ISSUE * i);
    EXPECT_INT(issue(c, 1), ISSUE * i);
  }
  mgd_clock_destroy(c);
}

static void who_is_behind_fills_what_others_left_free(void) {
  struct mgd_clock *c = new_clock(3, PYTHON, 0);
  for (int i = 1; i <= 10; i++) {
    EXPECT_INT(issue(c, 0), 100 * i); /* leaves 60 to 100, 160 to 200, ... */
  }
  EXPECT_INT(issue(c, 1), 220); /* 60 to 100 and 160 to 180 */
  EXPECT_INT(issue(c, 2), 340); /* 180 to 200 and 260 to 300: what is short is used as well */
  EXPECT_INT(issue(c, 1), 520); /* from 300 on: 360 to 400 and 460 to 480 */
  EXPECT_INT(issue(c, 0), 1100); /* who was first has lost nothing */
  EXPECT_OK(mgd_clock_host_wait(c, 2, 900));
  EXPECT_INT(issue(c, 2), 1120); /* 960 to 1000 and 1060 to 1080 */
  mgd_clock_destroy(c);
}

static void the_engine_needs_no_lock(void) {
  struct mgd_clock *c = new_clock(2, PYTHON, 0);
  EXPECT_OK(mgd_clock_lock_use(c, 1, false));
  for (int i = 1; i <= 5; i++) {
    EXPECT_INT(issue(c, 0), ISSUE * i);
    EXPECT_INT(issue(c, 1), ISSUE * i);
  }
  EXPECT_OK(mgd_clock_lock_use(c, 1, true));
  EXPECT_INT(issue(c, 0), 600);
  EXPECT_INT(issue(c, 1), 660);
  EXPECT_OK(mgd_clock_lock_use(c, 1, false));
  EXPECT_OK(mgd_clock_begin_thread(c, 1)); /* another thread, and it is Python's; its device goes on from 660 */
  EXPECT_INT(issue(c, 0), 720); /* the other had it until 620 */
  EXPECT_INT(issue(c, 1), 780);
  EXPECT_CODE(mgd_clock_lock_use(c, -1, true), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_lock_use(c, MGD_MAX_STREAMS, true), MGD_E_INVALID);
  mgd_clock_destroy(c);
}

static void many_threads_get_the_same(void) {
  enum { THREADS = 12, EACH = 200 };
  struct mgd_clock *c = new_clock(THREADS, PYTHON, 0);
  for (int i = 0; i < EACH; i++) {
    for (int t = 0; t < THREADS; t++) {
      EXPECT_INT(issue(c, t), (i * THREADS + t + 1) * PYTHON + ISSUE - PYTHON);
    }
  }
  mgd_clock_destroy(c);
}

/* Beyond what is remembered a thread that is behind is as fast as one that is alone. */
static void what_is_too_old_is_forgotten(void) {
  enum { FORGOTTEN = 904 };
  struct mgd_clock *c = new_clock(2, PYTHON, 0);
  for (int i = 1; i <= TURNS + FORGOTTEN; i++) {
    EXPECT_INT(issue(c, 0), ISSUE * i);
  }
  for (int i = 1; i <= FORGOTTEN; i++) {
    EXPECT_INT(issue(c, 1), ISSUE * i);
  }
  EXPECT_INT(issue(c, 1), ISSUE * FORGOTTEN + 220);
  mgd_clock_destroy(c);
}

static void without_memory_turns_are_forgotten(void) {
  struct mgd_clock *c = new_clock(2, PYTHON, 5);
  EXPECT_INT(issue(c, 0), 100); /* nobody remembers it */
  EXPECT_INT(issue(c, 0), 200);
  EXPECT_INT(issue(c, 1), 100);
  EXPECT_INT(issue(c, 1), 260);
  mgd_clock_destroy(c);
  c = new_clock(2, PYTHON, 6); /* there is memory for 64 */
  for (int i = 1; i <= 65; i++) {
    EXPECT_INT(issue(c, 0), 100 * i);
  }
  EXPECT_INT(issue(c, 1), 100);
  EXPECT_INT(issue(c, 1), 320); /* 160 to 200 and 260 to 280 */
  mgd_clock_destroy(c);
  c = new_clock(2, PYTHON, 6);
  EXPECT_OK(mgd_clock_host_wait(c, 0, 1000));
  for (int i = 1; i <= 64; i++) {
    EXPECT_INT(issue(c, 0), 1000 + 100 * i);
  }
  EXPECT_INT(issue(c, 1), 100); /* before all others: it would be the oldest, and is forgotten with what is oldest now */
  EXPECT_OK(mgd_clock_host_wait(c, 1, 1000));
  EXPECT_INT(issue(c, 1), 1100);
  EXPECT_INT(issue(c, 1), 1320);
  mgd_clock_destroy(c);
}

static void what_makes_no_sense_is_refused(void) {
  struct mgd_clock *c = new_clock(2, PYTHON, 0);
  EXPECT_CODE(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.issue_ns = 5, .python_ns = 6}), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.issue_ns = 5, .python_ns = -1}), MGD_E_INVALID);
  EXPECT_OK(mgd_clock_host_wait(c, 0, INT64_MAX - 50));
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};
  EXPECT_CODE(mgd_clock_run(c, 0, 0, 0, &work), MGD_E_OVERFLOW);
  EXPECT_INT(time_of(c, 0), INT64_MAX - 50);
  EXPECT_INT(issue(c, 1), 100);
  mgd_clock_destroy(c);
}

/* The same with a mark for each ns at which the lock is taken. */
static void random_threads_are_those_of_a_simple_model(uint64_t seed) {
  enum { THREADS = 5, HORIZON = 400000 };
  static bool taken[HORIZON];
  struct mgd_clock *c = new_clock(THREADS, PYTHON, 0);
  int64_t now[THREADS] = {0}, python[THREADS];
  for (int t = 0; t < THREADS; t++) {
    python[t] = pick(&seed, 40);
    EXPECT_OK(mgd_clock_wiring_set_speed(c, t, (struct mgd_speed){.issue_ns = 40, .python_ns = python[t]}));
  }
  for (int i = 0; i < 4000; i++) {
    const int t = (int)pick(&seed, THREADS);
    for (int64_t left = python[t]; left > 0; now[t]++) {
      left -= !taken[now[t]];
      taken[now[t]] = true;
    }
    now[t] += 40 - python[t];
    EXPECT_INT(issue(c, t), now[t]);
    if (pick(&seed, 20) == 0) {
      now[t] += pick(&seed, 400);
      EXPECT_OK(mgd_clock_host_wait(c, t, now[t]));
    }
    EXPECT(now[t] < HORIZON / 2);
  }
  mgd_clock_destroy(c);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("seed %" PRIu64 "\n", seed);
  who_is_alone_never_waits();
  two_that_issue_all_the_time_wait_for_each_other();
  who_is_behind_fills_what_others_left_free();
  the_engine_needs_no_lock();
  many_threads_get_the_same();
  what_is_too_old_is_forgotten();
  without_memory_turns_are_forgotten();
  what_makes_no_sense_is_refused();
  random_threads_are_those_of_a_simple_model(seed);
  return 0;
}
