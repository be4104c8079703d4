/* Bytes on the virtual clock: at no time more than a device can hold. */
#include "expect.h"

#define HOST (-1)
#define ME 0

/* Operators take as many ns as they have bytes, and cost nobody anything to issue; links carry 1 byte a ns. */
static struct mgd_clock *new_clock(int devices, int64_t capacity, int64_t failing) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create_failing(devices, failing, &c));
  for (int d = 0; d < devices; d++) {
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, (struct mgd_speed){.bytes_per_ns = 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_link(c, d, HOST, (struct mgd_link){0, 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_link(c, HOST, d, (struct mgd_link){0, 1.0}));
    EXPECT_OK(mgd_clock_hold_set_capacity(c, d, capacity));
  }
  return c;
}

static struct mgd_clock *new_audited(int devices, int64_t capacity) {
  struct mgd_clock *c = new_clock(devices, capacity, 0);
  EXPECT_OK(mgd_clock_audit_start(c));
  return c;
}

static void run(struct mgd_clock *c, int device, int stream, double ns) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, ns, NULL};
  EXPECT_OK(mgd_clock_run(c, ME, device, stream, &work));
}

static int64_t time_of(struct mgd_clock *c, int device, int stream) {
  int64_t ns = -1;
  EXPECT_OK(mgd_clock_stream_time(c, device, stream, &ns));
  return ns;
}

static struct mgd_hold *take(struct mgd_clock *c, int device, int stream, int64_t bytes) {
  struct mgd_hold *h = NULL;
  EXPECT_OK(mgd_clock_hold_take(c, device, stream, bytes, &h));
  return h;
}

static int64_t audit(struct mgd_clock *c, int device) {
  int64_t most = -1;
  EXPECT_OK(mgd_clock_audit_check(c, device, &most));
  return most;
}

static void a_stream_reuses_its_own_bytes_without_waiting(void) {
  struct mgd_clock *c = new_audited(1, 100);
  for (int i = 0; i < 10; i++) {
    struct mgd_hold *h = take(c, 0, 0, 80);
    run(c, 0, 0, 50.0);
    mgd_clock_hold_give(c, h, NULL); /* before the operator has ended */
  }
  EXPECT_INT(time_of(c, 0, 0), 500);
  EXPECT_INT(audit(c, 0), 80);
  mgd_clock_destroy(c);
}

static void another_stream_waits_until_the_bytes_are_not_used(void) {
  struct mgd_clock *c = new_audited(1, 100);
  struct mgd_hold *small = take(c, 0, 0, 30), *large = take(c, 0, 0, 60);
  run(c, 0, 0, 40.0);
  mgd_clock_hold_give(c, small, NULL);
  run(c, 0, 0, 100.0);
  mgd_clock_hold_give(c, large, NULL);
  struct mgd_hold *fits = take(c, 0, 1, 10);
  run(c, 0, 1, 1.0);
  EXPECT_INT(time_of(c, 0, 1), 1);
  struct mgd_hold *first = take(c, 0, 1, 30); /* what the small one leaves */
  run(c, 0, 1, 1.0);
  EXPECT_INT(time_of(c, 0, 1), 41);
  struct mgd_hold *second = take(c, 0, 2, 50);
  run(c, 0, 2, 1.0);
  EXPECT_INT(time_of(c, 0, 2), 141);
  EXPECT_INT(audit(c, 0), 100);
  mgd_clock_hold_give(c, fits, NULL);
  mgd_clock_hold_give(c, first, NULL);
  mgd_clock_hold_give(c, second, NULL);
  mgd_clock_destroy(c);
}

/* The end that somebody waits for is that of a copy which has not got its link yet. */
static void the_end_of_a_copy_frees_what_it_read(void) {
  struct mgd_clock *c = new_audited(1, 100);
  const struct mgd_transfer out = {0, 1, HOST, 0, 70, false, NULL}, before = {0, 2, HOST, 0, 500, false, NULL};
  struct mgd_hold *victim = take(c, 0, 0, 70);
  EXPECT_OK(mgd_clock_copy(c, ME, &before));
  EXPECT_OK(mgd_clock_copy(c, ME, &out));
  mgd_clock_hold_use(victim, 1);
  mgd_clock_hold_use(victim, 0);
  mgd_clock_hold_give(c, victim, NULL);
  struct mgd_hold *next = take(c, 0, 0, 60); /* on the stream that made the victim, but the copy is on another */
  run(c, 0, 0, 5.0);
  EXPECT_INT(time_of(c, 0, 0), 575);
  EXPECT_INT(audit(c, 0), 70);
  mgd_clock_hold_give(c, next, NULL);
  mgd_clock_destroy(c);
}

/* The stream of the copy has more to do, which these bytes do not wait for. */
static void bytes_may_wait_for_one_moment_of_a_stream(void) {
  struct mgd_clock *c = new_audited(1, 100);
  const struct mgd_transfer out = {0, 1, HOST, 0, 70, false, NULL}, later = {0, 1, HOST, 0, 500, false, NULL};
  struct mgd_moment copied = {0, NULL};
  struct mgd_hold *victim = take(c, 0, 0, 70);
  EXPECT_OK(mgd_clock_copy(c, ME, &out));
  EXPECT_OK(mgd_clock_record(c, ME, 0, 1, &copied));
  EXPECT_OK(mgd_clock_copy(c, ME, &later));
  mgd_clock_hold_give(c, victim, &copied);
  mgd_clock_forget(c, &copied);
  struct mgd_hold *next = take(c, 0, 0, 60);
  run(c, 0, 0, 5.0);
  EXPECT_INT(time_of(c, 0, 0), 75);
  EXPECT_INT(time_of(c, 0, 1), 570);
  EXPECT_INT(audit(c, 0), 70);
  mgd_clock_hold_give(c, next, NULL);
  mgd_clock_destroy(c);
}

/* Who brings bytes is not in the way of who uses them afterwards. */
static void bytes_are_handed_over(void) {
  struct mgd_clock *c = new_audited(1, 100);
  const struct mgd_transfer in = {HOST, 0, 0, 1, 70, false, NULL}, more = {HOST, 0, 0, 1, 500, false, NULL};
  struct mgd_moment there = {0, NULL};
  struct mgd_hold *h = take(c, 0, 1, 70);
  EXPECT_OK(mgd_clock_copy(c, ME, &in));
  EXPECT_OK(mgd_clock_record(c, ME, 0, 1, &there));
  EXPECT_OK(mgd_clock_copy(c, ME, &more));
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 0, &there));
  mgd_clock_forget(c, &there);
  mgd_clock_hold_use(h, 0);
  mgd_clock_hold_hand_over(c, h, 0, false);
  run(c, 0, 0, 5.0);
  mgd_clock_hold_give(c, h, NULL);
  struct mgd_hold *next = take(c, 0, 2, 60);
  run(c, 0, 2, 1.0);
  EXPECT_INT(time_of(c, 0, 2), 76);
  EXPECT_INT(audit(c, 0), 70);
  mgd_clock_hold_give(c, next, NULL);
  mgd_clock_destroy(c);
}

/* A copy that comes after all uses: what takes the room waits for it, and not for what its users did since. */
static void who_comes_last_has_them_alone(void) {
  for (int alone = 0; alone < 2; alone++) {
    struct mgd_clock *c = new_audited(1, 100);
    const struct mgd_transfer out = {0, 2, HOST, 0, 20, false, NULL};
    struct mgd_moment used = {0, NULL};
    struct mgd_hold *h = take(c, 0, 0, 70);
    mgd_clock_hold_use(h, 1);
    run(c, 0, 1, 10.0);
    EXPECT_OK(mgd_clock_record(c, ME, 0, 1, &used));
    EXPECT_OK(mgd_clock_stream_wait(c, 0, 2, &used));
    mgd_clock_forget(c, &used);
    EXPECT_OK(mgd_clock_copy(c, ME, &out));
    run(c, 0, 1, 500.0);
    mgd_clock_hold_hand_over(c, h, 2, alone);
    mgd_clock_hold_give(c, h, NULL);
    struct mgd_hold *next = take(c, 0, 3, 60);
    run(c, 0, 3, 1.0);
    EXPECT_INT(time_of(c, 0, 3), alone ? 31 : 511);
    EXPECT_INT(audit(c, 0), 70);
    mgd_clock_hold_give(c, next, NULL);
    mgd_clock_destroy(c);
  }
}

/* Nothing that is issued from now on begins before what has been issued. */
static void what_has_ended_is_in_nobodys_way(void) {
  struct mgd_clock *c = new_audited(1, 100);
  for (int i = 0; i < 3000; i++) {
    struct mgd_hold *h = take(c, 0, i % 3, 100);
    run(c, 0, i % 3, 10.0);
    EXPECT_OK(mgd_clock_host_wait(c, ME, time_of(c, 0, i % 3)));
    mgd_clock_hold_give(c, h, NULL);
  }
  EXPECT_INT(time_of(c, 0, 2), 30000);
  EXPECT_INT(audit(c, 0), 100);
  mgd_clock_destroy(c);
}

/* More than a stream remembers one by one: some stay for longer, none for less. */
static void many_leave_at_once(void) {
  struct mgd_clock *c = new_audited(1, 100000);
  struct mgd_hold *held[3000];
  for (int i = 0; i < 3000; i++) {
    held[i] = take(c, 0, 0, 10);
  }
  for (int i = 0; i < 3000; i++) {
    run(c, 0, 0, 10.0);
    mgd_clock_hold_give(c, held[i], NULL);
  }
  struct mgd_hold *all = take(c, 0, 1, 100000);
  run(c, 0, 1, 1.0);
  EXPECT_INT(time_of(c, 0, 1), 30001);
  EXPECT_INT(audit(c, 0), 100000);
  mgd_clock_hold_give(c, all, NULL);
  mgd_clock_destroy(c);
}

/* The capacity is what the caller allows: below what is held, and nobody can wait for that. */
static void a_smaller_capacity_takes_nothing_away(void) {
  struct mgd_clock *c = new_audited(1, 100);
  struct mgd_hold *h = take(c, 0, 0, 90);
  EXPECT_OK(mgd_clock_hold_set_capacity(c, 0, 50));
  struct mgd_hold *more = take(c, 0, 0, 5);
  EXPECT_INT(time_of(c, 0, 0), 0);
  EXPECT_INT(audit(c, 0), 95);
  mgd_clock_hold_give(c, h, NULL);
  EXPECT_INT(audit(c, 0), 5); /* what is over is forgotten, and 50 is the capacity from now on */
  mgd_clock_hold_give(c, more, NULL);
  struct mgd_hold *too_much = take(c, 0, 0, 60);
  run(c, 0, 0, 1.0);
  int64_t most = -1;
  EXPECT_CODE(mgd_clock_audit_check(c, 0, &most), MGD_E_BROKEN);
  EXPECT_INT(most, 60);
  mgd_clock_hold_give(c, too_much, NULL);
  mgd_clock_destroy(c);
}

static void nonsense_is_refused(void) {
  struct mgd_clock *c = new_clock(1, 100, 0);
  struct mgd_hold *h = NULL;
  int64_t most = 77;
  EXPECT_CODE(mgd_clock_hold_set_capacity(c, 1, 5), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_hold_set_capacity(c, 0, -5), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_hold_take(c, HOST, 0, 5, &h), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_hold_take(c, 0, MGD_MAX_STREAMS, 5, &h), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_hold_take(c, 0, 0, -5, &h), MGD_E_INVALID);
  EXPECT_CODE(mgd_clock_audit_check(c, 1, &most), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_clock_audit_check(c, 0, &most), MGD_E_INVALID);
  EXPECT(!h);
  EXPECT_INT(most, 77);
  mgd_clock_destroy(c);
}

static void running_out_of_memory_holds_nothing_twice(void) {
  for (int64_t failing = 5; failing < 40; failing++) {
    struct mgd_clock *c = new_clock(1, 100, failing);
    struct mgd_hold *h = NULL;
    const struct mgd_transfer out = {0, 1, HOST, 0, 70, false, NULL};
    run(c, 0, 0, 20.0);
    run(c, 0, 1, 10.0);
    while (mgd_clock_hold_take(c, 0, 0, 70, &h) != MGD_OK) {
    }
    while (mgd_clock_copy(c, ME, &out) != MGD_OK) {
    }
    mgd_clock_hold_use(h, 1);
    mgd_clock_hold_give(c, h, NULL);
    while (mgd_clock_hold_take(c, 0, 2, 60, &h) != MGD_OK) {
    }
    run(c, 0, 2, 1.0);
    EXPECT_INT(time_of(c, 0, 2), 81);
    mgd_clock_destroy(c); /* with what is still held */
  }
}

/* Programs that keep to their capacity in their own order keep to it at every virtual time. */
static void random_programs_hold_no_more_than_the_capacity(uint64_t seed) {
  struct mgd_clock *c = new_audited(2, 1000);
  struct mgd_hold *held[2][40] = {{NULL}};
  int64_t bytes[2][40] = {{0}}, used[2] = {0, 0}, highest = 0;
  uint64_t state = seed;
  for (int i = 0; i < 4000; i++) {
    const int d = (int)pick(&state, 2), slot = (int)pick(&state, 40), s = (int)pick(&state, 4);
    if (held[d][slot]) {
      used[d] -= bytes[d][slot];
      mgd_clock_hold_give(c, held[d][slot], NULL);
      held[d][slot] = NULL;
    } else if ((bytes[d][slot] = pick(&state, 300)) <= 1000 - used[d]) {
      held[d][slot] = take(c, d, s, bytes[d][slot]);
      used[d] += bytes[d][slot];
      highest = used[d] > highest ? used[d] : highest;
    }
    if (held[d][slot] && pick(&state, 3) == 0) {
      mgd_clock_hold_use(held[d][slot], (int)pick(&state, 4));
    }
    const struct mgd_transfer t = {d, s, HOST, 0, pick(&state, 400), pick(&state, 30) == 0, NULL};
    if (pick(&state, 4) == 0) {
      EXPECT_OK(mgd_clock_copy(c, ME, &t));
    }
    run(c, d, (int)pick(&state, 4), (double)pick(&state, 100));
    if (i % 1000 == 999) {
      const int64_t most = audit(c, d);
      EXPECT(most > 500);
    }
  }
  EXPECT(audit(c, 0) <= 1000 && audit(c, 1) <= 1000);
  mgd_clock_destroy(c);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  a_stream_reuses_its_own_bytes_without_waiting();
  another_stream_waits_until_the_bytes_are_not_used();
  the_end_of_a_copy_frees_what_it_read();
  bytes_may_wait_for_one_moment_of_a_stream();
  bytes_are_handed_over();
  who_comes_last_has_them_alone();
  what_has_ended_is_in_nobodys_way();
  many_leave_at_once();
  a_smaller_capacity_takes_nothing_away();
  nonsense_is_refused();
  running_out_of_memory_holds_nothing_twice();
  for (uint64_t i = 0; i < 20; i++) {
    random_programs_hold_no_more_than_the_capacity(seed + i);
  }
  return 0;
}
