/* A link costs latency + bytes / bandwidth; links nobody described have defaults. */
#include <math.h>

#include "core/internal_machine.h"
#include "expect.h"

static int64_t cost(struct mgd_machine *m, int from, int to, int64_t bytes) {
  return (int64_t)mgd_link_estimate(&m->links[from][to], 1, bytes);
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
  struct mgd_link found = {0, 0.0};
  EXPECT_OK(mgd_link_get(m, 1, 2, &found));
  EXPECT_INT(found.latency_ns, 7);
  EXPECT(found.bytes_per_ns == 100.0);
  EXPECT_OK(mgd_link_get(m, 2, 1, &found));
  EXPECT_INT(found.latency_ns, 10000);
  EXPECT_CODE(mgd_link_get(m, 1, 3, &found), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_link_get(m, -1, 1, &found), MGD_E_NO_DEVICE);
  EXPECT_INT(found.latency_ns, 10000); /* after an error nothing is written */
  mgd_machine_destroy(m);
}

static void zero_means_instantly(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_link instant = {0, 0.0};
  EXPECT_OK(mgd_link_set(m, 0, 1, instant));
  EXPECT_INT(cost(m, 0, 1, INT64_MAX), 0);
  mgd_machine_destroy(m);
}

static void nonsense_is_refused_and_changes_nothing(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_link bad[] = {{-1, 1.0}, {0, -1.0}, {0, (double)NAN}, {0, (double)INFINITY}};
  const struct mgd_link good = {0, 1.0};
  for (size_t i = 0; i < 4; i++) {
    EXPECT_CODE(mgd_link_set(m, 0, 1, bad[i]), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_link_set(m, 1, 1, good), MGD_E_INVALID);
  EXPECT_CODE(mgd_link_set(m, 0, 2, good), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_link_set(m, -1, 1, good), MGD_E_NO_DEVICE);
  EXPECT_INT(cost(m, 0, 1, 0), 10000);
  mgd_machine_destroy(m);
}

int main(void) {
  defaults_are_those_documented();
  a_link_has_a_direction();
  zero_means_instantly();
  nonsense_is_refused_and_changes_nothing();
  return 0;
}
