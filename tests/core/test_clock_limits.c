/* The clock's limits: of queues, of times and of bytes; and fork(). */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock/internal_clock.h"
#include "expect.h"

#define HOST (-1)
#define ME 0

/* Operators take as many ns as they have bytes, and cost nothing to issue; links carry 1 byte a ns. */
static struct mgd_clock *new_clock(int devices) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(devices, &c));
  for (int from = HOST; from < devices; from++) {
    for (int to = HOST; to < devices; to++) {
      if (from != to) { EXPECT_OK(mgd_clock_wiring_set_link(c, from, to, (struct mgd_link){0, 1.0})); }
    }
    EXPECT_OK(mgd_clock_wiring_set_speed(c, from, (struct mgd_speed){.bytes_per_ns = 1.0}));
  }
  return c;
}

static int try_to_run(struct mgd_clock *c, int device, int stream, double ns) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, ns, "run"};
  return mgd_clock_run(c, ME, device, stream, &work);
}

static void run(struct mgd_clock *c, int device, int stream, double ns) {
  EXPECT_OK(try_to_run(c, device, stream, ns));
}

static void copy(struct mgd_clock *c, int from, int to, int stream, int64_t bytes) {
  const struct mgd_transfer t = {from, stream, to, stream, bytes, false, NULL};
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
}

static int64_t time_of(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, device, stream, &ns));
  return ns;
}

/* A moment whose end is not known yet: that of a copy of 5 bytes behind an operator, at 15. */
static struct mgd_moment open_moment(struct mgd_clock *c, int device) {
  struct mgd_moment m = {0, NULL};
  run(c, device, 0, 10.0);
  copy(c, device, HOST, 0, 5);
  EXPECT_OK(mgd_clock_record(c, ME, device, 0, &m));
  EXPECT(m.task && !m.task->known);
  return m;
}

/* ---- issuing */

/* The queue is full of marks behind a copy. All of them are settled to make it accept an operator, which then begins at
 * a known time and is not queued. */
static void an_operator_behind_a_full_queue_is_not_queued(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_moment m = {0, NULL};
  const struct mgd_clock_stream *s = &mgd_clock_place_of(c, 0)->streams[0];
  run(c, 0, 0, 10.0);
  copy(c, 0, HOST, 0, 5);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 3));
  for (int i = 1; i < MGD_CLOCK_QUEUE; i++) { EXPECT_OK(mgd_clock_record(c, ME + i % 2, 0, 0, &m)); }
  EXPECT_INT(s->queued, MGD_CLOCK_QUEUE);
  run(c, 0, 0, 7.0);
  EXPECT(!s->first && !s->last);
  EXPECT_INT(s->queued, 0);
  EXPECT_INT(s->free_at, 22);
  mgd_clock_forget(c, &m);
  mgd_clock_destroy(c);
}

/* INT64_MAX stands for never, so no operation is issued then. */
static void nothing_is_issued_at_the_end_of_time(void) {
  struct mgd_clock *c = new_clock(2);
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.issue_ns = 5}));
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 1, (struct mgd_speed){.issue_ns = 4}));
  EXPECT_OK(mgd_clock_host_wait(c, ME, INT64_MAX - 5));
  EXPECT_CODE(try_to_run(c, 0, 0, 0.0), MGD_E_OVERFLOW);
  EXPECT_INT(time_of(c, HOST, ME), INT64_MAX - 5);
  run(c, 1, 0, 0.0);
  EXPECT_INT(time_of(c, HOST, ME), INT64_MAX - 1);
  mgd_clock_destroy(c);
}

/* The bus is so slow that the end is no number: it stays at the latest time. */
static void a_copy_that_does_not_end_ends_last(void) {
  struct mgd_clock *c = new_clock(1);
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 0, 1e-300));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, 0, HOST, 0));
  copy(c, 0, HOST, 0, 5);
  EXPECT_INT(time_of(c, 0, 0), INT64_MAX);
  EXPECT_CODE(try_to_run(c, 0, 0, 1.0), MGD_E_OVERFLOW);
  mgd_clock_destroy(c);
}

/* Both copies take both streams, so the second is first in each of them when the first ends. */
static void two_copies_in_a_row_between_two_devices(void) {
  struct mgd_clock *c = new_clock(2);
  run(c, 0, 0, 10.0);
  copy(c, 0, 1, 0, 3);
  copy(c, 0, 1, 0, 4);
  run(c, 1, 0, 5.0);
  EXPECT_INT(time_of(c, 1, 0), 10 + 3 + 4 + 5);
  EXPECT_INT(time_of(c, 0, 0), 17);
  EXPECT(!c->fronts && !c->ties);
  mgd_clock_destroy(c);
}

/* ---- moments */

/* A thread that waits for a moment waits until its end is known; its stream gets no queue. */
static void a_thread_waits_for_a_moment(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_moment m = open_moment(c, 0);
  EXPECT_OK(mgd_clock_stream_wait(c, HOST, ME, &m));
  EXPECT_INT(mgd_clock_place_of(c, HOST)->streams[ME].free_at, 15);
  EXPECT(!mgd_clock_place_of(c, HOST)->streams[ME].first);
  EXPECT_INT(time_of(c, HOST, ME), 15);
  mgd_clock_forget(c, &m);
  mgd_clock_destroy(c);
}

/* A stream of device 1 waits for a copy there. A question about device 0 settles neither. */
static void a_wait_elsewhere_stays_open(void) {
  struct mgd_clock *c = new_clock(2);
  struct mgd_moment there = open_moment(c, 1), here = open_moment(c, 0);
  EXPECT_OK(mgd_clock_stream_wait(c, 1, 3, &there));
  run(c, 1, 3, 2.0);
  EXPECT_INT(time_of(c, 0, 0), 15);
  EXPECT(!there.task->known && mgd_clock_place_of(c, 1)->streams[3].queued == 2);
  EXPECT_INT(time_of(c, 1, 3), 17);
  EXPECT(there.task->known);
  mgd_clock_forget(c, &there);
  mgd_clock_forget(c, &here);
  mgd_clock_destroy(c);
}

/* ---- bytes */

static struct mgd_hold *take(struct mgd_clock *c, int stream, int64_t bytes) {
  struct mgd_hold *h = NULL;
  EXPECT_OK(mgd_clock_hold_take(c, 0, stream, bytes, &h));
  return h;
}

/* Bytes that wait for a moment whose end is not known are free when it is. */
static void bytes_wait_for_an_open_moment(void) {
  struct mgd_clock *c = new_clock(1);
  EXPECT_OK(mgd_clock_hold_set_capacity(c, 0, 100));
  struct mgd_hold *victim = take(c, 1, 70);
  struct mgd_moment m = open_moment(c, 0);
  mgd_clock_hold_give(c, victim, &m);
  EXPECT_INT(m.task->references >= 2, 1);
  mgd_clock_forget(c, &m);
  struct mgd_hold *next = take(c, 2, 60);
  run(c, 0, 2, 1.0);
  EXPECT_INT(time_of(c, 0, 2), 16);
  mgd_clock_hold_give(c, next, NULL);
  mgd_clock_destroy(c);
}

/* The sum of what is held and of what is leaving must be a number. */
static void bytes_beyond_a_number_are_refused(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_hold *h = take(c, 0, 10), *leaving = take(c, 0, 5), *none = NULL;
  run(c, 0, 0, 1.0);
  mgd_clock_hold_give(c, leaving, NULL);
  EXPECT_INT(mgd_clock_place_of(c, 0)->leaving, 5);
  EXPECT_CODE(mgd_clock_hold_take(c, 0, 0, INT64_MAX - 14, &none), MGD_E_NOMEM);
  EXPECT(!none);
  struct mgd_hold *rest = take(c, 0, INT64_MAX - 15);
  EXPECT_INT(mgd_clock_place_of(c, 0)->held, INT64_MAX - 5);
  mgd_clock_hold_give(c, rest, NULL);
  mgd_clock_hold_give(c, h, NULL);
  mgd_clock_destroy(c);
}

/* The oldest of too many merges into the next, unless another stream delays the end of one of the two. */
static void shared_bytes_are_not_merged(void) {
  enum { MANY = 1026 };
  for (int shared = -1; shared < 2; shared++) {
    struct mgd_clock *c = new_clock(1);
    static struct mgd_hold *held[MANY];
    for (int i = 0; i < MANY; i++) { held[i] = take(c, 0, 10); }
    run(c, 0, 0, 1.0);
    for (int i = 0; i < MANY; i++) {
      if (i == shared) { mgd_clock_hold_use(held[i], 1); }
      mgd_clock_hold_give(c, held[i], NULL);
    }
    const struct mgd_clock_stream *s = &mgd_clock_place_of(c, 0)->streams[0];
    EXPECT_INT(s->leaving_count, shared < 0 ? 1024 : 1026);
    EXPECT_INT(s->leaving->bytes, shared < 0 ? 30 : 10);
    EXPECT_INT(s->leaving->merged, shared < 0 ? 20 : 0);
    EXPECT_INT(mgd_clock_place_of(c, 0)->leaving, 10 * MANY);
    mgd_clock_destroy(c);
  }
}

/* What was given up before anything was issued was held for no time, and is in no log. */
static void a_log_has_no_hold_without_a_length(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_span *spans = NULL;
  size_t n = 0;
  EXPECT_OK(mgd_clock_profile_start(c));
  mgd_clock_hold_give(c, take(c, 0, 70), NULL);
  struct mgd_hold *h = take(c, 0, 30);
  run(c, 0, 0, 4.0);
  mgd_clock_hold_give(c, h, NULL);
  EXPECT_OK(mgd_clock_profile_stop(c, &spans, &n));
  EXPECT_INT(n, 2);
  EXPECT_INT(spans[0].kind, MGD_SPAN_RUN);
  EXPECT_INT(spans[1].kind, MGD_SPAN_HOLD);
  EXPECT_INT(spans[1].bytes, 30);
  EXPECT_INT(spans[1].end, 4);
  mgd_clock_profile_free(spans);
  mgd_clock_destroy(c);
}

/* What was merged counts as over, although it ends later than all that has been issued: an audit needs it again. */
static void an_audit_keeps_what_has_not_ended(void) {
  enum { MANY = 1026 };
  struct mgd_clock *c = new_clock(1);
  static struct mgd_hold *held[MANY];
  int64_t most = -1;
  EXPECT_OK(mgd_clock_hold_set_capacity(c, 0, 10 * MANY));
  EXPECT_OK(mgd_clock_audit_start(c));
  for (int i = 0; i < MANY; i++) { held[i] = take(c, 0, 10); }
  run(c, 0, 0, 1.0);
  for (int i = 0; i < MANY; i++) { mgd_clock_hold_give(c, held[i], NULL); }
  for (int i = 0; i < 2; i++) {
    EXPECT_OK(mgd_clock_audit_check(c, 0, &most));
    EXPECT_INT(most, 10 * MANY);
    EXPECT(mgd_clock_place_of(c, 0)->over);
  }
  EXPECT_OK(mgd_clock_host_wait(c, ME, 2));
  run(c, 0, 1, 0.0);
  EXPECT_OK(mgd_clock_audit_check(c, 0, &most));
  EXPECT(!mgd_clock_place_of(c, 0)->over);
  mgd_clock_destroy(c);
}

static void without_memory_there_is_no_audit(void) {
  struct mgd_clock *c = new_clock(1);
  int64_t most = 77;
  EXPECT_OK(mgd_clock_audit_start(c));
  struct mgd_hold *h = take(c, 0, 10);
  c->alloc.fail_at = atomic_load(&c->alloc.made) + 1;
  EXPECT_CODE(mgd_clock_audit_check(c, 0, &most), MGD_E_NOMEM);
  EXPECT_INT(most, 77);
  EXPECT_OK(mgd_clock_audit_check(c, 0, &most));
  EXPECT_INT(most, 10);
  mgd_clock_hold_give(c, h, NULL);
  mgd_clock_destroy(c);
}

/* ---- questions */

static void what_was_issued_counts_as_worked_before_it_ends(void) {
  struct mgd_clock *c = new_clock(2);
  int64_t ns = 77;
  struct mgd_moment m = open_moment(c, 0);
  run(c, 0, 0, 4.0);
  EXPECT_OK(mgd_clock_worked(c, 0, &ns));
  EXPECT_INT(ns, 14);
  EXPECT(!m.task->known); /* it settles nothing */
  EXPECT_OK(mgd_clock_worked(c, 1, &ns));
  EXPECT_INT(ns, 0);
  EXPECT_CODE(mgd_clock_worked(c, 2, &ns), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_worked(c, -2, &ns), MGD_E_NO_DEVICE);
  EXPECT_INT(ns, 0);
  mgd_clock_forget(c, &m);
  mgd_clock_destroy(c);
}

static void questions_that_make_no_sense_are_refused(void) {
  struct mgd_clock *c = new_clock(1);
  int64_t ns = 77;
  uint64_t number = 77;
  struct mgd_moment m = {77, NULL};
  struct mgd_link link = {77, 0.5};
  EXPECT_CODE(mgd_clock_busy(c, -2, 0, &ns), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_last_copy(c, MGD_MAX_STREAMS, &number), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_record(c, MGD_MAX_STREAMS, 0, 0, &m), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_record(c, ME, 0, -1, &m), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_record(c, ME, 1, 0, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_wiring_get_link(c, 0, 0, &link), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_get_link(c, 0, 1, &link), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_wiring_set_bus(c, -1, 1.0), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_join_bus(c, 0, HOST, MGD_MAX_BUSES), MGD_E_INVALID);
  EXPECT_INT(ns, 77);
  EXPECT_INT(number, 77);
  EXPECT_INT(m.ns, 77);
  EXPECT_INT(link.latency_ns, 77);
  EXPECT_OK(mgd_clock_wiring_set_link(c, 0, HOST, (struct mgd_link){3, 0.25}));
  EXPECT_OK(mgd_clock_wiring_get_link(c, 0, HOST, &link));
  EXPECT_INT(link.latency_ns, 3);
  EXPECT(link.bytes_per_ns >= 0.25 && link.bytes_per_ns <= 0.25);
  mgd_clock_destroy(c);
}

/* In between all ends are known and no thread has the mutex; a child may read what it has inherited. */
static void a_child_inherits_moments_that_are_known(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_moment m = open_moment(c, 0);
  mgd_clock_before_fork(c);
  EXPECT(m.task->known);
  EXPECT_INT(pthread_mutex_trylock(&c->mutex), EBUSY);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_known = m.task->known && m.task->end == 15;
    mgd_clock_after_fork(c); /* here only to free the copy */
    mgd_clock_forget(c, &m);
    mgd_clock_destroy(c);
    _exit(is_known ? 7 : 1);
  }
  mgd_clock_after_fork(c);
  EXPECT_INT(pthread_mutex_trylock(&c->mutex), 0);
  EXPECT_INT(pthread_mutex_unlock(&c->mutex), 0);
  int status = 0;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  EXPECT_INT(time_of(c, 0, 0), 15);
  mgd_clock_forget(c, &m);
  mgd_clock_destroy(c);
}

int main(void) {
  an_operator_behind_a_full_queue_is_not_queued();
  nothing_is_issued_at_the_end_of_time();
  a_copy_that_does_not_end_ends_last();
  two_copies_in_a_row_between_two_devices();
  a_thread_waits_for_a_moment();
  a_wait_elsewhere_stays_open();
  bytes_wait_for_an_open_moment();
  bytes_beyond_a_number_are_refused();
  shared_bytes_are_not_merged();
  a_log_has_no_hold_without_a_length();
  an_audit_keeps_what_has_not_ended();
  without_memory_there_is_no_audit();
  what_was_issued_counts_as_worked_before_it_ends();
  questions_that_make_no_sense_are_refused();
  a_child_inherits_moments_that_are_known();
  return 0;
}
