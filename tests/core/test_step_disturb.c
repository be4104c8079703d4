/* Steps that are recorded or planned wrongly on purpose (testing.h): that costs time, and bytes are right.
 *
 * Usage: test_step_disturb [seed]
 */
#include "trainer.h"

/* What a plan says may be wrong; then it costs time. */
static void a_plan_may_lie(uint64_t seed) {
  struct device d = new_device(seed, 0);
  EXPECT_CODE(mgd_step_lie(d.m, 1, seed), MGD_E_ABSENT);
  train(&d);
  EXPECT(state(&d).logs);
  EXPECT_CODE(mgd_step_lie(d.m, 1, seed), MGD_E_ABSENT);
  for (int i = 0; i < 4; i++) { train(&d); }
  for (uint64_t lie = 1; lie <= 20; lie++) {
    EXPECT_OK(mgd_step_lie(d.m, 1, seed * 100 + lie));
    train(&d);
    train(&d);
    EXPECT(state(&d).follows);
  }
  give_up(&d);
}

/* What is recorded may be wrong: the plan is lost and found, and bytes are right. */
static void a_record_may_be_wrong(uint64_t seed) {
  struct device d = new_device(seed, 0);
  EXPECT_OK(mgd_step_disturb(d.m, seed));
  for (int i = 0; i < 60; i++) { train(&d); }
  EXPECT(state(&d).plans > 0 && state(&d).predicted > 0);
  EXPECT_OK(mgd_step_disturb(d.m, 0));
  for (int i = 0; i < 4; i++) { train(&d); }
  EXPECT(state(&d).follows);
  give_up(&d);
}

/* An operator that was invented may be one of the plan and end a period. Each eighth end asks for a plan, whatever
 * ended it. */
static void an_invented_operator_may_end_a_period(uint64_t seed) {
  enum { SIZE = 600000, STEP = 3 };
  struct device d = new_device(seed, 0);
  int invented = 0, i = 0;
  d.room = INT64_C(1) << 40;
  struct storage *two[] = {make(&d, SIZE), make(&d, SIZE)};
  EXPECT_OK(mgd_step_begin(d.m, 1));
  for (bool plans = false; !plans || i % STEP != 1; i++) {
    plans = i % STEP < 2 ? issue(&d, "use", &two[i % STEP], 1) : issue(&d, "none", NULL, 0);
  }
  EXPECT_OK(mgd_step_plan(d.m, 1, -SIZE / 2, 0, NULL)); /* "none" is its last operator */
  EXPECT_OK(mgd_step_disturb(d.m, seed));
  for (const int end = i + 20000; i < end; i++) {
    const struct mgd_step_state before = state(&d);
    const bool plans = i % STEP < 2 ? issue(&d, "use", &two[i % STEP], 1) : issue(&d, "none", NULL, 0);
    const int64_t laps = state(&d).laps - before.laps;
    EXPECT(plans == (before.laps % 8 + laps >= 8));
    invented += laps == 2 && before.laps % 8 == 7; /* the eighth end was not that of the operator itself */
  }
  EXPECT(state(&d).follows && state(&d).lost == 0);
  EXPECT(invented > 0);
  drop(&d, &two[0]);
  drop(&d, &two[1]);
  give_up(&d);
}

/* Without copies ahead of need, bytes come home when an operator needs them. The plan still makes others leave. */
static void copies_ahead_of_need_can_be_switched_off(uint64_t seed) {
  struct device d = new_device(seed, 0);
  for (int i = 0; i < 8; i++) { train(&d); }
  d.planned = d.needed = 0;
  train(&d);
  const int64_t planned = d.planned;
  EXPECT_INT(d.needed, 0);
  EXPECT_OK(mgd_step_fetch_ahead(d.m, false));
  d.planned = 0;
  train(&d);
  EXPECT(state(&d).follows && d.planned > 0 && d.planned < planned && d.needed > 0);
  EXPECT_OK(mgd_step_fetch_ahead(d.m, true));
  for (int i = 0; i < 2; i++) { train(&d); }
  d.planned = d.needed = 0;
  train(&d);
  EXPECT_INT(d.planned, planned);
  EXPECT_INT(d.needed, 0);
  give_up(&d);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_step_disturb: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  a_plan_may_lie(seed);
  a_record_may_be_wrong(seed);
  an_invented_operator_may_end_a_period(seed);
  copies_ahead_of_need_can_be_switched_off(seed);
  return 0;
}
