/* Four threads on one machine and one clock: nothing is lost, nothing is
 * promised twice, and ThreadSanitizer has nothing to say.
 *
 * Usage: test_threads [seed] [steps]; each thread makes steps / 20 rounds.
 */
#include <pthread.h>

#include "expect.h"

#define THREADS 4
#define CAPACITY 1000
#define SHARED 6
#define ALL (~(mgd_mask)0)

struct worker {
  struct mgd_machine *m;
  struct mgd_clock *c;
  const uint64_t *shared; /* sources that all threads use */
  uint64_t random;
  int number; /* of its thread */
  int64_t rounds, copies, bytes, kept;
};

static int double_it(void *context, int64_t size, int64_t *out) {
  *out = 2 * size + 0 * mgd_device_count(context);
  return MGD_OK;
}

/* Reserves, waits if it must, uses what it got and gives it back. */
static void hold_some(struct worker *w, int64_t now) {
  struct mgd_ticket t = {0};
  int device = 1 + (int)pick(&w->random, 3);
  int64_t bytes = pick(&w->random, CAPACITY / 2);
  int code = mgd_admit_request(w->m, device, bytes, 0.0, now, now + 50, &t);
  for (int64_t tries = 0; code == MGD_E_WAIT; tries++) {
    code = mgd_admit_poll(w->m, &t, now + tries);
  }
  EXPECT(code == MGD_OK || code == MGD_E_DEADLINE);
  EXPECT((code == MGD_OK) == (t.id != 0));
  struct mgd_usage u = usage_of(w->m, device);
  EXPECT(u.by_owner[MGD_RESERVED] <= u.capacity);
  if (code == MGD_OK) {
    EXPECT(u.by_owner[MGD_RESERVED] >= bytes);
    EXPECT_OK(mgd_admit_release(w->m, &t));
  }
}

static void place_some(struct worker *w, int64_t now) {
  const struct mgd_object_request r = {pick(&w->random, CAPACITY), pick(&w->random, 2), ALL, 0.1};
  const struct mgd_operand o[] = {{1, MGD_OP_VOTES, 10, 1, 4}, {2, MGD_OP_VOTES, pick(&w->random, 99), 2, 0}};
  const int64_t layers[] = {3, 1, 2};
  const struct mgd_share room[] = {{9, 0, 1.0}, {9, 0, 1.0}};
  struct mgd_ticket t = {0};
  enum mgd_reason why;
  int device = -1, other = -1, plan[3];
  EXPECT_OK(mgd_admit_object(w->m, &r, now, &t, &why));
  EXPECT(t.id == 0 || mgd_admit_release(w->m, &t) == MGD_OK);
  EXPECT_OK(mgd_place_operands(w->m, o, 2, &device, &other, &why));
  EXPECT(device == 1 || device == 2);
  EXPECT_OK(mgd_place_plan_layers(w->m, layers, NULL, 3, room, 2, plan));
}

static void record_some(struct worker *w, int64_t now) {
  struct mgd_event e = {.kind = MGD_EV_COPY, .object = mgd_trace_new_object(w->m), .time = now, .bytes = pick(&w->random, 100), .from = 0, .to = 1};
  const struct mgd_site place = {.file = "a.py", .function = "f", .line = (int32_t)(now % 50)};
  struct mgd_site told;
  struct mgd_event seen[8];
  struct mgd_repeat repeat;
  size_t n = 8;
  uint64_t dropped;
  EXPECT_OK(mgd_site_intern(w->m, &place, &e.site));
  EXPECT_OK(mgd_site_get(w->m, e.site, &told));
  EXPECT_INT(told.line, place.line);
  EXPECT_OK(mgd_repeat_add(w->m, &e, &repeat));
  EXPECT_INT(repeat.count, 1); /* every round has an object of its own */
  mgd_repeat_begin_step(w->m);
  EXPECT_OK(mgd_trace_add(w->m, &e));
  w->copies++;
  w->bytes += e.bytes;
  EXPECT_OK(mgd_trace_read(w->m, 0, seen, &n, &dropped));
  for (size_t i = 1; i < n; i++) {
    EXPECT_INT(seen[i].sequence, seen[i - 1].sequence + 1);
  }
}

static void change_some(struct worker *w) {
  int64_t out = -1, bytes = pick(&w->random, 50);
  EXPECT_OK(mgd_ledger_observe(w->m, 1, bytes, bytes));
  EXPECT_OK(mgd_heuristic_set(w->m, pick(&w->random, 2) ? double_it : NULL, w->m));
  EXPECT_OK(mgd_heuristic_apply(w->m, 100, &out));
  EXPECT(out == 115 || out == 200);
  EXPECT_OK(mgd_ledger_observe(w->m, 1, 0, 0));
}

/* What an alignment does: finds a copy or makes one that others may doom at any time. */
static void copy_some(struct worker *w) {
  uint64_t source = w->shared[pick(&w->random, SHARED)], extent = (uint64_t)pick(&w->random, 2), writes;
  int device = (int)pick(&w->random, 4);
  int32_t slot = -1;
  EXPECT_OK(mgd_source_writes(w->m, source, &writes));
  int code = mgd_replica_find(w->m, source, device, extent, &slot);
  if (code == MGD_E_ABSENT) {
    code = mgd_replica_add(w->m, source, writes, device, extent, 1 + pick(&w->random, CAPACITY / 4), &slot);
    w->kept += code == MGD_OK;
    EXPECT(code == MGD_OK || code == MGD_E_STALE);
  }
  EXPECT(code == MGD_E_STALE || slot >= 0);
  EXPECT(pick(&w->random, 8) || mgd_source_written(w->m, source) == MGD_OK);
}

/* A storage of this thread alone: nobody else can make its copies stale. */
static void own_some(struct worker *w) {
  uint64_t source = 0, writes = 77;
  int32_t slot = -1;
  EXPECT_OK(mgd_source_open(w->m, &source));
  EXPECT_OK(mgd_source_writes(w->m, source, &writes));
  EXPECT_INT(writes, 0);
  EXPECT_OK(mgd_replica_add(w->m, source, writes, MGD_HOST, 0, 9, &slot));
  w->kept++;
  int32_t found = -1;
  EXPECT_OK(mgd_replica_find(w->m, source, MGD_HOST, 0, &found)); /* the host has room for all */
  EXPECT_INT(found, slot);
  EXPECT_OK(mgd_source_close(w->m, source));
  EXPECT_CODE(mgd_replica_find(w->m, source, MGD_HOST, 0, &found), MGD_E_INVALID);
}

/* Takes room away, and counts what this thread reaps. */
static void reap_some(struct worker *w) {
  int32_t slot = -1;
  int code = mgd_replica_make_room(w->m, 1 + (int)pick(&w->random, 3), pick(&w->random, 200), true);
  EXPECT(code == MGD_OK || code == MGD_E_ABSENT);
  while (mgd_replica_reap(w->m, &slot) == MGD_OK) {
    w->kept--;
  }
}

/* Operators, copies that somebody waits for and others, events across streams, and bytes that two streams use. */
static void simulate_some(struct worker *w) {
  int64_t end = -1, now = -1;
  const int device = (int)pick(&w->random, 2), stream = (int)pick(&w->random, 3);
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 10.0, 10.0, NULL};
  const struct mgd_transfer peer = {device, stream, 1 - device, stream, 10, false, NULL};
  const struct mgd_transfer home = {device, stream, -1, 0, 10, pick(&w->random, 2) == 0, NULL};
  struct mgd_hold *hold = NULL;
  struct mgd_moment moment = {0, NULL};
  EXPECT_OK(mgd_clock_hold_take(w->c, device, stream, 10, &hold));
  EXPECT_OK(mgd_clock_run(w->c, w->number, device, stream, &work));
  EXPECT_OK(mgd_clock_copy(w->c, w->number, pick(&w->random, 2) ? &peer : &home));
  EXPECT_OK(mgd_clock_record(w->c, w->number, device, stream, &moment));
  EXPECT_OK(mgd_clock_stream_wait(w->c, 1 - device, 2 - stream, &moment));
  mgd_clock_hold_use(hold, 1);
  mgd_clock_hold_give(w->c, hold, NULL);
  if (pick(&w->random, 2)) {
    EXPECT_OK(mgd_clock_moment_time(w->c, &moment, &end));
    EXPECT_OK(mgd_clock_host_wait(w->c, w->number, end));
    EXPECT_OK(mgd_clock_stream_time(w->c, -1, w->number, &now));
    EXPECT(now >= end);
  }
  mgd_clock_forget(w->c, &moment);
}

static void *work(void *argument) {
  struct worker *w = argument;
  for (int64_t now = 0; now < w->rounds; now++) {
    hold_some(w, now);
    place_some(w, now);
    record_some(w, now);
    change_some(w);
    copy_some(w);
    own_some(w);
    reap_some(w);
    simulate_some(w);
  }
  return NULL;
}

/* Each copy that was kept is reaped once. */
static void every_copy_is_reaped(struct mgd_machine *m, const uint64_t *shared, const struct worker *w) {
  int64_t kept = 0;
  int32_t slot = -1;
  for (int i = 0; i < SHARED; i++) {
    EXPECT_OK(mgd_source_close(m, shared[i]));
  }
  for (int i = 0; i < THREADS; i++) {
    kept += w[i].kept;
  }
  while (mgd_replica_reap(m, &slot) == MGD_OK) {
    kept--;
  }
  EXPECT_INT(kept, 0);
}

static void nothing_is_left_over(struct mgd_machine *m, const struct worker *w) {
  int64_t copies = 0, sum = 0;
  for (int i = 0; i < THREADS; i++) {
    copies += w[i].copies;
    sum += w[i].bytes;
  }
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_COPY], copies, sum, 0);
  EXPECT_INT(mgd_trace_new_object(m), copies + 1);
  for (int d = 0; d < 4; d++) {
    EXPECT_INT(usage_of(m, d).used, 0);
  }
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_threads: seed %" PRIu64 ", %" PRId64 " rounds in each of %d threads\n", seed, steps / 20, THREADS);
  (void)fflush(stdout);
  struct mgd_machine *m = new_machine(3, CAPACITY);
  struct mgd_clock *c = NULL;
  struct worker w[THREADS];
  pthread_t thread[THREADS];
  uint64_t shared[SHARED];
  for (int i = 0; i < SHARED; i++) {
    EXPECT_OK(mgd_source_open(m, &shared[i]));
  }
  EXPECT_OK(mgd_clock_create(2, &c));
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.bytes_per_ns = 1.0, .launch_ns = 1}));
  EXPECT_OK(mgd_clock_wiring_set_bus(c, 0, 1.0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, 0, 1, 0));
  EXPECT_OK(mgd_clock_wiring_join_bus(c, 0, -1, 0));
  for (int d = 0; d < 2; d++) {
    EXPECT_OK(mgd_clock_hold_set_capacity(c, d, 10 * THREADS));
  }
  for (int i = 0; i < THREADS; i++) {
    w[i] = (struct worker){.m = m, .c = c, .shared = shared, .random = seed + (uint64_t)i, .number = i, .rounds = steps / 20};
    EXPECT_INT(pthread_create(&thread[i], NULL, work, &w[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    EXPECT_INT(pthread_join(thread[i], NULL), 0);
  }
  every_copy_is_reaped(m, shared, w);
  nothing_is_left_over(m, w);
  int64_t elapsed = -1, now = -1;
  EXPECT_OK(mgd_clock_elapsed(c, &elapsed));
  for (int d = -1; d < 2; d++) {
    EXPECT_OK(mgd_clock_device_time(c, d, &now));
    EXPECT(now > 0 && now <= elapsed);
  }
  mgd_clock_destroy(c);
  mgd_machine_destroy(m);
  return 0;
}
