/* A link costs latency + bytes / bandwidth; links nobody described have defaults. */
#include <math.h>

#include "expect.h"

static int64_t cost(struct mgd_machine *m, int from, int to, int64_t bytes) {
  int64_t ns = -1;
  EXPECT_OK(mgd_link_cost(m, from, to, bytes, &ns));
  return ns;
}

static void defaults_are_those_documented(void) {
  struct mgd_machine *m = new_machine(2, MIB);
  EXPECT_INT(cost(m, 0, 1, 12000), 10000 + 1000);
  EXPECT_INT(cost(m, 2, 0, 12000), 10000 + 1000);
  EXPECT_INT(cost(m, 1, 2, 25000), 10000 + 1000);
  EXPECT_INT(cost(m, 1, 1, 25000), 0);
  EXPECT_INT(cost(m, 0, 0, 25000), 0);
  mgd_machine_destroy(m);
}

static void a_link_has_a_direction(void) {
  struct mgd_machine *m = new_machine(2, MIB);
  const struct mgd_link fast = {.latency_ns = 7, .bytes_per_ns = 100.0};
  EXPECT_OK(mgd_link_set(m, 1, 2, fast));
  EXPECT_INT(cost(m, 1, 2, 1000), 17);
  EXPECT_INT(cost(m, 2, 1, 1000), 10040);
  mgd_machine_destroy(m);
}

static void zero_means_instantly_and_parts_of_a_ns_round_up(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_link instant = {0, 0.0}, slow = {0, 3.0};
  EXPECT_OK(mgd_link_set(m, 0, 1, instant));
  EXPECT_INT(cost(m, 0, 1, INT64_MAX), 0);
  EXPECT_OK(mgd_link_set(m, 0, 1, slow));
  EXPECT_INT(cost(m, 0, 1, 0), 0);
  EXPECT_INT(cost(m, 0, 1, 1), 1);
  EXPECT_INT(cost(m, 0, 1, 3), 1);
  EXPECT_INT(cost(m, 0, 1, 4), 2);
  mgd_machine_destroy(m);
}

static void nonsense_is_refused_and_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_link bad[] = {{-1, 1.0}, {0, -1.0}, {0, (double)NAN}, {0, (double)INFINITY}};
  const struct mgd_link good = {0, 1.0};
  int64_t ns = 77;
  for (size_t i = 0; i < 4; i++) {
    EXPECT_CODE(mgd_link_set(m, 0, 1, bad[i]), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_link_set(m, 1, 1, good), MGD_E_INVALID);
  EXPECT_CODE(mgd_link_set(m, 0, 2, good), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_link_set(m, -1, 1, good), MGD_E_NO_DEVICE);
  EXPECT_INT(cost(m, 0, 1, 0), 10000);
  EXPECT_CODE(mgd_link_cost(m, 0, 1, -1, &ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_link_cost(m, 0, 2, 1, &ns), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_link_cost(m, 5, 0, 1, &ns), MGD_E_NO_DEVICE);
  EXPECT_INT(ns, 77);
  mgd_machine_destroy(m);
}

static void a_time_beyond_int64_overflows(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_link crawl = {0, 1e-300}, late = {INT64_MAX, 1.0};
  int64_t ns = 77;
  EXPECT_OK(mgd_link_set(m, 0, 1, crawl));
  EXPECT_CODE(mgd_link_cost(m, 0, 1, MIB, &ns), MGD_E_OVERFLOW);
  EXPECT_OK(mgd_link_set(m, 0, 1, late));
  EXPECT_CODE(mgd_link_cost(m, 0, 1, 1, &ns), MGD_E_OVERFLOW);
  EXPECT_INT(ns, 77);
  EXPECT(cost(m, 0, 1, 0) == INT64_MAX);
  mgd_machine_destroy(m);
}

int main(void) {
  defaults_are_those_documented();
  a_link_has_a_direction();
  zero_means_instantly_and_parts_of_a_ns_round_up();
  nonsense_is_refused_and_changes_nothing();
  a_time_beyond_int64_overflows();
  return 0;
}
