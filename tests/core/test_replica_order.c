/* The bytes of replicas are bounded, and the least recently used go first. */
#include "replica.h"

static void the_least_recently_used_goes_first(void) {
  struct mgd_machine *m = new_machine(2, 200); /* keeps 100 */
  uint64_t a = open_source(m), b = open_source(m);
  int32_t one = keep(m, a, 1, 1, 40), two = keep(m, b, 1, 2, 40), far = keep(m, a, 2, 1, 100);
  EXPECT(is_kept(m, a, 1, 1, one)); /* now two is the eldest */
  int32_t three = keep(m, a, 1, 3, 40);
  EXPECT(!is_kept(m, b, 1, 2, two));
  EXPECT(is_kept(m, a, 1, 1, one));
  EXPECT(is_kept(m, a, 1, 3, three));
  EXPECT(is_kept(m, a, 1, 3, three)); /* the newest may be found again */
  int32_t large = keep(m, b, 1, 4, 100);
  EXPECT(is_kept(m, b, 1, 4, large));
  EXPECT(is_kept(m, a, 2, 1, far)); /* limits are each device's own */
  expect_reaped(m, two);
  expect_reaped(m, one);
  expect_reaped(m, three);
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 100);
  mgd_machine_destroy(m);
}

static void exactly_the_limit_fits_and_one_byte_more_does_not(void) {
  struct mgd_machine *m = new_machine(1, 201); /* half, rounded down */
  uint64_t a = open_source(m);
  int32_t slot = -7, small = keep(m, a, 1, 1, 1);
  EXPECT_CODE(mgd_replica_add(m, a, 0, 1, 2, 101, &slot), MGD_E_NO_ROOM);
  EXPECT_INT(slot, -7);
  EXPECT(is_kept(m, a, 1, 1, small)); /* nothing went for what does not fit anyway */
  int32_t full = keep(m, a, 1, 2, 100);
  expect_reaped(m, small);
  EXPECT(is_kept(m, a, 1, 2, full));
  mgd_machine_destroy(m);
}

static void another_threads_copy_of_the_same_bytes_replaces_the_older(void) {
  struct mgd_machine *m = new_machine(1, 200);
  uint64_t a = open_source(m);
  int32_t other = keep(m, a, 1, 2, 50), older = keep(m, a, 1, 1, 50), newer = keep(m, a, 1, 1, 50);
  EXPECT(older != newer);
  EXPECT(is_kept(m, a, 1, 1, newer));
  EXPECT(is_kept(m, a, 1, 2, other)); /* the twin's bytes were enough */
  expect_reaped(m, older);
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 100);
  mgd_machine_destroy(m);
}

static void a_lower_capacity_dooms_what_is_too_much(void) {
  struct mgd_machine *m = new_machine(2, 200);
  uint64_t a = open_source(m);
  int32_t one = keep(m, a, 1, 1, 30), two = keep(m, a, 1, 2, 30), three = keep(m, a, 1, 3, 40), far = keep(m, a, 2, 1, 100);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 200)); /* as it was */
  expect_reaped(m, -1);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 140)); /* exactly the rest */
  expect_reaped(m, one);
  expect_reaped(m, -1);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 139));
  expect_reaped(m, two);
  expect_reaped(m, -1);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 1000));
  int32_t four = keep(m, a, 1, 4, 460);
  EXPECT(is_kept(m, a, 1, 3, three));
  EXPECT_OK(mgd_device_set_capacity(m, 1, 0));
  expect_reaped(m, four);
  expect_reaped(m, three);
  EXPECT(is_kept(m, a, 2, 1, far));
  int32_t slot = -7;
  EXPECT_CODE(mgd_replica_add(m, a, 0, 1, 5, 1, &slot), MGD_E_NO_ROOM);
  mgd_machine_destroy(m);
}

/* So that the next copy finds room that was given back before. */
static void new_ones_leave_some_of_the_room_free(void) {
  struct mgd_machine *m = new_machine(1, 1600);
  uint64_t a = open_source(m);
  add_bytes(m, 1, MGD_MANAGED, 1000);
  int32_t one = keep(m, a, 1, 1, 200), two = keep(m, a, 1, 2, 200);
  expect_reaped(m, -1); /* 400 and the eighth that stays free are all the rest */
  int32_t three = keep(m, a, 1, 3, 1);
  expect_reaped(m, one);
  expect_reaped(m, -1);
  add_bytes(m, 1, MGD_MANAGED, 600); /* others fill the device: a 16th stays all the same */
  int32_t four = keep(m, a, 1, 4, 99);
  expect_reaped(m, two);
  expect_reaped(m, -1);
  int32_t five = keep(m, a, 1, 5, 500); /* however large */
  expect_reaped(m, three);
  expect_reaped(m, four);
  EXPECT(is_kept(m, a, 1, 5, five));
  mgd_machine_destroy(m);
}

/* Storages leave before the last 16th of the capacity does. */
static void what_was_used_last_goes_last(void) {
  struct mgd_machine *m = new_machine(1, 1600);
  uint64_t a = open_source(m);
  int32_t one = keep(m, a, 1, 1, 80), two = keep(m, a, 1, 2, 80), three = keep(m, a, 1, 3, 80);
  EXPECT_OK(mgd_replica_make_room(m, 1, 1000, false));
  expect_reaped(m, one);
  expect_reaped(m, two);
  expect_reaped(m, -1);
  EXPECT_CODE(mgd_replica_make_room(m, 1, 1, false), MGD_E_ABSENT);
  EXPECT_OK(mgd_replica_make_room(m, 1, 1, true));
  expect_reaped(m, three);
  mgd_machine_destroy(m);
}

/* The host's capacity is the largest int64_t at first. */
static void half_of_the_largest_capacity_is_a_limit(void) {
  struct mgd_machine *m = new_machine(0, 0);
  uint64_t a = open_source(m);
  int32_t slot = -7;
  EXPECT_CODE(mgd_replica_add(m, a, 0, MGD_HOST, 0, ((int64_t)1 << 62) + 1, &slot), MGD_E_NO_ROOM);
  (void)keep(m, a, MGD_HOST, 0, (int64_t)1 << 62);
  mgd_machine_destroy(m);
}

/* ---- room on demand */

/* Three copies of 30 bytes on the first device, the eldest first, and one on the second. */
static struct mgd_machine *crowded(int32_t slot[3]) {
  struct mgd_machine *m = new_machine(2, 200);
  uint64_t a = open_source(m);
  for (int i = 0; i < 3; i++) {
    slot[i] = keep(m, a, 1, (uint64_t)i, 30);
  }
  (void)keep(m, a, 2, 0, 30);
  return m;
}

static void expect_room(int64_t bytes, int gone) {
  int32_t slot[3];
  struct mgd_machine *m = crowded(slot);
  EXPECT_OK(mgd_replica_make_room(m, 1, bytes, true));
  for (int i = 0; i < gone; i++) {
    expect_reaped(m, slot[i]);
  }
  expect_reaped(m, -1);
  EXPECT_INT(replicas_on(m, 1), 30 * (3 - gone));
  EXPECT_INT(replicas_on(m, 2), 30);
  mgd_machine_destroy(m);
}

static void room_is_made_from_the_eldest_on_and_no_more_than_asked(void) {
  expect_room(0, 1); /* always one, or whoever asks again would ask for ever */
  expect_room(1, 1);
  expect_room(30, 1);
  expect_room(31, 2);
  expect_room(60, 2);
  expect_room(90, 3);
  expect_room(91, 3);
  expect_room(INT64_MAX, 3);
}

static void no_room_can_be_made_of_nothing(void) {
  int32_t slot[3];
  struct mgd_machine *m = crowded(slot);
  EXPECT_CODE(mgd_replica_make_room(m, 1, -1, true), MGD_E_INVALID);
  EXPECT_CODE(mgd_replica_make_room(m, 3, 1, true), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_replica_make_room(m, MGD_HOST, 1, true), MGD_E_ABSENT);
  EXPECT_OK(mgd_replica_make_room(m, 1, 1000, true));
  EXPECT_CODE(mgd_replica_make_room(m, 1, 1000, true), MGD_E_ABSENT); /* the doomed are nobody's any more */
  EXPECT_CODE(mgd_replica_make_room(m, 1, 0, true), MGD_E_ABSENT);
  mgd_machine_destroy(m);
}

/* Copies of no bytes free nothing; they go all the same, so that asking ends. */
static void empty_copies_go_when_more_is_asked_for_than_there_is(void) {
  struct mgd_machine *m = new_machine(1, 200);
  uint64_t a = open_source(m);
  int32_t one = keep(m, a, 1, 1, 10), two = keep(m, a, 1, 2, 0), three = keep(m, a, 1, 3, 0);
  EXPECT_OK(mgd_replica_make_room(m, 1, 11, true));
  expect_reaped(m, one);
  expect_reaped(m, two);
  expect_reaped(m, three);
  EXPECT_CODE(mgd_replica_make_room(m, 1, 11, true), MGD_E_ABSENT);
  mgd_machine_destroy(m);
}

int main(void) {
  the_least_recently_used_goes_first();
  exactly_the_limit_fits_and_one_byte_more_does_not();
  another_threads_copy_of_the_same_bytes_replaces_the_older();
  a_lower_capacity_dooms_what_is_too_much();
  new_ones_leave_some_of_the_room_free();
  what_was_used_last_goes_last();
  half_of_the_largest_capacity_is_a_limit();
  room_is_made_from_the_eldest_on_and_no_more_than_asked();
  no_room_can_be_made_of_nothing();
  empty_copies_go_when_more_is_asked_for_than_there_is();
  return 0;
}
