/* Reservations: first come first served per device, with deadlines. */
#include <math.h>

#include "expect.h"

#define ALL (~(mgd_mask)0)
#define FOREVER INT64_MAX

static struct mgd_ticket granted(struct mgd_machine *m, int device, int64_t bytes) {
  struct mgd_ticket t = {0};
  EXPECT_OK(mgd_admit_request(m, device, bytes, 0.0, 0, FOREVER, &t));
  EXPECT(t.id != 0);
  EXPECT_INT(t.device, device);
  EXPECT_INT(t.bytes, bytes);
  return t;
}

static struct mgd_ticket waiting(struct mgd_machine *m, int device, int64_t bytes, int64_t deadline) {
  struct mgd_ticket t = {0};
  EXPECT_CODE(mgd_admit_request(m, device, bytes, 0.0, 0, deadline, &t), MGD_E_WAIT);
  EXPECT(t.id != 0);
  return t;
}

static void a_reservation_holds_bytes_until_it_is_released(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket t = granted(m, 1, 60);
  EXPECT_INT(reserved_of(m, 1), 60);
  EXPECT_INT(usage_of(m, 1).free, 40);
  EXPECT_INT(usage_of(m, 1).peak, 60);
  EXPECT_OK(mgd_admit_poll(m, &t, 5));
  EXPECT_OK(mgd_admit_release(m, &t));
  EXPECT_INT(t.id, 0);
  EXPECT_INT(reserved_of(m, 1), 0);
  mgd_machine_destroy(m);
}

static void the_reserved_fraction_stays_free(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket t = {0};
  EXPECT_CODE(mgd_admit_request(m, 1, 91, 0.1, 0, FOREVER, &t), MGD_E_NO_ROOM);
  EXPECT_OK(mgd_admit_request(m, 1, 90, 0.1, 0, FOREVER, &t));
  EXPECT_OK(mgd_admit_release(m, &t));
  mgd_machine_destroy(m);
}

static void room_that_appears_makes_the_next_poll_succeed(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket first = granted(m, 1, 80), second = waiting(m, 1, 30, FOREVER);
  EXPECT_CODE(mgd_admit_poll(m, &second, 1), MGD_E_WAIT);
  EXPECT_INT(reserved_of(m, 1), 80);
  EXPECT_OK(mgd_admit_release(m, &first));
  EXPECT_INT(reserved_of(m, 1), 0); /* nobody is woken */
  EXPECT_OK(mgd_admit_poll(m, &second, 2));
  EXPECT_INT(reserved_of(m, 1), 30);
  mgd_machine_destroy(m);
}

/* Any bytes that come back count, also those of tensors and other libraries. */
static void room_may_come_from_the_ledger_or_a_larger_device(void) {
  struct mgd_machine *m = new_machine(1, 100);
  EXPECT_OK(mgd_ledger_observe(m, 1, 0, 100));
  struct mgd_ticket a = waiting(m, 1, 30, FOREVER), b = waiting(m, 1, 50, FOREVER);
  EXPECT_OK(mgd_ledger_observe(m, 1, 0, 70));
  EXPECT_OK(mgd_admit_poll(m, &a, 1));
  EXPECT_CODE(mgd_admit_poll(m, &b, 1), MGD_E_WAIT);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 150));
  EXPECT_OK(mgd_admit_poll(m, &b, 1));
  mgd_machine_destroy(m);
}

static void nobody_overtakes(void) {
  struct mgd_machine *m = new_machine(2, 100);
  struct mgd_ticket holder = granted(m, 1, 60);
  struct mgd_ticket large = waiting(m, 1, 90, FOREVER);
  struct mgd_ticket small = waiting(m, 1, 10, FOREVER); /* would fit, but came later */
  EXPECT_CODE(mgd_admit_poll(m, &small, 1), MGD_E_WAIT);
  struct mgd_ticket elsewhere = granted(m, 2, 10); /* another device, another queue */
  EXPECT_OK(mgd_admit_release(m, &holder));
  EXPECT_OK(mgd_admit_poll(m, &small, 1)); /* whoever asks first, the first in line is served too */
  EXPECT_INT(reserved_of(m, 1), 100);
  EXPECT_OK(mgd_admit_poll(m, &large, 1));
  EXPECT_OK(mgd_admit_release(m, &elsewhere));
  mgd_machine_destroy(m);
}

static void a_new_request_does_not_overtake_a_waiter_either(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 60), large = waiting(m, 1, 90, FOREVER);
  struct mgd_ticket late = {0};
  EXPECT_CODE(mgd_admit_request(m, 1, 10, 0.0, 0, 0, &late), MGD_E_DEADLINE); /* no time to queue */
  EXPECT_INT(late.id, 0);
  EXPECT_OK(mgd_admit_release(m, &large)); /* a waiter may give up */
  EXPECT_INT(large.id, 0);
  EXPECT_OK(mgd_admit_request(m, 1, 10, 0.0, 0, 0, &late));
  EXPECT_OK(mgd_admit_release(m, &holder));
  mgd_machine_destroy(m);
}

static void a_waiter_leaves_the_queue_from_any_place(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 100), t[4];
  for (int i = 0; i < 4; i++) {
    t[i] = waiting(m, 1, 40, FOREVER);
  }
  EXPECT_OK(mgd_admit_release(m, &t[1])); /* middle */
  EXPECT_OK(mgd_admit_release(m, &t[3])); /* last */
  EXPECT_OK(mgd_admit_release(m, &t[0])); /* first */
  EXPECT_OK(mgd_admit_release(m, &holder));
  EXPECT_OK(mgd_admit_poll(m, &t[2], 1));
  EXPECT_INT(reserved_of(m, 1), 40);
  mgd_machine_destroy(m);
}

static void a_deadline_ends_the_ticket(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 100), t = waiting(m, 1, 10, 50);
  EXPECT_CODE(mgd_admit_poll(m, &t, 49), MGD_E_WAIT);
  EXPECT_CODE(mgd_admit_poll(m, &t, 50), MGD_E_DEADLINE);
  EXPECT_INT(t.id, 0);
  EXPECT_CODE(mgd_admit_poll(m, &t, 50), MGD_E_INVALID);
  EXPECT_OK(mgd_admit_release(m, &holder));
  mgd_machine_destroy(m);
}

static void a_waiter_that_wakes_at_its_deadline_looks_once_more(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 100), t = waiting(m, 1, 10, 50);
  EXPECT_OK(mgd_admit_release(m, &holder));
  EXPECT_OK(mgd_admit_poll(m, &t, 70));
  mgd_machine_destroy(m);
}

static void who_is_late_holds_nobody_up(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 60);
  struct mgd_ticket large = waiting(m, 1, 90, 50), other = waiting(m, 1, 95, 50), small = waiting(m, 1, 10, FOREVER);
  EXPECT_CODE(mgd_admit_poll(m, &small, 49), MGD_E_WAIT);
  EXPECT_OK(mgd_admit_poll(m, &small, 50));
  EXPECT_CODE(mgd_admit_poll(m, &large, 50), MGD_E_DEADLINE);
  EXPECT_OK(mgd_admit_release(m, &other)); /* late, and released without a poll */
  EXPECT_OK(mgd_admit_release(m, &holder));
  EXPECT_INT(reserved_of(m, 1), 10);
  mgd_machine_destroy(m);
}

static void who_can_no_longer_be_served_holds_nobody_up(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 60), large = waiting(m, 1, 90, FOREVER), small = waiting(m, 1, 10, FOREVER);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 80));
  EXPECT_OK(mgd_admit_poll(m, &small, 1));
  EXPECT_CODE(mgd_admit_poll(m, &large, 1), MGD_E_WAIT);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 200));
  EXPECT_OK(mgd_admit_poll(m, &large, 1));
  EXPECT_OK(mgd_admit_release(m, &holder));
  mgd_machine_destroy(m);
}

/* The middle one can never be served any more; the first still can, and waits. */
static void who_holds_nobody_up_lets_nobody_past_another(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket holder = granted(m, 1, 60), first = waiting(m, 1, 70, FOREVER), middle = waiting(m, 1, 90, FOREVER);
  struct mgd_ticket last = waiting(m, 1, 10, FOREVER);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 80));
  EXPECT_CODE(mgd_admit_poll(m, &last, 1), MGD_E_WAIT);
  EXPECT_OK(mgd_admit_release(m, &first));
  EXPECT_OK(mgd_admit_poll(m, &last, 1));
  EXPECT_OK(mgd_admit_release(m, &middle));
  EXPECT_OK(mgd_admit_release(m, &holder));
  mgd_machine_destroy(m);
}

/* ---- an object: choosing and reserving in one step */

static void objects_never_take_the_same_bytes(void) {
  struct mgd_machine *m = new_machine(2, 100);
  const struct mgd_object_request r = {60, true, ALL, 0.1};
  struct mgd_ticket t[3] = {{0}};
  enum mgd_reason why[3];
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(mgd_admit_object(m, &r, 0, &t[i], &why[i]));
    EXPECT_INT(t[i].bytes, 60);
  }
  EXPECT_INT(t[0].device, 1);
  EXPECT_INT(t[1].device, 2);
  EXPECT(why[1] == MGD_WHY_DISPERSED);
  EXPECT_INT(t[2].device, MGD_HOST); /* the host's answer needs no ticket */
  EXPECT_INT(t[2].id, 0);
  EXPECT(why[2] == MGD_WHY_NO_ROOM);
  EXPECT_OK(mgd_admit_release(m, &t[0]));
  EXPECT_OK(mgd_admit_release(m, &t[1]));
  mgd_machine_destroy(m);
}

static void an_object_passes_by_devices_where_somebody_waits(void) {
  struct mgd_machine *m = new_machine(2, 100);
  struct mgd_ticket holder = granted(m, 1, 20), large = waiting(m, 1, 90, 50), t = {0};
  enum mgd_reason why;
  add_bytes(m, 2, MGD_MANAGED, 50); /* fuller than device 1 */
  const struct mgd_object_request r = {10, true, ALL, 0.0}, there = {10, true, 1u << 1, 0.0};
  EXPECT_OK(mgd_admit_object(m, &r, 1, &t, &why));
  EXPECT_INT(t.device, 2);
  EXPECT_OK(mgd_admit_release(m, &t));
  EXPECT_OK(mgd_admit_object(m, &there, 1, &t, &why));
  EXPECT_INT(t.device, MGD_HOST);
  EXPECT_OK(mgd_admit_object(m, &there, 50, &t, &why)); /* the waiter is late now */
  EXPECT_INT(t.device, 1);
  EXPECT_CODE(mgd_admit_poll(m, &large, 50), MGD_E_DEADLINE);
  EXPECT_OK(mgd_admit_release(m, &holder));
  mgd_machine_destroy(m);
}

/* ---- what goes wrong */

static void nonsense_is_refused_and_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket t = {.id = 77};
  enum mgd_reason why = MGD_WHY_REQUESTED;
  const struct mgd_object_request bad = {-1, true, ALL, 0.0};
  EXPECT_CODE(mgd_admit_request(m, 1, -1, 0.0, 0, 1, &t), MGD_E_INVALID);
  EXPECT_CODE(mgd_admit_request(m, 1, 1, 1.0, 0, 1, &t), MGD_E_INVALID);
  EXPECT_CODE(mgd_admit_request(m, 1, 1, -0.5, 0, 1, &t), MGD_E_INVALID);
  EXPECT_CODE(mgd_admit_request(m, 1, 1, (double)NAN, 0, 1, &t), MGD_E_INVALID);
  EXPECT_CODE(mgd_admit_request(m, 2, 1, 0.0, 0, 1, &t), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_admit_request(m, 1, 101, 0.0, 0, 1, &t), MGD_E_NO_ROOM);
  EXPECT_CODE(mgd_admit_object(m, &bad, 0, &t, &why), MGD_E_INVALID);
  EXPECT_INT(t.id, 77);
  EXPECT_INT(usage_of(m, 1).used, 0);
  mgd_machine_destroy(m);
}

static void stale_and_invented_tickets_are_recognised(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_ticket invented[] = {{.id = 0}, {.id = 1}, {.id = 17}, {.id = UINT64_MAX}};
  for (size_t i = 0; i < 4; i++) {
    EXPECT_CODE(mgd_admit_poll(m, &invented[i], 0), MGD_E_INVALID);
    EXPECT_CODE(mgd_admit_release(m, &invented[i]), MGD_E_INVALID);
  }
  struct mgd_ticket t = granted(m, 1, 60), copy = t;
  EXPECT_OK(mgd_admit_release(m, &t));
  EXPECT_CODE(mgd_admit_release(m, &copy), MGD_E_INVALID);
  struct mgd_ticket next = granted(m, 1, 70); /* takes the same slot */
  EXPECT_CODE(mgd_admit_poll(m, &copy, 0), MGD_E_INVALID);
  EXPECT_CODE(mgd_admit_release(m, &copy), MGD_E_INVALID);
  EXPECT_INT(reserved_of(m, 1), 70);
  EXPECT_OK(mgd_admit_release(m, &next));
  mgd_machine_destroy(m);
}

/* Slots are allocated in powers of two from 16 on: a hundred tickets grow them
 * four times, and each growth may fail without harm. */
static void running_out_of_host_memory_is_an_answer(bool objects) {
  for (int64_t n = 4; n <= 7; n++) {
    struct mgd_machine *m = NULL;
    const struct mgd_config config = {.fail_allocation = n};
    struct mgd_ticket t[100] = {{0}};
    const struct mgd_object_request r = {1, true, ALL, 0.0};
    enum mgd_reason why = MGD_WHY_NONE;
    int id, failures = 0;
    EXPECT_OK(mgd_machine_create(&config, &m));
    EXPECT_OK(mgd_device_add(m, "sim:0", 1000, &id));
    for (int i = 0; i < 100; i++) {
      int code = objects ? mgd_admit_object(m, &r, 0, &t[i], &why) : mgd_admit_request(m, 1, 1, 0.0, 0, 1, &t[i]);
      EXPECT(code == MGD_OK || (code == MGD_E_NOMEM && t[i].id == 0));
      failures += code == MGD_E_NOMEM;
    }
    EXPECT_INT(failures, 1);
    EXPECT_INT(reserved_of(m, 1), 99);
    for (int i = 0; i < 100; i++) {
      EXPECT(t[i].id == 0 || mgd_admit_release(m, &t[i]) == MGD_OK);
    }
    EXPECT_INT(reserved_of(m, 1), 0);
    mgd_machine_destroy(m);
  }
}

int main(void) {
  a_reservation_holds_bytes_until_it_is_released();
  the_reserved_fraction_stays_free();
  room_that_appears_makes_the_next_poll_succeed();
  room_may_come_from_the_ledger_or_a_larger_device();
  nobody_overtakes();
  a_new_request_does_not_overtake_a_waiter_either();
  a_waiter_leaves_the_queue_from_any_place();
  a_deadline_ends_the_ticket();
  a_waiter_that_wakes_at_its_deadline_looks_once_more();
  who_is_late_holds_nobody_up();
  who_can_no_longer_be_served_holds_nobody_up();
  who_holds_nobody_up_lets_nobody_past_another();
  objects_never_take_the_same_bytes();
  an_object_passes_by_devices_where_somebody_waits();
  nonsense_is_refused_and_changes_nothing();
  stale_and_invented_tickets_are_recognised();
  running_out_of_host_memory_is_an_answer(false);
  running_out_of_host_memory_is_an_answer(true);
  return 0;
}
