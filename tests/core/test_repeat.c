/* The copy that is one too many is noticed, once for each call site. */
#include "core/internal_machine.h"
#include "expect.h"

/* A machine with two devices, sites 1 to 3, and this limit. */
static struct mgd_machine *limited(int64_t limit) {
  struct mgd_machine *m = new_machine(2, MIB);
  for (int32_t line = 1; line <= 3; line++) {
    const struct mgd_site site = {.file = "a.py", .function = "f", .line = line};
    uint32_t id;
    EXPECT_OK(mgd_site_intern(m, &site, &id));
  }
  EXPECT_OK(mgd_repeat_set_limit(m, limit));
  return m;
}

static struct mgd_repeat copy(struct mgd_machine *m, uint64_t object, int to, uint32_t site) {
  const struct mgd_event e = {.kind = MGD_EV_COPY, .object = object, .to = (int16_t)to, .site = site, .bytes = 10};
  struct mgd_repeat out;
  EXPECT_OK(mgd_repeat_add(m, &e, &out));
  return out;
}

static void the_copy_after_the_limit_is_one_too_many(void) {
  struct mgd_machine *m = limited(3);
  for (uint64_t i = 1; i <= 10; i++) {
    struct mgd_repeat r = copy(m, 5, 1, 1);
    EXPECT_INT(r.count, i);
    EXPECT_INT(r.bytes, 10 * i);
    EXPECT_INT(r.due, i == 4);
  }
  mgd_machine_destroy(m);
}

static void objects_and_devices_are_counted_apart(void) {
  struct mgd_machine *m = limited(2);
  for (int i = 1; i <= 2; i++) {
    EXPECT_INT(copy(m, 5, 1, 1).count, i);
    EXPECT_INT(copy(m, 5, 2, 1).count, i);
    EXPECT_INT(copy(m, 6, 1, 1).count, i);
  }
  EXPECT(copy(m, 6, 1, 1).due);
  mgd_machine_destroy(m);
}

static void one_object_on_every_device(void) {
  struct mgd_machine *m = new_machine(MGD_MAX_DEVICES - 1, MIB);
  for (uint64_t i = 1; i <= 40; i++) {
    for (int to = 0; to < MGD_MAX_DEVICES; to++) {
      EXPECT_INT(copy(m, 5, to, 0).count, i);
    }
  }
  mgd_machine_destroy(m);
}

static void a_step_counts_from_its_beginning(void) {
  struct mgd_machine *m = limited(2);
  for (int step = 0; step < 5; step++) {
    struct mgd_repeat r = copy(m, 5, 1, 1);
    EXPECT(!r.due);
    EXPECT_INT(r.stepped, step > 0);
    EXPECT_INT(copy(m, 5, 1, 1).count, 2);
    mgd_repeat_begin_step(m);
  }
  mgd_machine_destroy(m);
}

static void a_site_hears_of_it_once(void) {
  struct mgd_machine *m = limited(1);
  (void)copy(m, 5, 1, 1);
  EXPECT(copy(m, 5, 1, 1).due);
  (void)copy(m, 6, 1, 1);
  EXPECT(!copy(m, 6, 1, 1).due); /* another tensor, the same line */
  mgd_repeat_begin_step(m);
  (void)copy(m, 5, 1, 1);
  EXPECT(!copy(m, 5, 1, 1).due); /* another step */
  (void)copy(m, 7, 1, 1);
  EXPECT(copy(m, 7, 1, 3).due); /* another line */
  (void)copy(m, 8, 1, 0);
  EXPECT(copy(m, 8, 1, 0).due); /* a place that nobody knows is one place */
  mgd_machine_destroy(m);
}

static void nobody_is_not_counted(void) {
  struct mgd_machine *m = limited(1);
  for (int i = 0; i < 5; i++) {
    struct mgd_repeat r = copy(m, 0, 1, 1);
    EXPECT_INT(r.count, 0);
    EXPECT(!r.due);
  }
  mgd_machine_destroy(m);
}

static void a_limit_of_0_turns_it_off(void) {
  struct mgd_machine *m = limited(0);
  EXPECT_INT(mgd_repeat_limit(m), 0);
  for (uint64_t i = 1; i <= 40; i++) {
    EXPECT(!copy(m, 5, 1, 1).due);
  }
  EXPECT_OK(mgd_repeat_set_limit(m, INT64_MAX));
  EXPECT_INT(mgd_repeat_limit(m), INT64_MAX);
  EXPECT(!copy(m, 5, 1, 1).due);
  EXPECT_CODE(mgd_repeat_set_limit(m, -1), MGD_E_INVALID);
  EXPECT_INT(mgd_repeat_limit(m), INT64_MAX);
  mgd_machine_destroy(m);
  m = new_machine(1, MIB);
  EXPECT_INT(mgd_repeat_limit(m), 16);
  mgd_machine_destroy(m);
}

/* A step without end, in which new tensors never cease to come. */
static void a_busy_tensor_is_not_lost_among_many(void) {
  struct mgd_machine *m = limited(100);
  bool due = false;
  for (uint64_t i = 1; i <= 101; i++) {
    due = copy(m, 1, 1, 1).due;
    for (uint64_t once = 0; once < 500; once++) {
      EXPECT_INT(copy(m, 1000 * i + once, 2, 2).count, 1);
    }
  }
  EXPECT(due);
  mgd_machine_destroy(m);
}

static void what_is_forgotten_counts_from_1(void) {
  struct mgd_machine *m = limited(2);
  EXPECT_INT(copy(m, 1, 1, 1).count, 1);
  for (uint64_t other = 2; other < 100000; other++) {
    EXPECT_INT(copy(m, other, 1, 1).count, 1);
  }
  EXPECT_INT(copy(m, 1, 1, 1).count, 1);
  mgd_machine_destroy(m);
}

/* A set of slots may hold pairs that differ in the device alone. The hash keeps them apart, so they are put there. */
static void pairs_of_one_object_may_share_a_set(void) {
  struct mgd_machine *m = limited(3);
  struct mgd_repeats *r = &m->repeats;
  EXPECT_INT(copy(m, 5, 1, 1).count, 1);
  struct mgd_repeat_slot *set = r->slots + r->newest / MGD_REPEAT_WAYS * MGD_REPEAT_WAYS;
  for (int i = 0; i < MGD_REPEAT_WAYS; i++) {
    set[i] = (struct mgd_repeat_slot){.object = 5, .to = 2, .used = ++r->tick, .count = 3, .step = r->step};
    r->newest = (size_t)(&set[i] - r->slots);
  }
  EXPECT_OK(mgd_check(m));
  EXPECT_INT(copy(m, 5, 1, 1).count, 1);
  EXPECT_INT(copy(m, 5, 1, 1).count, 2);
  EXPECT_INT(set[0].to, 1); /* the oldest made room */
  EXPECT_INT(set[1].to, 2);
  mgd_machine_destroy(m);
}

static void nonsense_is_refused(void) {
  struct mgd_machine *m = limited(1);
  struct mgd_repeat out = {77, 77, false, false};
  const struct mgd_event wrong[] = {{.object = 1, .to = 3}, {.object = 1, .to = -1}, {.object = 1, .to = 1, .site = 4}, {.object = 1, .to = 1, .bytes = -1}};
  EXPECT_CODE(mgd_repeat_add(m, &wrong[0], &out), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_repeat_add(m, &wrong[1], &out), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_repeat_add(m, &wrong[2], &out), MGD_E_INVALID);
  EXPECT_CODE(mgd_repeat_add(m, &wrong[3], &out), MGD_E_INVALID);
  EXPECT_INT(out.count, 77);
  EXPECT_INT(copy(m, 1, 1, 1).count, 1);
  mgd_machine_destroy(m);
}

static void bytes_beyond_int64_are_no_longer_added(void) {
  struct mgd_machine *m = limited(1);
  const struct mgd_event most = {.object = 1, .to = 1, .bytes = INT64_MAX};
  struct mgd_repeat out;
  EXPECT_OK(mgd_repeat_add(m, &most, &out));
  EXPECT_OK(mgd_repeat_add(m, &most, &out));
  EXPECT_INT(out.count, 2);
  EXPECT_INT(out.bytes, INT64_MAX);
  mgd_machine_destroy(m);
}

/* Allocations of a machine are three, then comes the table. */
static void without_memory_nothing_is_counted(void) {
  const struct mgd_config config = {.fail_allocation = 4};
  const struct mgd_event e = {.object = 1, .to = 0};
  struct mgd_machine *m = NULL;
  struct mgd_repeat out = {77, 77, false, false};
  EXPECT_OK(mgd_machine_create(&config, &m));
  EXPECT_CODE(mgd_repeat_add(m, &e, &out), MGD_E_NOMEM);
  EXPECT_INT(out.count, 77);
  EXPECT_OK(mgd_check(m));
  EXPECT_OK(mgd_repeat_add(m, &e, &out));
  EXPECT_INT(out.count, 1);
  mgd_machine_destroy(m);
}

int main(void) {
  the_copy_after_the_limit_is_one_too_many();
  objects_and_devices_are_counted_apart();
  one_object_on_every_device();
  a_step_counts_from_its_beginning();
  a_site_hears_of_it_once();
  nobody_is_not_counted();
  a_limit_of_0_turns_it_off();
  a_busy_tensor_is_not_lost_among_many();
  what_is_forgotten_counts_from_1();
  pairs_of_one_object_may_share_a_set();
  nonsense_is_refused();
  bytes_beyond_int64_are_no_longer_added();
  without_memory_nothing_is_counted();
  return 0;
}
