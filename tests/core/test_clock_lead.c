/* How far a thread is ahead of a stream, and of threads that real time has kept from issuing. */
#define _POSIX_C_SOURCE 200809L /* nanosleep() */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "clock/internal_clock.h"
#include "expect.h"

#define HOST (-1)
#define ME 0
#define OTHER 1
#define WAITED 5111 /* the end of number 511, for which the thread waits at number 1,024 */
#define SECOND 1000000000LL

/* Operators and copies take as many ns as they have bytes, and cost 1 ns to issue. */
static struct mgd_clock *new_clock(int devices, int64_t pause) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(devices, &c));
  for (int i = 0; i < devices; i++) {
    EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, i, (struct mgd_link){0, 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_speed(c, i, (struct mgd_speed){.bytes_per_ns = 1.0, .issue_ns = 1}));
  }
  EXPECT_INT(c->pause, MGD_CLOCK_PAUSE);
  c->pause = pause;
  return c;
}

/* Thread i has device i for itself. */
static void run(struct mgd_clock *c, int thread) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 10.0, NULL};
  EXPECT_OK(mgd_clock_run(c, thread, thread, 0, &work));
}

static int64_t time_of(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, device, stream, &ns));
  return ns;
}

/* After each half of 1,024 copies the thread waits for the half before, also if the copies come from the host. */
static void copies_to_a_device_hold_the_thread_back(void) {
  struct mgd_clock *c = new_clock(1, MGD_CLOCK_PAUSE);
  const struct mgd_transfer t = {HOST, 0, 0, 0, 10, false, NULL};
  for (int i = 1; i <= MGD_CLOCK_LEAD - 1; i++) { EXPECT_OK(mgd_clock_copy(c, ME, &t)); } /* until 10 i + 1 */
  EXPECT_INT(time_of(c, HOST, ME), MGD_CLOCK_LEAD - 1);
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
  EXPECT_INT(time_of(c, HOST, ME), WAITED + 1);
  EXPECT_INT(time_of(c, 0, 0), 10 * MGD_CLOCK_LEAD + 1);
  mgd_clock_destroy(c);
}

struct other {
  struct mgd_clock *clock;
  int operators; /* that it issues, or 0: until `over` */
  _Atomic bool over;
  _Atomic int issued;
};

static void *issue_slowly(void *given) {
  struct other *o = given;
  const struct timespec millisecond = {0, 1000000};
  while (o->operators ? o->issued < o->operators : !o->over) {
    run(o->clock, OTHER);
    o->issued++;
    (void)nanosleep(&millisecond, NULL);
  }
  return NULL;
}

static pthread_t begin(struct other *o) {
  pthread_t thread;
  EXPECT_INT(pthread_create(&thread, NULL, issue_slowly, o), 0);
  while (!o->issued) {}
  return thread;
}

/* The other thread needs 50 ms for what it issues in 50 ns of its own time. */
static void a_thread_that_waits_lets_one_that_is_behind_go_on(void) {
  struct other o = {.clock = new_clock(2, SECOND / 10), .operators = 50};
  const pthread_t thread = begin(&o);
  for (int i = 1; i <= MGD_CLOCK_LEAD; i++) { run(o.clock, ME); }
  EXPECT_INT(time_of(o.clock, HOST, ME), WAITED + 1);
  EXPECT_INT(time_of(o.clock, HOST, OTHER), 50);
  EXPECT_INT(pthread_join(thread, NULL), 0);
  mgd_clock_destroy(o.clock);
}

/* It would wait for ever: the other thread ends only after it. */
static void it_does_not_wait_for_one_that_is_ahead(void) {
  struct other o = {.clock = new_clock(2, SECOND / 100)};
  EXPECT_OK(mgd_clock_host_wait(o.clock, OTHER, 2 * WAITED));
  const pthread_t thread = begin(&o);
  for (int i = 1; i <= MGD_CLOCK_LEAD; i++) { run(o.clock, ME); }
  o.over = true;
  EXPECT_INT(pthread_join(thread, NULL), 0);
  EXPECT_INT(time_of(o.clock, HOST, ME), WAITED + 1);
  mgd_clock_destroy(o.clock);
}

/* Likewise: it works for itself, and is not as far yet as this one was long ago. */
static void it_does_not_wait_for_one_that_is_far_behind(void) {
  struct other o = {.clock = new_clock(2, SECOND / 100)};
  const int64_t late = 20 * WAITED;
  const pthread_t thread = begin(&o);
  EXPECT_OK(mgd_clock_host_wait(o.clock, ME, late));
  for (int i = 1; i <= MGD_CLOCK_LEAD; i++) { run(o.clock, ME); }
  o.over = true;
  EXPECT_INT(pthread_join(thread, NULL), 0);
  EXPECT_INT(time_of(o.clock, HOST, ME), late + WAITED + 1);
  mgd_clock_destroy(o.clock);
}

/* A pause takes an hour here. */
static void it_does_not_pause_if_no_other_has_gone_on(void) {
  struct mgd_clock *c = new_clock(2, 3600 * SECOND);
  for (int i = 1; i <= 4 * MGD_CLOCK_LEAD; i++) { run(c, ME); }
  c->pause = 0;
  run(c, OTHER);
  for (int i = 1; i <= MGD_CLOCK_LEAD; i++) { run(c, ME); }
  c->pause = 3600 * SECOND;
  for (int i = 1; i <= 4 * MGD_CLOCK_LEAD; i++) { run(c, ME); }
  mgd_clock_destroy(c);
}

int main(void) {
  copies_to_a_device_hold_the_thread_back();
  a_thread_that_waits_lets_one_that_is_behind_go_on();
  it_does_not_wait_for_one_that_is_ahead();
  it_does_not_wait_for_one_that_is_far_behind();
  it_does_not_pause_if_no_other_has_gone_on();
  return 0;
}
