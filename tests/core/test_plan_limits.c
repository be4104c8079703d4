/* The planner at its limits: trades that take too many, plans made by hand, and memory that runs out. */
#include "plans.h"

#define MEGA INT64_C(1000000)

/* Adds an operator that uses one storage. */
static void add_operator(struct builder *b, int32_t storage, uint32_t flags) {
  const int32_t o = b->step.operators++;
  EXPECT(o < MOST);
  b->ns[o] = 100;
  b->uses[b->first_use[o]] = (struct mgd_plan_use){storage, flags};
  b->first_use[o + 1] = b->first_use[o] + 1;
}

/* ---- trades */

/* A large storage and seven small ones are made, then one that dies at once and lacks 10 MB of room; then all are read,
 * the large one last. The small ones leave instead of the large one if six of them are enough. */
static void a_trade_takes_six_at_most(void) {
  for (int64_t small = 1650000; small <= 1700000; small += 50000) {
    const bool enough = 6 * small >= 10 * MEGA;
    static struct builder b;
    struct mgd_plan *plan = NULL;
    begin(&b, 20 * MEGA + 7 * small);
    const int32_t large = add_storage(&b, 20 * MEGA, 16);
    add_operator(&b, large, MGD_PLAN_MADE);
    for (int32_t i = 0; i < 7; i++) { add_operator(&b, add_storage(&b, small, 9 + i), MGD_PLAN_MADE); }
    add_operator(&b, add_storage(&b, 10 * MEGA, 8), MGD_PLAN_MADE);
    for (int32_t i = 0; i < 7; i++) { add_operator(&b, large + 1 + i, MGD_PLAN_READ); }
    add_operator(&b, large, MGD_PLAN_READ);
    EXPECT_OK(mgd_plan_make(&b.step, &b.machine, 0, &plan));
    EXPECT_INT(plan->bytes_out, enough ? 6 * small : 20 * MEGA);
    EXPECT_INT(plan->bytes_in, plan->bytes_out);
    mgd_plan_free(plan);
  }
}

/* ---- plans made by hand */

/* x is made by 0 and read by 3, y made by 1 and read by 2; the room is enough for one. */
static void two_layers(struct builder *b) {
  begin(b, 19);
  const int32_t x = add_storage(b, 10, 3), y = add_storage(b, 10, 2);
  for (int32_t o = 0; o < 4; o++) { add_operator(b, o == 0 || o == 3 ? x : y, o < 2 ? MGD_PLAN_MADE : MGD_PLAN_READ); }
}

static int simulate(const struct builder *b, const struct mgd_plan *plan) {
  int64_t ns[3] = {-1, -1, -1};
  const int code = mgd_plan_simulate(&b->step, &b->machine, plan, 3, 0, ns);
  EXPECT(code != MGD_OK || (ns[0] == 420 && ns[1] == 420 && ns[2] == 420));
  return code;
}

static void a_plan_without_its_arrays_is_refused(void) {
  struct builder b;
  struct mgd_plan *plan = NULL;
  two_layers(&b);
  EXPECT_OK(mgd_plan_make(&b.step, &b.machine, 0, &plan));
  EXPECT_OK(simulate(&b, plan));
  struct mgd_plan part = *plan;
  part.first_action = NULL;
  EXPECT_CODE(simulate(&b, &part), MGD_E_INVALID);
  part = *plan;
  part.action = NULL;
  EXPECT_CODE(simulate(&b, &part), MGD_E_INVALID);
  EXPECT_OK(simulate(&b, plan));
  mgd_plan_free(plan);
}

/* A storage that has left cannot leave again, and one that is not alive has no bytes to come back. The first lap, in
 * which a missing storage is assumed to have been there, does not see either. */
static void what_is_away_does_not_leave_and_what_is_dead_does_not_return(void) {
  struct builder b;
  int64_t ns[1];
  begin(&b, 100);
  const int32_t kept = add_storage(&b, 10, -1), brief = add_storage(&b, 10, 1);
  add_operator(&b, kept, MGD_PLAN_READ);
  add_operator(&b, brief, MGD_PLAN_MADE);
  add_operator(&b, kept, MGD_PLAN_READ);
  int32_t first[] = {0, 0, 1, 2};
  struct mgd_plan_action actions[] = {{MGD_PLAN_LEAVE, kept}, {MGD_PLAN_FETCH, kept}, {MGD_PLAN_LEAVE, kept}};
  struct mgd_plan plan = {.operators = 3, .actions = 2, .first_action = first, .action = actions};
  EXPECT_OK(mgd_plan_simulate(&b.step, &b.machine, &plan, 1, 0, ns));
  first[2] = 2;
  first[3] = plan.actions = 3;
  actions[1] = actions[0]; /* "1: L0 L0  2: F0" */
  actions[2] = (struct mgd_plan_action){MGD_PLAN_FETCH, kept};
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, &plan, 1, 0, ns), MGD_E_INVALID);
  first[1] = first[2] = 0;
  first[3] = plan.actions = 1;
  actions[0] = (struct mgd_plan_action){MGD_PLAN_FETCH, brief}; /* "2: F1" */
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, &plan, 1, 0, ns), MGD_E_INVALID);
}

/* Bytes at both links without a limit: their sum is no number although no copy takes any time. */
static void the_sum_of_bytes_is_a_number(void) {
  struct builder b;
  struct mgd_plan *plan = NULL;
  two_layers(&b);
  b.machine.in.bytes_per_ns = b.machine.out.bytes_per_ns = 0.0;
  b.machine.room = INT64_MAX;
  b.storage[0].bytes = b.storage[1].bytes = INT64_MAX / 2 + 1;
  EXPECT_CODE(mgd_plan_make(&b.step, &b.machine, 0, &plan), MGD_E_OVERFLOW);
  EXPECT(!plan);
  b.storage[0].bytes = b.storage[1].bytes = INT64_MAX / 17;
  EXPECT_OK(mgd_plan_make(&b.step, &b.machine, 0, &plan));
  EXPECT_INT(plan->actions, 0);
  mgd_plan_free(plan);
}

/* ---- early writes */

/* A plan with memory of its own: "2: W0 W1  3: L0". Storage 0 is written by operator 0, storage 1 by none. */
static struct mgd_plan *written_late(struct builder *b) {
  begin(b, 100);
  const int32_t x = add_storage(b, 10, -1), y = add_storage(b, 10, -1);
  add_operator(b, x, MGD_PLAN_WRITTEN);
  for (int i = 0; i < 3; i++) { add_operator(b, y, MGD_PLAN_READ); }
  struct mgd_plan *plan = calloc(1, sizeof *plan);
  EXPECT(plan);
  *plan = (struct mgd_plan){.operators = 4, .actions = 3, .ns = 7};
  plan->first_action = calloc(5, sizeof *plan->first_action);
  plan->action = calloc(3, sizeof *plan->action);
  EXPECT(plan->first_action && plan->action);
  plan->first_action[3] = 2;
  plan->first_action[4] = 3;
  plan->action[0] = (struct mgd_plan_action){MGD_PLAN_WRITE, x};
  plan->action[1] = (struct mgd_plan_action){MGD_PLAN_WRITE, y};
  plan->action[2] = (struct mgd_plan_action){MGD_PLAN_LEAVE, x};
  return plan;
}

/* A storage that no operator writes is complete at any time: its write stays where the plan has it. */
static void a_write_of_what_none_writes_stays(void) {
  struct builder b;
  struct mgd_plan *plan = written_late(&b);
  EXPECT_PLAN(plan, "2: W0 W1  3: L0");
  EXPECT_OK(mgd_plan_early_write(&b.step, plan, 0));
  EXPECT_PLAN(plan, "1: W0  2: W1  3: L0");
  EXPECT_INT(plan->ns, 7);
  mgd_plan_free(plan);
}

static void without_memory_writes_stay(void) {
  struct builder b;
  struct mgd_plan *plan = written_late(&b);
  const struct mgd_plan before = *plan;
  int64_t n = 1;
  for (; mgd_plan_early_write(&b.step, plan, n) == MGD_E_NOMEM; n++) {
    EXPECT(plan->first_action == before.first_action && plan->action == before.action);
    EXPECT_PLAN(plan, "2: W0 W1  3: L0");
  }
  EXPECT_INT(n, 5);
  EXPECT_PLAN(plan, "1: W0  2: W1  3: L0");
  mgd_plan_free(plan);
}

int main(void) {
  a_trade_takes_six_at_most();
  a_plan_without_its_arrays_is_refused();
  what_is_away_does_not_leave_and_what_is_dead_does_not_return();
  the_sum_of_bytes_is_a_number();
  a_write_of_what_none_writes_stays();
  without_memory_writes_stay();
  return 0;
}
