/* Copies on the virtual clock: who gets a link first, and who shares what. */
#include <math.h>

#include "expect.h"

#define HOST (-1)
#define ME 0

/* Operators take as many ns as they have bytes, and cost nobody anything to issue; links carry 1 byte a ns. */
static struct mgd_clock *new_clock(int devices, int64_t failing) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create_failing(devices, failing, &c));
  for (int from = HOST; from < devices; from++) {
    for (int to = HOST; to < devices; to++) {
      if (from != to) {
        EXPECT_OK(mgd_clock_wiring_set_link(c, from, to, (struct mgd_link){0, 1.0}));
      }
    }
    EXPECT_OK(mgd_clock_wiring_set_speed(c, from, (struct mgd_speed){.bytes_per_ns = 1.0}));
  }
  return c;
}

static void run(struct mgd_clock *c, int device, int stream, double ns) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, ns, NULL};
  EXPECT_OK(mgd_clock_run(c, ME, device, stream, &work));
}

static int try_to_copy(struct mgd_clock *c, int from, int to, int stream, int64_t bytes) {
  const struct mgd_transfer t = {from, stream, to, stream, bytes, false, NULL};
  return mgd_clock_copy(c, ME, &t);
}

static void copy(struct mgd_clock *c, int from, int to, int stream, int64_t bytes) {
  EXPECT_OK(try_to_copy(c, from, to, stream, bytes));
}

static int64_t time_of(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, device, stream, &ns));
  return ns;
}

static struct mgd_moment record(struct mgd_clock *c, int device, int stream) {
  struct mgd_moment m = {0, NULL};
  EXPECT_OK(mgd_clock_record(c, ME, device, stream, &m));
  return m;
}

static int64_t time_at(struct mgd_clock *c, struct mgd_moment *m) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_moment_time(c, m, &ns));
  return ns;
}

static int64_t busy(struct mgd_clock *c, int from, int to) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_busy(c, from, to, &ns));
  return ns;
}

static void wait_for(struct mgd_clock *c, int device, int stream, struct mgd_moment m) {
  EXPECT_OK(mgd_clock_stream_wait(c, device, stream, &m));
  mgd_clock_forget(c, &m);
}

static void a_copy_that_is_ready_does_not_wait_for_one_that_is_not(void) {
  struct mgd_clock *c = new_clock(1, 0);
  run(c, 0, 1, 1000.0);
  copy(c, 0, HOST, 1, 50); /* issued first, and ready at 1000 */
  copy(c, 0, HOST, 2, 70); /* ready now */
  EXPECT_INT(time_of(c, 0, 2), 70);
  EXPECT_INT(time_of(c, 0, 1), 1050);
  EXPECT_INT(busy(c, 0, HOST), 120);
  EXPECT_INT(busy(c, 0, 0), 1000);
  mgd_clock_destroy(c);
}

static void of_those_that_wait_a_link_takes_what_was_ready_first(void) {
  struct mgd_clock *c = new_clock(1, 0);
  copy(c, 0, HOST, 0, 100); /* has the link until 100 */
  run(c, 0, 1, 60.0);
  copy(c, 0, HOST, 1, 10);
  run(c, 0, 2, 40.0);
  copy(c, 0, HOST, 2, 20);
  copy(c, 0, HOST, 3, 30); /* ready at 0 */
  copy(c, 0, HOST, 4, 5);  /* the same, and issued later */
  EXPECT_INT(time_of(c, 0, 1), 100 + 30 + 5 + 20 + 10);
  EXPECT_INT(time_of(c, 0, 2), 100 + 30 + 5 + 20);
  EXPECT_INT(time_of(c, 0, 3), 100 + 30);
  EXPECT_INT(time_of(c, 0, 4), 100 + 30 + 5);
  mgd_clock_destroy(c);
}

/* Nobody has asked for its end, and the next one is issued when it has long begun. */
static void a_link_is_busy_although_nobody_asked(void) {
  struct mgd_clock *c = new_clock(1, 0);
  run(c, 0, 1, 100.0);
  copy(c, 0, HOST, 1, 500);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 300));
  copy(c, 0, HOST, 2, 50);
  EXPECT_INT(time_of(c, 0, 2), 100 + 500 + 50);
  EXPECT_INT(time_of(c, 0, 1), 600);
  mgd_clock_destroy(c);
}

/* Asking settles: what comes then and would have been ready before comes after. */
static void who_asks_settles(void) {
  struct mgd_clock *c = new_clock(1, 0);
  run(c, 0, 1, 1000.0);
  copy(c, 0, HOST, 1, 50);
  EXPECT_INT(time_of(c, 0, 1), 1050);
  copy(c, 0, HOST, 2, 70);
  EXPECT_INT(time_of(c, 0, 2), 1120);
  mgd_clock_destroy(c);
}

static void what_stands_behind_a_copy_waits_for_it(void) {
  struct mgd_clock *c = new_clock(2, 0);
  run(c, 0, 0, 100.0);
  copy(c, 0, 1, 0, 50);
  run(c, 1, 0, 7.0);
  run(c, 0, 0, 9.0);
  copy(c, 1, 0, 0, 10); /* the way back, behind both */
  run(c, 0, 0, 1.0);
  EXPECT_INT(time_of(c, 0, 0), 150 + 9 + 10 + 1);
  EXPECT_INT(time_of(c, 1, 0), 150 + 9 + 10);
  mgd_clock_destroy(c);
}

/* A stream's end takes the place of the moment in *m, and no place in the stream. */
static void the_end_of_a_stream_is_a_moment(void) {
  struct mgd_clock *c = new_clock(2, 0);
  struct mgd_moment m = {7, NULL};
  run(c, 0, 0, 10);
  EXPECT_OK(mgd_clock_end(c, 0, 0, &m));
  EXPECT(!m.task && m.ns == 10);
  copy(c, 0, 1, 0, 10);
  EXPECT_OK(mgd_clock_end(c, 0, 0, &m));
  EXPECT_OK(mgd_clock_end(c, 0, 0, &m));
  EXPECT_INT(time_at(c, &m), 20);
  copy(c, 0, 1, 0, 10);
  EXPECT_OK(mgd_clock_end(c, 0, 0, &m));
  EXPECT(m.task);
  mgd_clock_set(c, &m, 1000);
  EXPECT(!m.task && m.ns == 1000);
  mgd_clock_set(c, &m, 5);
  EXPECT_INT(m.ns, 1000);
  m = (struct mgd_moment){7, NULL};
  EXPECT_CODE(mgd_clock_end(c, 2, 0, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_end(c, HOST, 0, &m), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_end(c, 0, MGD_MAX_STREAMS, &m), MGD_E_INVALID);
  EXPECT_INT(m.ns, 7);
  mgd_clock_destroy(c);
}

static void a_moment_is_known_when_somebody_asks(void) {
  struct mgd_clock *c = new_clock(2, 0);
  struct mgd_moment never_asked = {0, NULL};
  run(c, 0, 1, 100.0);
  copy(c, 0, HOST, 1, 50);
  struct mgd_moment copied = record(c, 0, 1);
  EXPECT(copied.task);
  run(c, 0, 1, 1000.0); /* not part of it */
  wait_for(c, 1, 3, record(c, 0, 1));
  run(c, 1, 3, 5.0);
  struct mgd_moment last = record(c, 1, 3);
  EXPECT_OK(mgd_clock_record(c, ME, 1, 3, &never_asked));
  EXPECT_INT(time_at(c, &last), 1155);
  EXPECT_INT(time_at(c, &copied), 150);
  EXPECT(!copied.task && !last.task);
  EXPECT_INT(time_at(c, &copied), 150);
  mgd_clock_forget(c, &never_asked);
  EXPECT_OK(mgd_clock_record(c, ME, 1, 3, &last)); /* another one takes its place */
  EXPECT_INT(time_at(c, &last), 1155);
  mgd_clock_destroy(c);
}

/* A wait for a moment of another stream lets copies of both go on in their order. */
static void a_wait_ties_streams_together(void) {
  struct mgd_clock *c = new_clock(2, 0);
  copy(c, HOST, 0, 1, 100);
  copy(c, HOST, 0, 2, 100); /* has the link after that */
  wait_for(c, 0, 3, record(c, 0, 2));
  wait_for(c, 1, 0, record(c, 0, 3));
  copy(c, 1, HOST, 0, 30);
  EXPECT_INT(time_of(c, 1, 0), 230);
  EXPECT_INT(time_of(c, 0, 3), 200);
  mgd_clock_destroy(c);
}

static void two_links_over_one_switch_share_it(void) {
  struct mgd_clock *c = new_clock(3, 0);
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 7, 1.0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 0, 7));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 1, 7));
  copy(c, HOST, 0, 0, 100);
  copy(c, HOST, 1, 0, 100);
  copy(c, HOST, 2, 0, 100); /* another switch */
  copy(c, 0, HOST, 1, 100); /* the other way */
  EXPECT_INT(time_of(c, 0, 0), 200);
  EXPECT_INT(time_of(c, 1, 0), 200);
  EXPECT_INT(time_of(c, 2, 0), 100);
  EXPECT_INT(time_of(c, 0, 1), 100);
  mgd_clock_destroy(c);
}

/* 0 to 40 alone, 40 to 140 half of it, and what is left alone again. */
static void bandwidth_is_shared_for_as_long_as_both_flow(void) {
  struct mgd_clock *c = new_clock(2, 0);
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 0, 1.0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 0, 0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 1, 0));
  EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, 1, (struct mgd_link){10, 1.0})); /* flows when its latency is over */
  copy(c, HOST, 0, 0, 100);
  run(c, 1, 0, 30.0);
  copy(c, HOST, 1, 0, 50);
  EXPECT_INT(time_of(c, 1, 0), 40 + 2 * 50);
  EXPECT_INT(time_of(c, 0, 0), 40 + 2 * 50 + 10);
  EXPECT_INT(busy(c, HOST, 0), 150);
  EXPECT_INT(busy(c, HOST, 1), 110);
  mgd_clock_destroy(c);
}

/* Who cannot use its share leaves it to the others. */
static void what_a_slow_link_leaves_is_shared_by_the_fast(void) {
  struct mgd_clock *c = new_clock(3, 0);
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 1, 9.0));
  for (int d = 0; d < 3; d++) {
    EXPECT_OK(mgd_clock_wiring_set_link(c, d, HOST, (struct mgd_link){0, d == 0 ? 1.0 : 8.0}));
    EXPECT_OK(mgd_clock_wiring_join_bus(c, d, HOST, 1));
  }
  copy(c, 0, HOST, 0, 1000);
  copy(c, 1, HOST, 0, 400); /* 4 bytes a ns each */
  copy(c, 2, HOST, 0, 400);
  EXPECT_INT(time_of(c, 1, 0), 100);
  EXPECT_INT(time_of(c, 2, 0), 100);
  EXPECT_INT(time_of(c, 0, 0), 1000);
  mgd_clock_destroy(c);
}

/* A link that is instant alone is held back by its bus, and one without a bus is not. */
static void instant_links_are_instant(void) {
  struct mgd_clock *c = new_clock(2, 0);
  EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, 0, (struct mgd_link){5, 0.0}));
  EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, 1, (struct mgd_link){5, 0.0}));
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 0, 2.0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 1, 0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 0, 1)); /* a bus without a limit */
  copy(c, HOST, 0, 0, 1000000);
  copy(c, HOST, 1, 0, 1000);
  EXPECT_INT(time_of(c, 0, 0), 5);
  EXPECT_INT(time_of(c, 1, 0), 505);
  mgd_clock_destroy(c);
}

/* Asking for one device settles nothing of another that it has nothing in common with. */
static void strangers_are_left_alone(void) {
  struct mgd_clock *c = new_clock(4, 0);
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 0, 1.0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 2, 0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, 3, 0));
  for (int d = 0; d < 4; d++) {
    run(c, d, 1, 1000.0);
    copy(c, HOST, d, 1, 50);
  }
  EXPECT_INT(time_of(c, 0, 1), 1050);
  copy(c, HOST, 1, 2, 70); /* ready before the other copy of its link, which nobody asked for */
  EXPECT_INT(time_of(c, 1, 1), 1050);
  EXPECT_INT(time_of(c, 1, 2), 70);
  EXPECT_INT(time_of(c, 2, 1), 1100); /* this is over the same bus as another */
  copy(c, HOST, 3, 2, 70);
  EXPECT_INT(time_of(c, 3, 2), 1170);
  mgd_clock_destroy(c);
}

/* A program that never asks: queues are as long as they may be, and all comes out as if it had asked. */
static void queues_end(void) {
  struct mgd_clock *c = new_clock(2, 0);
  struct mgd_moment m = {5, NULL};
  run(c, 0, 0, 10.0);
  for (int i = 0; i < 5000; i++) {
    copy(c, 0, 1, 0, 3);
    run(c, 1, 0, 2.0);
    EXPECT_OK(mgd_clock_stream_wait(c, 1, 0, &m));
  }
  EXPECT_INT(time_of(c, 1, 0), 10 + 5000 * 5);
  EXPECT_INT(busy(c, 0, 1), 15000);
  EXPECT_INT(busy(c, 1, 1), 10000);
  mgd_clock_destroy(c);
}

/* Nor do events take memory without end: those of two threads, behind a copy that nobody waits for. */
static void marks_end(void) {
  struct mgd_clock *c = new_clock(1, 0);
  struct mgd_moment m = {0, NULL};
  run(c, 0, 0, 10.0);
  copy(c, 0, HOST, 0, 5);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 3));
  for (int i = 0; i < 3000; i++) {
    EXPECT_OK(mgd_clock_record(c, ME + i % 2, 0, 0, &m));
  }
  EXPECT(!m.task); /* the first 1,024 have settled the copy */
  EXPECT_INT(time_at(c, &m), 15);
  mgd_clock_destroy(c);
}

/* Without memory a copy is refused, and all else settles what it would have had to remember. */
static void running_out_of_memory_changes_no_time(void) {
  int64_t ends[2] = {0, 0};
  for (int64_t failing = 0, refused = 0; failing < 30; failing++) {
    struct mgd_clock *c = new_clock(2, failing ? failing + 4 : 0);
    run(c, 0, 1, 100.0);
    int code;
    while ((code = try_to_copy(c, 0, 1, 1, 50)) != MGD_OK) {
      EXPECT_CODE(code, MGD_E_NOMEM);
      EXPECT_INT(++refused, failing);
    }
    run(c, 1, 1, 10.0);
    wait_for(c, 1, 2, record(c, 1, 1));
    run(c, 1, 2, 20.0);
    struct mgd_moment m = record(c, 1, 2);
    wait_for(c, 0, 3, m);
    run(c, 0, 3, 1.0);
    ends[failing > 0] = time_of(c, 0, 3);
    EXPECT_INT(ends[failing > 0], 100 + 50 + 10 + 20 + 1);
    mgd_clock_destroy(c);
  }
}

/* Whatever is issued in whatever order: all of it ends, twice at the same time, and no bus carries more than it can. */
static void random_programs_end(uint64_t seed) {
  const double bandwidth[2] = {1.5, 0.7};
  int64_t ends[2] = {0, 0};
  for (int turn = 0; turn < 2; turn++) {
    struct mgd_clock *c = new_clock(4, 0);
    uint64_t state = seed;
    int64_t carried[2] = {0, 0};
    for (int bus = 0; bus < 2; bus++) {
      EXPECT_OK(mgd_clock_wiring_set_bus(c, bus, bandwidth[bus]));
    }
    for (int d = 0; d < 4; d++) {
      EXPECT_OK(mgd_clock_wiring_join_bus(c, HOST, d, d / 2));
      EXPECT_OK(mgd_clock_wiring_join_bus(c, d, (d + 1) % 4, 1));
    }
    for (int i = 0; i < 3000; i++) {
      const int a = (int)pick(&state, 5) - 1, b = (int)pick(&state, 4), s = (int)pick(&state, 4);
      run(c, b, s, (double)pick(&state, 500));
      if (a != b) {
        const int64_t bytes = pick(&state, 500);
        copy(c, a, b, s, bytes);
        carried[0] += a == HOST && b < 2 ? bytes : 0;
        carried[1] += (a == HOST && b >= 2) || (a != HOST && b == (a + 1) % 4) ? bytes : 0;
      }
      if (pick(&state, 5) == 0) {
        wait_for(c, (int)pick(&state, 4), (int)pick(&state, 4), record(c, b, s));
      }
      if (pick(&state, 50) == 0) {
        EXPECT_OK(mgd_clock_host_wait(c, ME, time_of(c, b, s)));
      }
    }
    EXPECT_OK(mgd_clock_elapsed(c, &ends[turn]));
    for (int bus = 0; bus < 2; bus++) {
      EXPECT(carried[bus] > 0 && (double)carried[bus] <= bandwidth[bus] * (double)ends[turn]);
    }
    mgd_clock_destroy(c);
  }
  EXPECT_INT(ends[0], ends[1]);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  a_copy_that_is_ready_does_not_wait_for_one_that_is_not();
  of_those_that_wait_a_link_takes_what_was_ready_first();
  a_link_is_busy_although_nobody_asked();
  who_asks_settles();
  what_stands_behind_a_copy_waits_for_it();
  the_end_of_a_stream_is_a_moment();
  a_moment_is_known_when_somebody_asks();
  a_wait_ties_streams_together();
  two_links_over_one_switch_share_it();
  bandwidth_is_shared_for_as_long_as_both_flow();
  what_a_slow_link_leaves_is_shared_by_the_fast();
  instant_links_are_instant();
  strangers_are_left_alone();
  queues_end();
  marks_end();
  running_out_of_memory_changes_no_time();
  for (uint64_t i = 0; i < 20; i++) {
    random_programs_end(seed + i);
  }
  return 0;
}
