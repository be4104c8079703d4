/* What the clock expects before it is known: it settles nothing, and is right where nothing shares a link. */
#include "expect.h"

#define HOST (-1)
#define ME 0

/* Operators take as many ns as they have bytes, and 5 to issue; links carry 1 byte a ns. */
static struct mgd_clock *new_clock(int devices) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(devices, &c));
  for (int from = HOST; from < devices; from++) {
    for (int to = HOST; to < devices; to++) {
      if (from != to) {
        EXPECT_OK(mgd_clock_wiring_set_link(c, from, to, (struct mgd_link){0, 1.0}));
      }
    }
    EXPECT_OK(mgd_clock_wiring_set_speed(c, from, (struct mgd_speed){.bytes_per_ns = 1.0, .issue_ns = from < 0 ? 0 : 5}));
  }
  return c;
}

static void run(struct mgd_clock *c, int device, int stream, double ns) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, ns, NULL};
  EXPECT_OK(mgd_clock_run(c, ME, device, stream, &work));
}

static void copy(struct mgd_clock *c, int from, int to, int stream, int64_t bytes) {
  const struct mgd_transfer t = {from, stream, to, stream, bytes, false, NULL};
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
}

static int64_t busy(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_ahead_busy(c, ME, device, stream, &ns));
  return ns;
}

static int64_t until(struct mgd_clock *c, const struct mgd_moment *m) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_ahead_until(c, ME, m, &ns));
  return ns;
}

static struct mgd_moment end(struct mgd_clock *c, int device, int stream) {
  struct mgd_moment m = {0, NULL};
  EXPECT_OK(mgd_clock_ahead_end(c, device, stream, &m));
  return m;
}

static int64_t time_at(struct mgd_clock *c, struct mgd_moment *m) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_moment_time(c, m, &ns));
  return ns;
}

static void what_is_issued_counts_from_the_threads_time(void) {
  struct mgd_clock *c = new_clock(2);
  EXPECT_INT(busy(c, 0, 0), 0);
  run(c, 0, 0, 100); /* issued at 5, ends at 105 */
  EXPECT_INT(busy(c, 0, 0), 100);
  EXPECT_INT(busy(c, 1, 0), 0);
  EXPECT_INT(busy(c, 0, 1), 0); /* another stream */
  run(c, 1, 0, 10); /* issued at 10 */
  EXPECT_INT(busy(c, 0, 0), 95);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 200));
  EXPECT_INT(busy(c, 0, 0), 0);
  mgd_clock_destroy(c);
}

/* The first is on its way, so nothing behind it is known; the estimate is what turns out. */
static void what_stands_behind_copies_is_expected_as_it_comes(void) {
  struct mgd_clock *c = new_clock(2);
  run(c, 0, 0, 100);     /* 5 to 105 */
  copy(c, 0, 1, 0, 50);  /* 105 to 155 */
  run(c, 1, 0, 20);      /* 155 to 175 */
  struct mgd_moment behind = end(c, 1, 0);
  run(c, 1, 0, 7);       /* to 182; all was issued at 20 */
  EXPECT_INT(busy(c, 0, 0), 135);
  EXPECT_INT(busy(c, 1, 0), 162);
  EXPECT_INT(until(c, &behind), 155);
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 3, &behind));
  EXPECT_INT(busy(c, 0, 3), 155);
  run(c, 0, 3, 5);
  EXPECT_INT(busy(c, 0, 3), 175 + 5 - 25);
  int64_t ns;
  EXPECT_OK(mgd_clock_stream_time(c, 1, 0, &ns));
  EXPECT_INT(ns, 182);
  EXPECT_INT(until(c, &behind), 150);
  EXPECT_INT(time_at(c, &behind), 175);
  mgd_clock_destroy(c);
}

/* Two copies over one link: each is expected as if it were alone, and nothing is settled by asking. */
static void a_link_that_is_shared_is_expected_too_early(void) {
  struct mgd_clock *c = new_clock(2);
  run(c, 0, 0, 10); /* so that no copy is certain */
  copy(c, 0, 1, 0, 100);
  run(c, 0, 1, 10);
  copy(c, 0, 1, 1, 100);
  EXPECT_INT(busy(c, 1, 1), 25 + 100 - 20);
  struct mgd_moment last = end(c, 1, 1);
  EXPECT_INT(time_at(c, &last), 15 + 200); /* the first is ready at 15 */
  mgd_clock_destroy(c);
}

/* A moment takes the place of the one before, and takes no place in the stream. */
static void a_moment_is_replaced(void) {
  struct mgd_clock *c = new_clock(2);
  struct mgd_moment m = {0, NULL};
  run(c, 0, 0, 10);
  EXPECT_OK(mgd_clock_ahead_end(c, 0, 0, &m));
  EXPECT(!m.task && m.ns == 15);
  copy(c, 0, 1, 0, 10);
  EXPECT_OK(mgd_clock_ahead_end(c, 0, 0, &m));
  EXPECT(m.task && m.ns == 25);
  EXPECT_OK(mgd_clock_ahead_end(c, 0, 0, &m));
  EXPECT_INT(time_at(c, &m), 25);
  mgd_clock_destroy(c);
}

static void bad_arguments_are_refused(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_moment m = {7, NULL};
  int64_t ns = 77;
  EXPECT_CODE(mgd_clock_ahead_end(c, 1, 0, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_ahead_end(c, HOST, 0, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_ahead_end(c, 0, MGD_MAX_STREAMS, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_ahead_busy(c, ME, 1, 0, &ns), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_ahead_busy(c, MGD_MAX_STREAMS, 0, 0, &ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_ahead_until(c, -1, &m, &ns), MGD_E_INVALID);
  EXPECT_INT(ns, 77);
  EXPECT_INT(m.ns, 7);
  mgd_clock_destroy(c);
}

int main(void) {
  what_is_issued_counts_from_the_threads_time();
  what_stands_behind_copies_is_expected_as_it_comes();
  a_link_that_is_shared_is_expected_too_early();
  a_moment_is_replaced();
  bad_arguments_are_refused();
  return 0;
}
