/* Virtual time: rooflines on streams, copies on links, a host that goes on. */
#include <math.h>

#include "expect.h"

#define HOST (-1)

#define ME 0 /* the thread, where there is one */

/* One rate for all arithmetic. */
static struct mgd_speed speed(double flops_per_ns, double bytes_per_ns, int64_t launch_ns) {
  struct mgd_speed s = {.bytes_per_ns = bytes_per_ns, .launch_ns = launch_ns};
  for (int kind = 0; kind < MGD_WORK_KINDS; kind++) {
    for (int precision = 0; precision < MGD_PRECISIONS; precision++) {
      s.flops_per_ns[kind][precision] = flops_per_ns;
    }
  }
  return s;
}

static int try_to_run(struct mgd_clock *c, int device, int stream, double flops, double bytes) {
  const struct mgd_work work = {MGD_WORK_MATRIX, MGD_FLOAT32, flops, bytes, NULL};
  return mgd_clock_run(c, ME, device, stream, &work);
}

static int64_t stream_time(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, device, stream, &ns));
  return ns;
}

static struct mgd_clock *new_clock(int devices) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(devices, &c));
  for (int d = 0; d < devices; d++) {
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, speed(100.0, 10.0, 5)));
    EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, d, (struct mgd_link){.latency_ns = 10, .bytes_per_ns = 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_link(c, d, HOST, (struct mgd_link){.latency_ns = 20, .bytes_per_ns = 1.0}));
    for (int to = 0; to < devices; to++) {
      if (to != d) {
        EXPECT_OK(mgd_clock_wiring_set_link(c, d, to, (struct mgd_link){.latency_ns = 1, .bytes_per_ns = 2.0}));
      }
    }
  }
  return c;
}

static int64_t run(struct mgd_clock *c, int device, int stream, double flops, double bytes) {
  EXPECT_OK(try_to_run(c, device, stream, flops, bytes));
  return stream_time(c, device, stream);
}

static int try_to_copy(struct mgd_clock *c, int from, int from_stream, int to, int to_stream, int64_t bytes) {
  const struct mgd_transfer t = {from, from_stream, to, to_stream, bytes, false, NULL};
  return mgd_clock_copy(c, ME, &t);
}

/* Nobody asks for its end. */
static void start(struct mgd_clock *c, int from, int from_stream, int to, int to_stream, int64_t bytes) {
  EXPECT_OK(try_to_copy(c, from, from_stream, to, to_stream, bytes));
}

static int64_t copy(struct mgd_clock *c, int from, int from_stream, int to, int to_stream, int64_t bytes) {
  start(c, from, from_stream, to, to_stream, bytes);
  return from == HOST ? stream_time(c, to, to_stream) : stream_time(c, from, from_stream);
}

static int64_t time_of(struct mgd_clock *c, int device) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_device_time(c, device, &ns));
  return ns;
}

static void an_operator_takes_the_roofline_plus_its_launch(void) {
  struct mgd_clock *c = new_clock(1);
  EXPECT_INT(run(c, 0, 0, 1000.0, 10.0), 5 + 10);   /* bound by arithmetic */
  EXPECT_INT(run(c, 0, 0, 10.0, 1000.0), 15 + 105); /* bound by memory */
  EXPECT_INT(run(c, 0, 0, 0.0, 0.0), 125);          /* nothing but its launch */
  EXPECT_INT(run(c, 0, 0, 0.0, 1.0), 125 + 5 + 1);  /* parts of a ns round up */
  mgd_clock_destroy(c);
}

/* Each kind of arithmetic and each kind of numbers has its own. */
static void arithmetic_has_the_rate_of_its_kind_and_numbers(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_speed s = speed(0.0, 0.0, 0);
  double rate = 1.0;
  for (int kind = 0; kind < MGD_WORK_KINDS; kind++) {
    for (int precision = 0; precision < MGD_PRECISIONS; precision++) {
      s.flops_per_ns[kind][precision] = rate;
      rate *= 2.0;
    }
  }
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, s));
  int64_t before = 0, expected = 1 << 20;
  for (int kind = 0; kind < MGD_WORK_KINDS; kind++) {
    for (int precision = 0; precision < MGD_PRECISIONS; precision++) {
      const struct mgd_work work = {(enum mgd_work_kind)kind, (enum mgd_precision)precision, 1 << 20, 0.0, NULL};
      EXPECT_OK(mgd_clock_run(c, ME, 0, 0, &work));
      const int64_t end = stream_time(c, 0, 0);
      EXPECT_INT(end - before, expected);
      before = end;
      expected /= 2;
    }
  }
  mgd_clock_destroy(c);
}

static void streams_run_beside_each_other(void) {
  struct mgd_clock *c = new_clock(2);
  EXPECT_INT(run(c, 0, 0, 1000.0, 0.0), 15);
  EXPECT_INT(run(c, 0, 7, 3000.0, 0.0), 35);
  EXPECT_INT(run(c, 1, 0, 2000.0, 0.0), 25);
  EXPECT_INT(time_of(c, 0), 35);
  EXPECT_INT(time_of(c, 1), 25);
  EXPECT_INT(time_of(c, HOST), 0); /* the host only launched them */
  mgd_clock_destroy(c);
}

static void the_host_waits_when_it_says_so_and_never_goes_back(void) {
  struct mgd_clock *c = new_clock(1);
  int64_t end = run(c, 0, 0, 1000.0, 0.0);
  EXPECT_OK(mgd_clock_host_wait(c, ME, end));
  EXPECT_INT(time_of(c, HOST), 15);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 3));
  EXPECT_INT(time_of(c, HOST), 15);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 100));
  EXPECT_INT(run(c, 0, 3, 1000.0, 0.0), 115); /* launched at host time, though the stream was free */
  mgd_clock_destroy(c);
}

static void work_on_the_host_moves_its_time(void) {
  struct mgd_clock *c = new_clock(1);
  EXPECT_OK(mgd_clock_wiring_set_speed(c, HOST, speed(1.0, 0.0, 0)));
  EXPECT_INT(run(c, HOST, 0, 50.0, 1e9), 50); /* a rate of 0 is instant */
  EXPECT_INT(time_of(c, HOST), 50);
  EXPECT_INT(run(c, 0, 0, 0.0, 0.0), 55);
  mgd_clock_destroy(c);
}

static void a_stream_waits_for_an_event(void) {
  struct mgd_clock *c = new_clock(1);
  struct mgd_moment event = {0, NULL};
  const struct mgd_moment past = {1, NULL};
  run(c, 0, 1, 1000.0, 0.0);
  EXPECT_OK(mgd_clock_record(c, ME, 0, 1, &event));
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 2, &event));
  EXPECT_INT(run(c, 0, 2, 0.0, 0.0), 20);
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 2, &past));
  EXPECT_INT(run(c, 0, 2, 0.0, 0.0), 25);
  mgd_clock_forget(c, &event);
  mgd_clock_destroy(c);
}

static void a_copy_occupies_both_streams_and_the_link(void) {
  struct mgd_clock *c = new_clock(2);
  run(c, 0, 0, 1000.0, 0.0);                         /* until 15 */
  EXPECT_INT(copy(c, 0, 0, 1, 3, 100), 15 + 1 + 50); /* waits for its source */
  EXPECT_INT(run(c, 0, 0, 0.0, 0.0), 71);
  EXPECT_INT(run(c, 1, 3, 0.0, 0.0), 71);
  EXPECT_INT(run(c, 1, 0, 0.0, 0.0), 5); /* another stream is not held up */
  mgd_clock_destroy(c);
}

static void a_link_carries_one_copy_at_a_time_in_each_direction(void) {
  struct mgd_clock *c = new_clock(3);
  EXPECT_INT(copy(c, 0, 0, 1, 0, 100), 51);
  EXPECT_INT(copy(c, 0, 1, 1, 1, 100), 102); /* other streams, same link */
  EXPECT_INT(copy(c, 1, 2, 0, 2, 100), 51);  /* the way back is another link */
  EXPECT_INT(copy(c, 0, 3, 2, 0, 100), 51);
  mgd_clock_destroy(c);
}

static void the_host_hands_a_copy_over_and_goes_on(void) {
  struct mgd_clock *c = new_clock(2);
  EXPECT_INT(copy(c, HOST, 0, 0, 0, 100), 110);
  EXPECT_INT(copy(c, HOST, 0, 0, 1, 100), 220); /* its link is busy */
  EXPECT_INT(copy(c, HOST, 0, 1, 0, 100), 110); /* the other device has its own */
  EXPECT_INT(time_of(c, HOST), 0);
  EXPECT_INT(copy(c, 0, 0, HOST, 0, 100), 230);
  EXPECT_INT(time_of(c, HOST), 0);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 1000));
  EXPECT_INT(copy(c, 1, 5, 0, 5, 100), 1051); /* handed over at host time, though all was free before */
  mgd_clock_destroy(c);
}

static const struct mgd_work none = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};

/* A clock of `devices` devices, each of whose operators takes 10 ns and costs who issues it 100. */
static struct mgd_clock *new_slow_host(int devices) {
  struct mgd_clock *c = new_clock(devices);
  for (int d = 0; d < devices; d++) {
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, (struct mgd_speed){.launch_ns = 10, .issue_ns = 100}));
  }
  return c;
}

static int64_t thread_time(struct mgd_clock *c, int thread) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, HOST, thread, &ns));
  return ns;
}

/* An operator that does nothing, and the end of its stream. */
static int64_t issue(struct mgd_clock *c, int thread, int device, int stream) {
  EXPECT_OK(mgd_clock_run(c, thread, device, stream, &none));
  return stream_time(c, device, stream);
}

static void issuing_takes_the_threads_time(void) {
  struct mgd_clock *c = new_slow_host(1);
  for (int i = 0; i < 1000; i++) {
    EXPECT_OK(mgd_clock_run(c, ME, 0, 0, &none));
  }
  EXPECT_INT(thread_time(c, ME), 1000 * 100);
  EXPECT_INT(stream_time(c, 0, 0), 1000 * 100 + 10); /* the device waits for the host */
  EXPECT_INT(copy(c, HOST, 0, 0, 1, 5), 1001 * 100 + 15);
  EXPECT_INT(copy(c, 0, 1, HOST, 0, 5), 1002 * 100 + 25);
  EXPECT_INT(thread_time(c, ME), 1002 * 100);
  mgd_clock_destroy(c);
}

/* Each 512 operations it waits for the end of those before the last 512. */
static void a_thread_is_not_more_than_1024_operations_ahead(void) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(2, &c));
  for (int d = 0; d < 2; d++) {
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, (struct mgd_speed){.bytes_per_ns = 1.0, .issue_ns = 1}));
  }
  EXPECT_OK(mgd_clock_wiring_set_link(c, 0, HOST, (struct mgd_link){0, 1.0}));
  for (int i = 1; i <= 1023; i++) {
    EXPECT_OK(try_to_run(c, 0, 0, 0.0, 10.0)); /* until 10 i + 1 */
  }
  EXPECT_INT(stream_time(c, HOST, ME), 1023);
  EXPECT_OK(try_to_run(c, 0, 0, 0.0, 10.0)); /* waits for number 511 */
  EXPECT_INT(stream_time(c, HOST, ME), 5111 + 1);
  for (int i = 1025; i <= 3000; i++) {
    EXPECT_OK(try_to_run(c, 0, 0, 0.0, 10.0));
  }
  EXPECT_INT(stream_time(c, HOST, ME), 20471 + 441); /* 2560 has waited for 2047 */
  EXPECT_INT(stream_time(c, 0, 0), 30001); /* and the device for nobody */
  for (int i = 1; i <= 1024; i++) { /* another stream, and copies: each has a queue of its own */
    EXPECT_OK(mgd_clock_copy(c, ME, &(struct mgd_transfer){0, 1, HOST, ME, 10, false, NULL}));
  }
  EXPECT_INT(stream_time(c, HOST, ME), 20913 + 5110 + 1); /* the last has waited for number 511 */
  EXPECT_INT(stream_time(c, 0, 1), 20913 + 10240);
  mgd_clock_destroy(c);
}

static void threads_that_share_no_device_know_nothing_of_each_other(void) {
  struct mgd_clock *c = new_slow_host(2);
  for (int i = 1; i <= 7; i++) {
    EXPECT_INT(issue(c, 3, 0, 0), 100 * i + 10);
  }
  EXPECT_INT(issue(c, 5, 1, 0), 110);
  EXPECT_INT(thread_time(c, 3), 700);
  EXPECT_INT(thread_time(c, 5), 100);
  EXPECT_OK(mgd_clock_host_wait(c, 5, 120));
  EXPECT_INT(thread_time(c, 3), 700);
  EXPECT_INT(thread_time(c, 5), 120);
  mgd_clock_destroy(c);
}

static void threads_that_share_a_device_issue_one_after_the_other(void) {
  struct mgd_clock *c = new_slow_host(2);
  const struct mgd_transfer news = {0, 2, 1, 0, 0, false, NULL};
  issue(c, 3, 0, 0);
  EXPECT_INT(issue(c, 5, 0, 1), 210); /* another stream: the device could */
  EXPECT_INT(thread_time(c, 5), 200);
  EXPECT_OK(mgd_clock_copy(c, 7, &news)); /* and a copy takes the news along */
  EXPECT_INT(thread_time(c, 7), 300);
  issue(c, 9, 1, 1);
  EXPECT_INT(thread_time(c, 9), 400);
  mgd_clock_destroy(c);
}

static void who_blocks_goes_on_when_the_copy_is_over(void) {
  struct mgd_clock *c = new_slow_host(1);
  const struct mgd_transfer t = {HOST, 0, 0, 0, 100, true, NULL};
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
  EXPECT_INT(thread_time(c, ME), 100 + 110);
  EXPECT_INT(issue(c, ME, 0, 0), 210 + 100 + 10);
  EXPECT_OK(mgd_clock_copy(c, ME, &t)); /* behind what the stream holds */
  EXPECT_INT(thread_time(c, ME), 410 + 110);
  mgd_clock_destroy(c);
}

static void what_has_elapsed_never_goes_back(void) {
  struct mgd_clock *c = new_slow_host(1);
  int64_t elapsed = -1;
  EXPECT_OK(mgd_clock_elapsed(c, &elapsed));
  EXPECT_INT(elapsed, 0);
  issue(c, 3, 0, 0);
  EXPECT_OK(mgd_clock_elapsed(c, &elapsed));
  EXPECT_INT(elapsed, 110);
  EXPECT_OK(mgd_clock_host_wait(c, 3, 5000));
  EXPECT_OK(mgd_clock_begin_thread(c, 3)); /* gone, and another one has its place */
  EXPECT_INT(thread_time(c, 3), 0);
  EXPECT_OK(mgd_clock_elapsed(c, &elapsed));
  EXPECT_INT(elapsed, 5000);
  mgd_clock_destroy(c);
}

static void same_calls_give_same_times(void) {
  int64_t ends[2] = {0, 0};
  for (int turn = 0; turn < 2; turn++) {
    struct mgd_clock *c = new_clock(4);
    uint64_t state = 5;
    for (int i = 0; i < 2000; i++) {
      int a = (int)pick(&state, 4), b = (int)pick(&state, 5) - 1;
      int s = (int)pick(&state, MGD_MAX_STREAMS), t = b == HOST ? 0 : (int)pick(&state, MGD_MAX_STREAMS);
      run(c, a, s, (double)pick(&state, 100000), (double)pick(&state, 100000));
      if (a != b) {
        ends[turn] += copy(c, a, s, b, t, pick(&state, 100000));
      }
      if (pick(&state, 10) == 0) {
        EXPECT_OK(mgd_clock_host_wait(c, ME, time_of(c, a)));
      }
    }
    mgd_clock_destroy(c);
  }
  EXPECT_INT(ends[0], ends[1]);
}

static void nonsense_is_refused_and_moves_no_time(void) {
  struct mgd_clock *c = new_clock(1);
  const struct mgd_speed bad_speeds[] = {speed(-1.0, 0.0, 0), speed(0.0, (double)NAN, 0), speed(0.0, 0.0, -1)};
  const struct mgd_work no_kind = {MGD_WORK_KINDS, MGD_FLOAT32, 1.0, 1.0, NULL},
                        no_number = {MGD_WORK_MATRIX, MGD_PRECISIONS, 1.0, 1.0, NULL}, nothing = {0};
  const struct mgd_link bad_links[] = {{-1, 1.0}, {0, (double)INFINITY}}, good = {0, 1.0};
  const struct mgd_transfer fine = {HOST, 0, 0, 0, 1, false, NULL};
  const struct mgd_moment before = {-1, NULL}, good_moment = {1, NULL};
  int64_t ns = 77;
  for (size_t i = 0; i < 3; i++) {
    EXPECT_CODE(mgd_clock_wiring_set_speed(c, 0, bad_speeds[i]), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_clock_wiring_set_speed(c, 1, (struct mgd_speed){0}), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_wiring_set_speed(c, -2, (struct mgd_speed){0}), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_wiring_set_link(c, HOST, 0, bad_links[0]), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_set_link(c, HOST, 0, bad_links[1]), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_set_link(c, 0, 0, good), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_set_link(c, 0, 1, good), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_wiring_set_link(c, 1, 0, good), MGD_E_NO_DEVICE);
  EXPECT_CODE(try_to_run(c, 0, 0, -1.0, 0.0), MGD_E_INVALID);
  EXPECT_CODE(try_to_run(c, 0, 0, 0.0, (double)NAN), MGD_E_INVALID);
  EXPECT_CODE(try_to_run(c, 0, MGD_MAX_STREAMS, 0.0, 0.0), MGD_E_INVALID);
  EXPECT_CODE(try_to_run(c, 0, -1, 0.0, 0.0), MGD_E_INVALID);
  EXPECT_CODE(try_to_run(c, 1, 0, 0.0, 0.0), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_run(c, ME, 0, 0, &no_kind), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_run(c, ME, 0, 0, &no_number), MGD_E_INVALID);
  EXPECT_CODE(try_to_copy(c, HOST, 0, 0, 0, -1), MGD_E_INVALID);
  EXPECT_CODE(try_to_copy(c, HOST, 0, 0, 99, 1), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_copy(c, -1, &fine), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_run(c, MGD_MAX_STREAMS, 0, 0, &nothing), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_begin_thread(c, MGD_MAX_STREAMS), MGD_E_INVALID);
  EXPECT_CODE(try_to_copy(c, 1, 0, 0, 0, 1), MGD_E_NO_DEVICE);
  EXPECT_CODE(try_to_copy(c, 0, 0, 1, 0, 1), MGD_E_NO_DEVICE);
  EXPECT_CODE(try_to_copy(c, 0, 0, 0, 1, 1), MGD_E_INVALID); /* an operator, not a copy */
  EXPECT_CODE(mgd_clock_wiring_set_bus(c, MGD_MAX_BUSES, 1.0), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_set_bus(c, 0, -1.0), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_join_bus(c, HOST, 0, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_wiring_join_bus(c, HOST, 1, 0), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_busy(c, HOST, 1, &ns), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_stream_time(c, 0, -1, &ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_stream_wait(c, 0, 0, &before), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_stream_wait(c, 1, 0, &good_moment), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_host_wait(c, ME, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_device_time(c, 1, &ns), MGD_E_NO_DEVICE);
  EXPECT_INT(ns, 77);
  EXPECT_INT(time_of(c, 0), 0);
  EXPECT_INT(time_of(c, HOST), 0);
  mgd_clock_destroy(c);
}

static void times_beyond_int64_overflow_and_move_nothing(void) {
  struct mgd_clock *c = new_clock(1);
  EXPECT_CODE(try_to_run(c, 0, 0, 1e300, 0.0), MGD_E_OVERFLOW);
  EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, 0, (struct mgd_link){0, 1e-300}));
  EXPECT_CODE(try_to_copy(c, HOST, 0, 0, 0, 1), MGD_E_OVERFLOW);
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, speed(1.0, 1.0, INT64_MAX)));
  EXPECT_CODE(try_to_run(c, 0, 0, 1.0, 0.0), MGD_E_OVERFLOW);
  const struct mgd_moment never = {INT64_MAX, NULL};
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 0, &never));
  EXPECT_CODE(try_to_run(c, 0, 0, 0.0, 0.0), MGD_E_OVERFLOW);
  EXPECT_CODE(try_to_copy(c, 0, 0, HOST, 0, 1), MGD_E_OVERFLOW);
  mgd_clock_destroy(c);
}

static void creation_fails_cleanly(void) {
  struct mgd_clock *c = NULL;
  EXPECT_CODE(mgd_clock_create(-1, &c), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_create(MGD_MAX_DEVICES, &c), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_create_failing(1, -1, &c), MGD_E_INVALID);
  for (int64_t n = 1; n <= 4; n++) {
    EXPECT_CODE(mgd_clock_create_failing(2, n, &c), MGD_E_NOMEM);
    EXPECT(!c);
  }
  EXPECT_OK(mgd_clock_create_failing(0, 5, &c)); /* a host alone */
  EXPECT_INT(time_of(c, HOST), 0);
  mgd_clock_destroy(c);
  mgd_clock_destroy(NULL);
}

int main(void) {
  an_operator_takes_the_roofline_plus_its_launch();
  arithmetic_has_the_rate_of_its_kind_and_numbers();
  streams_run_beside_each_other();
  the_host_waits_when_it_says_so_and_never_goes_back();
  work_on_the_host_moves_its_time();
  a_stream_waits_for_an_event();
  a_copy_occupies_both_streams_and_the_link();
  a_link_carries_one_copy_at_a_time_in_each_direction();
  the_host_hands_a_copy_over_and_goes_on();
  issuing_takes_the_threads_time();
  a_thread_is_not_more_than_1024_operations_ahead();
  threads_that_share_no_device_know_nothing_of_each_other();
  threads_that_share_a_device_issue_one_after_the_other();
  who_blocks_goes_on_when_the_copy_is_over();
  what_has_elapsed_never_goes_back();
  same_calls_give_same_times();
  nonsense_is_refused_and_moves_no_time();
  times_beyond_int64_overflow_and_move_nothing();
  creation_fails_cleanly();
  return 0;
}
