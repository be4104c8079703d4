/* The heuristic is the documented formula, can be replaced, and can be off. */
#include "expect.h"

static int64_t apply(struct mgd_machine *m, int64_t size) {
  int64_t out = -1;
  EXPECT_OK(mgd_heuristic_apply(m, size, &out));
  return out;
}

/* The expected numbers are Python's: size + int(1.5 * size ** 0.5). */
static void the_default_is_the_documented_formula(void) {
  struct mgd_machine *m = new_machine(0, 0);
  EXPECT_INT(apply(m, 0), 0);
  EXPECT_INT(apply(m, 1), 2);
  EXPECT_INT(apply(m, 2), 4);
  EXPECT_INT(apply(m, 100), 115);
  EXPECT_INT(apply(m, 1000), 1047);
  EXPECT_INT(apply(m, 999999), 1001498);
  EXPECT_INT(apply(m, 1000000), 1001500);
  EXPECT_INT(apply(m, (int64_t)1 << 30), 1073741824 + 49152);
  EXPECT_INT(apply(m, 123456789012345678), 123456789539391952);
  mgd_machine_destroy(m);
}

static void sizes_that_are_none_are_refused(void) {
  struct mgd_machine *m = new_machine(0, 0);
  int64_t out = 77;
  EXPECT_CODE(mgd_heuristic_apply(m, -1, &out), MGD_E_INVALID);
  EXPECT_CODE(mgd_heuristic_default(NULL, -1, &out), MGD_E_INVALID);
  EXPECT_CODE(mgd_heuristic_apply(m, INT64_MAX, &out), MGD_E_OVERFLOW);
  EXPECT_CODE(mgd_heuristic_default(NULL, INT64_MAX, &out), MGD_E_OVERFLOW);
  EXPECT_INT(out, 77);
  mgd_machine_destroy(m);
}

/* Calls back into the machine: possible only because no lock is held. */
static int add_devices(void *context, int64_t size, int64_t *out) {
  *out = size + mgd_device_count(context);
  return MGD_OK;
}

static int answer(void *context, int64_t size, int64_t *out) {
  (void)size;
  *out = *(int64_t *)context;
  return MGD_OK;
}

static int fail(void *context, int64_t size, int64_t *out) {
  (void)size;
  *out = 5;
  return *(int *)context;
}

static void a_callback_replaces_it_until_it_is_taken_back(void) {
  struct mgd_machine *m = new_machine(2, 0);
  EXPECT_OK(mgd_heuristic_set(m, add_devices, m));
  EXPECT_INT(apply(m, 100), 103);
  EXPECT_OK(mgd_heuristic_enable(m, false));
  EXPECT_INT(apply(m, 100), 100);
  EXPECT_OK(mgd_heuristic_enable(m, true));
  EXPECT_INT(apply(m, 100), 103);
  EXPECT_OK(mgd_heuristic_set(m, NULL, m));
  EXPECT_INT(apply(m, 100), 115);
  mgd_machine_destroy(m);
}

static void a_callback_that_fails_is_reported_as_such(void) {
  struct mgd_machine *m = new_machine(0, 0);
  int64_t out = 77, negative = -1, zero = 0;
  int codes[] = {MGD_E_CALLBACK, MGD_E_NOMEM, 12, MGD_E_OVERFLOW};
  for (size_t i = 0; i < 4; i++) {
    EXPECT_OK(mgd_heuristic_set(m, fail, &codes[i]));
    EXPECT_CODE(mgd_heuristic_apply(m, 1, &out), i < 3 ? MGD_E_CALLBACK : MGD_E_OVERFLOW);
  }
  EXPECT_OK(mgd_heuristic_set(m, answer, &negative));
  EXPECT_CODE(mgd_heuristic_apply(m, 1, &out), MGD_E_CALLBACK);
  EXPECT_INT(out, 77);
  EXPECT_OK(mgd_heuristic_set(m, answer, &zero));
  EXPECT_INT(apply(m, 1), 0);
  mgd_machine_destroy(m);
}

int main(void) {
  the_default_is_the_documented_formula();
  sizes_that_are_none_are_refused();
  a_callback_replaces_it_until_it_is_taken_back();
  a_callback_that_fails_is_reported_as_such();
  return 0;
}
