/* Devices have ids in the order of arrival, unique names and capacities. */
#include <math.h>

#include "handles.h"

static void ids_follow_the_order_of_arrival(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  char name[32];
  EXPECT_INT(mgd_device_count(m), 4);
  EXPECT_OK(mgd_device_name(m, 3, name));
  EXPECT_TEXT(name, "sim:2");
  EXPECT_INT(usage_of(m, 3).capacity, MIB);
  mgd_machine_destroy(m);
}

static void bad_devices_are_refused_and_change_nothing(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  int id = 77;
  const char *const long_name = "0123456789012345678901234567890"; /* 31 bytes: the longest */
  EXPECT_CODE(mgd_device_add(m, "sim:0", MIB, &id), MGD_E_EXISTS);
  EXPECT_CODE(mgd_device_add(m, "cpu", MIB, &id), MGD_E_EXISTS);
  EXPECT_CODE(mgd_device_add(m, "", MIB, &id), MGD_E_INVALID);
  EXPECT_CODE(mgd_device_add(m, NULL, MIB, &id), MGD_E_INVALID);
  EXPECT_CODE(mgd_device_add(m, "x", -1, &id), MGD_E_INVALID);
  EXPECT_CODE(mgd_device_add(m, "01234567890123456789012345678901", MIB, &id), MGD_E_INVALID);
  EXPECT_INT(id, 77);
  EXPECT_INT(mgd_device_count(m), 2);
  EXPECT_OK(mgd_device_add(m, long_name, 0, &id));
  EXPECT_INT(id, 2);
  mgd_machine_destroy(m);
}

static void sixty_three_accelerators_are_the_most(void) {
  struct mgd_machine *m = new_machine(63, MIB);
  int id = 77;
  EXPECT_CODE(mgd_device_add(m, "one too many", MIB, &id), MGD_E_FULL);
  EXPECT_INT(mgd_device_count(m), MGD_MAX_DEVICES);
  mgd_machine_destroy(m);
}

static void strangers_are_not_found(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  int id = 77;
  char name[32] = "untouched";
  EXPECT_CODE(mgd_device_name(m, 2, name), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_device_name(m, -1, name), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_device_set_capacity(m, 2, MIB), MGD_E_NO_DEVICE);
  EXPECT_INT(id, 77);
  EXPECT_TEXT(name, "untouched");
  mgd_machine_destroy(m);
}

static void a_capacity_may_change_and_never_be_negative(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  EXPECT_OK(mgd_device_set_capacity(m, 1, 5 * MIB));
  EXPECT_CODE(mgd_device_set_capacity(m, 1, -1), MGD_E_INVALID);
  EXPECT_INT(usage_of(m, 1).capacity, 5 * MIB);
  EXPECT_OK(mgd_device_set_capacity(m, MGD_HOST, 3 * MIB));
  EXPECT_INT(usage_of(m, MGD_HOST).free, 3 * MIB);
  mgd_machine_destroy(m);
}

static void a_device_that_does_not_spill_keeps_its_storages(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *own = open_handle(m, 1, 60, 1), *guest = open_handle(m, 2, 40, 2),
                    *away = open_handle(m, 1, 50, 3);
  const int64_t full[MGD_MAX_DEVICES] = {0}, room[MGD_MAX_DEVICES] = {0, 99, 99};
  struct mgd_usage usage;
  struct plan p;
  int device = -7;
  spill(m, guest, 1);
  spill(m, away, MGD_HOST);
  EXPECT_OK(mgd_ledger_usage(m, 1, &usage));
  EXPECT(usage.spills);
  EXPECT_CODE(mgd_device_set_spills(m, 3, false), MGD_E_NO_DEVICE);
  EXPECT_OK(mgd_device_set_spills(m, 1, false));
  EXPECT_OK(mgd_ledger_usage(m, 1, &usage));
  EXPECT(!usage.spills);
  EXPECT_OK(plan_eviction(m, 1, 1000, room, &p)); /* the guest belongs to a device that does */
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 40, guest);
  carry_out(m, &p);
  EXPECT_CODE(plan_eviction(m, 1, 1, room, &p), MGD_E_ABSENT);
  EXPECT_INT(p.n, 0);
  EXPECT(!i_use(away, 4));
  EXPECT_CODE(acquire(m, &away, 1, full, &p, &device), MGD_E_BUSY);
  EXPECT_INT(device, 1);
  put_back(away, 1);
  restore(m, away); /* into room that is free */
  EXPECT_OK(mgd_device_set_spills(m, 1, true));
  EXPECT_OK(plan_eviction(m, 1, 1000, NULL, &p));
  EXPECT_INT(p.n, 2);
  carry_out(m, &p);
  close_handle(m, own);
  close_handle(m, guest);
  close_handle(m, away);
  mgd_machine_destroy(m);
}

static void a_speed_is_a_number_above_zero(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const double bad[] = {0.0, -1.0, (double)NAN, (double)INFINITY};
  struct mgd_share share;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    EXPECT_CODE(mgd_device_set_speed(m, 1, bad[i]), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_device_set_speed(m, 2, 1.0), MGD_E_NO_DEVICE);
  EXPECT_OK(mgd_place_share(m, 1, 0.0, &share));
  EXPECT(share.speed >= 1.0 && share.speed <= 1.0);
  EXPECT_OK(mgd_device_set_speed(m, 1, 2.5));
  EXPECT_OK(mgd_place_share(m, 1, 0.0, &share));
  EXPECT(share.speed >= 2.5 && share.speed <= 2.5);
  mgd_machine_destroy(m);
}

int main(void) {
  ids_follow_the_order_of_arrival();
  bad_devices_are_refused_and_change_nothing();
  sixty_three_accelerators_are_the_most();
  strangers_are_not_found();
  a_capacity_may_change_and_never_be_negative();
  a_device_that_does_not_spill_keeps_its_storages();
  a_speed_is_a_number_above_zero();
  return 0;
}
