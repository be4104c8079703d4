/* The ledger counts bytes by owner exactly, and cannot be made to lie. */
#include "replica.h"

static void bytes_are_counted_by_owner(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  add_bytes(m, 1, MGD_MANAGED, 300);
  (void)keep(m, open_source(m), 1, 0, 20);
  add_bytes(m, 1, MGD_FOREIGN, 1);
  add_bytes(m, 1, MGD_MANAGED, -100);
  struct mgd_usage u = usage_of(m, 1);
  EXPECT_INT(u.by_owner[MGD_MANAGED], 200);
  EXPECT_INT(u.by_owner[MGD_REPLICA], 20);
  EXPECT_INT(u.by_owner[MGD_RESERVED], 0);
  EXPECT_INT(u.by_owner[MGD_FOREIGN], 1);
  EXPECT_INT(u.used, 221);
  EXPECT_INT(u.free, 799); /* replicas are room */
  EXPECT_INT(u.peak, 321);
  EXPECT_INT(usage_of(m, 2).used, 0);
  mgd_machine_destroy(m);
}

static void the_peak_is_the_highest_use_since_its_reset(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  add_bytes(m, 1, MGD_MANAGED, 500);
  add_bytes(m, 1, MGD_MANAGED, -400);
  EXPECT_INT(usage_of(m, 1).peak, 500);
  EXPECT_OK(mgd_ledger_reset_peak(m, 1));
  EXPECT_INT(usage_of(m, 1).peak, 100);
  EXPECT_OK(mgd_ledger_observe(m, 1, 60, 7));
  EXPECT_INT(usage_of(m, 1).peak, 100);
  EXPECT_OK(mgd_ledger_observe(m, 1, 160, 7));
  EXPECT_INT(usage_of(m, 1).peak, 167);
  mgd_machine_destroy(m);
}

/* What a driver reports replaces what we counted; replicas and promises stay,
 * and what the driver counts of replicas is not counted twice. */
static void an_observation_replaces_managed_and_foreign(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  struct mgd_ticket ticket = {0};
  int32_t slot = keep(m, open_source(m), 1, 0, 5);
  EXPECT_OK(mgd_admit_request(m, 1, 40, 0.0, 0, 0, &ticket));
  EXPECT_OK(mgd_ledger_observe(m, 1, 100, 200));
  EXPECT_OK(mgd_ledger_observe(m, 1, 300, 1));
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_MANAGED], 295);
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_REPLICA], 5);
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_FOREIGN], 1);
  EXPECT_INT(usage_of(m, 1).used, 341);
  EXPECT_OK(mgd_replica_drop(m, slot));
  EXPECT_OK(mgd_ledger_observe(m, 1, 300, 1)); /* doomed bytes are allocated still */
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_MANAGED], 295);
  expect_reaped(m, slot);
  EXPECT_OK(mgd_ledger_observe(m, 1, 300, 1)); /* reaped, but somebody holds on to the tensor */
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_MANAGED], 300);
  EXPECT_INT(usage_of(m, 1).used, 341);
  mgd_machine_destroy(m);
}

/* A replica may be told of before the driver shows its bytes. */
static void fewer_bytes_than_the_replicas_are_none_of_tensors(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  (void)keep(m, open_source(m), 1, 0, 50);
  EXPECT_OK(mgd_ledger_observe(m, 1, 49, 0));
  EXPECT_INT(usage_of(m, 1).by_owner[MGD_MANAGED], 0);
  EXPECT_INT(usage_of(m, 1).used, 50);
  mgd_machine_destroy(m);
}

static void a_device_may_hold_more_than_its_capacity_and_free_is_then_zero(void) {
  struct mgd_machine *m = new_machine(1, 100);
  EXPECT_OK(mgd_ledger_observe(m, 1, 80, 90));
  EXPECT_INT(usage_of(m, 1).used, 170);
  EXPECT_INT(usage_of(m, 1).free, 0);
  mgd_machine_destroy(m);
}

static void nonsense_is_refused_and_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_usage u = {.capacity = 77};
  add_bytes(m, 1, MGD_MANAGED, 10);
  EXPECT_CODE(mgd_ledger_observe(m, 1, -1, 0), MGD_E_INVALID);
  EXPECT_CODE(mgd_ledger_observe(m, 1, 0, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_ledger_observe(m, 2, 1, 1), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_ledger_usage(m, -1, &u), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_ledger_reset_peak(m, 2), MGD_E_NO_DEVICE);
  EXPECT_INT(u.capacity, 77);
  EXPECT_INT(usage_of(m, 1).used, 10);
  EXPECT_INT(usage_of(m, 1).peak, 10);
  mgd_machine_destroy(m);
}

static void a_sum_beyond_int64_overflows_and_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, 100);
  add_bytes(m, 1, MGD_MANAGED, INT64_MAX - 5);
  EXPECT_CODE(mgd_ledger_observe(m, 1, INT64_MAX - 5, 6), MGD_E_OVERFLOW);
  (void)keep(m, open_source(m), 1, 0, 5);
  EXPECT(usage_of(m, 1).used == INT64_MAX);
  EXPECT_OK(mgd_ledger_observe(m, 1, INT64_MAX, 0)); /* the replica's 5 bytes are among them */
  EXPECT(usage_of(m, 1).used == INT64_MAX);
  EXPECT_CODE(mgd_ledger_observe(m, 1, INT64_MAX, 1), MGD_E_OVERFLOW);
  EXPECT_CODE(mgd_ledger_observe(m, 1, 6, INT64_MAX - 5), MGD_E_OVERFLOW);
  EXPECT(usage_of(m, 1).used == INT64_MAX);
  EXPECT_OK(mgd_ledger_observe(m, 1, INT64_MAX - 1, 1));
  mgd_machine_destroy(m);
}

/* What admission promised counts in that sum, and no driver knows of it. */
static void promises_and_observations_overflow_together(void) {
  struct mgd_machine *m = new_machine(1, INT64_MAX);
  struct mgd_ticket most = {0};
  EXPECT_OK(mgd_admit_request(m, 1, INT64_MAX - 5, 0.0, 0, 0, &most));
  EXPECT_CODE(mgd_ledger_observe(m, 1, 6, 0), MGD_E_OVERFLOW);
  EXPECT_CODE(mgd_ledger_observe(m, 1, 5, 1), MGD_E_OVERFLOW);
  EXPECT(usage_of(m, 1).used == INT64_MAX - 5);
  EXPECT_OK(mgd_ledger_observe(m, 1, 4, 1));
  mgd_machine_destroy(m);
}

int main(void) {
  bytes_are_counted_by_owner();
  the_peak_is_the_highest_use_since_its_reset();
  an_observation_replaces_managed_and_foreign();
  fewer_bytes_than_the_replicas_are_none_of_tensors();
  a_device_may_hold_more_than_its_capacity_and_free_is_then_zero();
  nonsense_is_refused_and_changes_nothing();
  a_sum_beyond_int64_overflows_and_changes_nothing();
  promises_and_observations_overflow_together();
  return 0;
}
