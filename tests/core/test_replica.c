/* The directory of replicas: one copy serves many uses, a write makes it stale,
 * and its bytes stand until it is reaped. Which copy goes first: test_replica_order.c. */
#include "replica.h"

#define TWO_TO(n) ((uint64_t)1 << (n))

/* ---- finding */

static void a_copy_is_found_by_source_device_and_extent(void) {
  struct mgd_machine *m = new_machine(3, 1000);
  uint64_t a = open_source(m), b = open_source(m);
  int32_t slot[] = {keep(m, a, 1, 5, 10), keep(m, a, 2, 5, 20), keep(m, a, 1, 6, 30), keep(m, b, 1, 5, 40)};
  EXPECT(a != b);
  EXPECT(is_kept(m, a, 1, 5, slot[0]));
  EXPECT(is_kept(m, a, 2, 5, slot[1]));
  EXPECT(is_kept(m, a, 1, 6, slot[2]));
  EXPECT(is_kept(m, b, 1, 5, slot[3]));
  EXPECT(!is_kept(m, a, 3, 5, -1));
  EXPECT(!is_kept(m, b, 1, 6, -1));
  EXPECT(!is_kept(m, a, 9, 5, -1)); /* nobody keeps anything on no device */
  EXPECT(!is_kept(m, a, -1, 5, -1));
  EXPECT_INT(replicas_on(m, 1), 80);
  EXPECT_INT(replicas_on(m, 2), 20);
  mgd_machine_destroy(m);
}

static void the_host_may_keep_copies_and_empty_ones_count(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m);
  int32_t host = keep(m, a, MGD_HOST, 0, INT64_MAX / 4), empty = keep(m, a, 1, 0, 0);
  EXPECT(is_kept(m, a, MGD_HOST, 0, host));
  EXPECT(is_kept(m, a, 1, 0, empty));
  EXPECT_INT(replicas_on(m, 1), 0);
  EXPECT_OK(mgd_source_close(m, a));
  expect_reaped(m, empty);
  expect_reaped(m, host);
  expect_reaped(m, -1);
  mgd_machine_destroy(m);
}

/* What is given back for nothing is room, until and after it is reaped. */
static void replicas_count_as_used_and_as_room(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m);
  struct mgd_ticket all = {0};
  add_bytes(m, 1, MGD_MANAGED, 300);
  int32_t slot = keep(m, a, 1, 0, 400);
  EXPECT_INT(usage_of(m, 1).used, 700);
  EXPECT_INT(usage_of(m, 1).free, 700);
  EXPECT_OK(mgd_admit_request(m, 1, 700, 0.0, 0, 0, &all));
  EXPECT_INT(usage_of(m, 1).used, 1400);
  EXPECT_OK(mgd_replica_drop(m, slot));
  EXPECT_INT(usage_of(m, 1).used, 1400); /* doomed, not gone */
  expect_reaped(m, slot);
  EXPECT_INT(usage_of(m, 1).used, 1000);
  EXPECT_INT(usage_of(m, 1).free, 0);
  EXPECT_INT(usage_of(m, 1).peak, 1400);
  mgd_machine_destroy(m);
}

/* ---- writing and closing */

static void a_write_dooms_the_copies_of_that_source_alone(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  uint64_t a = open_source(m), b = open_source(m), writes = 77;
  int32_t first = keep(m, a, 1, 0, 10), second = keep(m, a, 2, 0, 20), other = keep(m, b, 1, 0, 30);
  EXPECT_OK(mgd_source_written(m, a));
  EXPECT_OK(mgd_source_writes(m, a, &writes));
  EXPECT_INT(writes, 1);
  EXPECT(!is_kept(m, a, 1, 0, -1));
  EXPECT(!is_kept(m, a, 2, 0, -1));
  EXPECT(is_kept(m, b, 1, 0, other));
  EXPECT_INT(replicas_on(m, 1), 40);
  expect_reaped(m, second);
  expect_reaped(m, first);
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 30);
  EXPECT_INT(replicas_on(m, 2), 0);
  int32_t again = keep(m, a, 1, 0, 10);
  EXPECT(is_kept(m, a, 1, 0, again));
  mgd_machine_destroy(m);
}

static void what_was_written_while_it_was_copied_is_not_kept(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m), before = 77;
  int32_t slot = -7;
  EXPECT_OK(mgd_source_writes(m, a, &before));
  EXPECT_INT(before, 0);
  EXPECT_OK(mgd_source_written(m, a));
  EXPECT_CODE(mgd_replica_add(m, a, before, 1, 0, 10, &slot), MGD_E_STALE);
  EXPECT_CODE(mgd_replica_add(m, a, before + 2, 1, 0, 10, &slot), MGD_E_STALE); /* nor from the future */
  EXPECT_INT(slot, -7);
  EXPECT_INT(replicas_on(m, 1), 0);
  EXPECT_OK(mgd_replica_add(m, a, before + 1, 1, 0, 10, &slot));
  mgd_machine_destroy(m);
}

static void expect_unknown(struct mgd_machine *m, uint64_t source) {
  uint64_t writes = 77;
  int32_t slot = -7;
  EXPECT_CODE(mgd_source_close(m, source), MGD_E_INVALID);
  EXPECT_CODE(mgd_source_written(m, source), MGD_E_INVALID);
  EXPECT_CODE(mgd_source_writes(m, source, &writes), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_add(m, source, 0, 1, 0, 10, &slot), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_find(m, source, 1, 0, &slot), MGD_E_INVALID);
  EXPECT_INT(writes, 77);
  EXPECT_INT(slot, -7);
}

static void stale_and_invented_sources_are_refused(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  expect_unknown(m, 1); /* before there is any */
  uint64_t a = open_source(m), b = open_source(m);
  int32_t slot = keep(m, a, 1, 0, 10);
  EXPECT_OK(mgd_source_close(m, a));
  expect_unknown(m, a);
  expect_reaped(m, slot);
  uint64_t c = open_source(m); /* takes the slot of a */
  EXPECT(c != a && (uint32_t)c == (uint32_t)a);
  expect_unknown(m, a);
  expect_unknown(m, 0);
  expect_unknown(m, c + TWO_TO(32));
  expect_unknown(m, 3);   /* a slot that was never opened */
  expect_unknown(m, 999); /* a slot that there is not */
  expect_unknown(m, UINT64_MAX);
  EXPECT(!is_kept(m, c, 1, 0, -1));
  EXPECT_OK(mgd_source_written(m, b));
  mgd_machine_destroy(m);
}

/* A source that takes an old slot begins with no writes and no copies. */
static void a_source_in_an_old_slot_begins_anew(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m), writes = 77;
  EXPECT_OK(mgd_source_written(m, a));
  (void)keep(m, a, 1, 0, 10);
  EXPECT_OK(mgd_source_close(m, a));
  a = open_source(m);
  EXPECT_OK(mgd_source_writes(m, a, &writes));
  EXPECT_INT(writes, 0);
  EXPECT(!is_kept(m, a, 1, 0, -1));
  mgd_machine_destroy(m);
}

static void a_source_may_close_while_its_copies_wait_to_be_reaped(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m);
  int32_t first = keep(m, a, 1, 1, 10), second = keep(m, a, 1, 2, 20), third = keep(m, a, 1, 3, 30);
  EXPECT_OK(mgd_replica_drop(m, second));
  EXPECT_OK(mgd_source_close(m, a));
  EXPECT_INT(replicas_on(m, 1), 60);
  expect_reaped(m, second); /* in the order in which they were doomed, the newest of a source first */
  EXPECT_INT(replicas_on(m, 1), 40);
  expect_reaped(m, third);
  expect_reaped(m, first);
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 0);
  mgd_machine_destroy(m);
}

/* ---- slots */

static void dropping_is_for_slots_that_are_there_and_happens_once(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  EXPECT_CODE(mgd_replica_drop(m, 0), MGD_E_INVALID); /* before there is any */
  uint64_t a = open_source(m);
  int32_t first = keep(m, a, 1, 1, 10), second = keep(m, a, 1, 2, 20);
  EXPECT_CODE(mgd_replica_drop(m, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_drop(m, 999), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_drop(m, INT32_MAX), MGD_E_INVALID);
  EXPECT_OK(mgd_replica_drop(m, second + 1)); /* free, and stays so */
  EXPECT_OK(mgd_replica_drop(m, first));
  EXPECT_OK(mgd_replica_drop(m, first)); /* doomed, and stays so */
  expect_reaped(m, first);
  EXPECT_OK(mgd_replica_drop(m, first)); /* free again */
  expect_reaped(m, -1);
  EXPECT(is_kept(m, a, 1, 2, second));
  EXPECT_INT(replicas_on(m, 1), 20);
  mgd_machine_destroy(m);
}

/* The slot that was free longest is used first, so that a slot is not used again at once. */
static void reaped_slots_are_used_again(void) {
  struct mgd_machine *m = new_machine(1, 1000000);
  uint64_t a = open_source(m);
  int32_t highest = 0;
  for (int i = 0; i < 1000; i++) {
    int32_t slot = keep(m, a, 1, (uint64_t)i, 10);
    highest = slot > highest ? slot : highest;
    EXPECT_OK(mgd_replica_drop(m, slot));
    expect_reaped(m, slot);
    EXPECT_INT(slot, i % 64);
  }
  EXPECT_INT(highest, 63);
  mgd_machine_destroy(m);
}

static void there_is_no_end_of_sources_and_copies(void) {
  struct mgd_machine *m = new_machine(1, 1000000);
  uint64_t source[300];
  int32_t slot[300], reaped = -1;
  for (int i = 0; i < 300; i++) {
    source[i] = open_source(m);
    slot[i] = keep(m, source[i], 1, 0, 10);
  }
  for (int i = 0; i < 300; i++) {
    EXPECT(is_kept(m, source[i], 1, 0, slot[i]));
    EXPECT_OK(mgd_source_close(m, source[i]));
  }
  for (int i = 0; i < 300; i++) {
    EXPECT_OK(mgd_replica_reap(m, &reaped));
    EXPECT_INT(reaped, slot[i]);
  }
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 0);
  mgd_machine_destroy(m);
}

/* Parts of one storage are as many as there are views of it, and each is found at once. */
static void one_source_may_have_a_hundred_thousand_parts(void) {
  struct mgd_machine *m = new_machine(2, 100000000);
  enum { PARTS = MGD_DEBUG >= 2 ? 1000 : 100000 }; /* where each transition looks at all of them, fewer */
  uint64_t a = open_source(m);
  for (int i = 0; i < PARTS; i++) {
    EXPECT_INT(keep(m, a, 1 + i % 2, (uint64_t)i, 1), i);
  }
  for (int i = 0; i < PARTS; i++) {
    EXPECT(is_kept(m, a, 1 + i % 2, (uint64_t)i, i));
    EXPECT(!is_kept(m, a, 2 - i % 2, (uint64_t)i, -1));
  }
  EXPECT_OK(mgd_replica_make_room(m, 1, PARTS / 2, true)); /* the eldest first: the far end of the chain */
  EXPECT_OK(mgd_source_written(m, a));
  EXPECT_INT(replicas_on(m, 1) + replicas_on(m, 2), PARTS);
  int32_t slot = -1, reaped = 0;
  for (; mgd_replica_reap(m, &slot) == MGD_OK; reaped++) {
  }
  EXPECT_INT(reaped, PARTS);
  mgd_machine_destroy(m);
}

static void what_cannot_be_kept_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m);
  int32_t slot = -7, twin = keep(m, a, 1, 0, 10);
  EXPECT_CODE(mgd_replica_add(m, a, 0, 1, 0, -1, &slot), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_add(m, a, 0, 2, 0, 1, &slot), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_replica_add(m, a, 0, -1, 0, 1, &slot), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_replica_add(m, a, 0, 1, 0, 501, &slot), MGD_E_NO_ROOM);
  add_bytes(m, 1, MGD_FOREIGN, INT64_MAX - 20);
  EXPECT_CODE(mgd_replica_add(m, a, 0, 1, 0, 11, &slot), MGD_E_OVERFLOW);
  EXPECT_INT(slot, -7);
  EXPECT(is_kept(m, a, 1, 0, twin));
  expect_reaped(m, -1);
  EXPECT_OK(mgd_replica_add(m, a, 0, 1, 0, 10, &slot)); /* with the doomed one, all that an int64_t can say */
  EXPECT(usage_of(m, 1).used == INT64_MAX);
  mgd_machine_destroy(m);
}

/* Memory for bookkeeping may fail at each of the six times that it is asked for. */
static void the_nth_allocation_fails_and_the_next_try_succeeds(void) {
  for (int64_t n = 4; n <= 9; n++) { /* the first three make the machine */
    const struct mgd_config config = {.fail_allocation = n};
    struct mgd_machine *m = NULL;
    uint64_t source[65] = {0};
    int32_t slot = -7;
    int failures = 0, id = -1;
    EXPECT_OK(mgd_machine_create(&config, &m));
    EXPECT_OK(mgd_device_add(m, "sim:0", 100000, &id));
    for (int i = 0; i < 65; i++) {
      int code = mgd_source_open(m, &source[i]);
      EXPECT(code == MGD_OK || (code == MGD_E_NOMEM && source[i] == 0));
      failures += code != MGD_OK;
      EXPECT(code == MGD_OK || mgd_source_open(m, &source[i]) == MGD_OK);
      code = mgd_replica_add(m, source[i], 0, 1, 0, 10, &slot);
      EXPECT(code == MGD_OK || (code == MGD_E_NOMEM && replicas_on(m, 1) == 10 * i));
      failures += code != MGD_OK;
      EXPECT(code == MGD_OK || mgd_replica_add(m, source[i], 0, 1, 0, 10, &slot) == MGD_OK);
      EXPECT_INT(slot, i);
    }
    EXPECT_INT(failures, 1);
    EXPECT_INT(replicas_on(m, 1), 650);
    mgd_machine_destroy(m);
  }
}

/* ---- fault injection */

/* Finds one copy a thousand times, makes it again where it was lost; bit i tells about find i. */
static int shaken(uint64_t seed, bool lost[1000]) {
  struct mgd_machine *m = new_machine(1, 1000);
  uint64_t a = open_source(m);
  int32_t slot = keep(m, a, 1, 0, 10);
  int count = 0;
  EXPECT_OK(mgd_replica_shake(m, seed));
  for (int i = 0; i < 1000; i++) {
    lost[i] = !is_kept(m, a, 1, 0, slot);
    if (lost[i]) {
      expect_reaped(m, slot);
      slot = keep(m, a, 1, 0, 10);
      count++;
    }
  }
  EXPECT_OK(mgd_replica_shake(m, 0));
  for (int i = 0; i < 100; i++) {
    EXPECT(is_kept(m, a, 1, 0, slot));
  }
  mgd_machine_destroy(m);
  return count;
}

static void shaking_loses_one_find_in_four_and_repeats_by_seed(void) {
  bool first[1000], again[1000], other[1000];
  int lost = shaken(5, first);
  EXPECT(lost > 200 && lost < 300);
  EXPECT_INT(shaken(5, again), lost);
  (void)shaken(6, other);
  EXPECT(memcmp(first, again, sizeof first) == 0);
  EXPECT(memcmp(first, other, sizeof first) != 0);
  EXPECT_INT(shaken(0, first), 0);
}

int main(void) {
  a_copy_is_found_by_source_device_and_extent();
  the_host_may_keep_copies_and_empty_ones_count();
  replicas_count_as_used_and_as_room();
  a_write_dooms_the_copies_of_that_source_alone();
  what_was_written_while_it_was_copied_is_not_kept();
  stale_and_invented_sources_are_refused();
  a_source_in_an_old_slot_begins_anew();
  a_source_may_close_while_its_copies_wait_to_be_reaped();
  dropping_is_for_slots_that_are_there_and_happens_once();
  reaped_slots_are_used_again();
  there_is_no_end_of_sources_and_copies();
  one_source_may_have_a_hundred_thousand_parts();
  what_cannot_be_kept_changes_nothing();
  the_nth_allocation_fails_and_the_next_try_succeeds();
  shaking_loses_one_find_in_four_and_repeats_by_seed();
  return 0;
}
