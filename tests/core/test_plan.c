/* Plans: exact ones for steps made by hand, and for random steps that every action may be done and nothing is lost.
 *
 * Each plan's layout gives bytes that are there at once addresses that are apart.
 *
 * Usage: test_plan [seed] [steps]; steps / 500 random steps are planned.
 */
#include <math.h>

#include "core/planner/plan_layout.h"
#include "plans.h"

#define MB INT64_C(1000000)

/* ---- steps */

static int32_t add_operator(struct builder *b, int64_t ns) {
  b->ns[b->step.operators] = ns;
  b->first_use[b->step.operators + 1] = b->first_use[b->step.operators];
  return b->step.operators++;
}

/* Of the operator that was added last. */
static void add_use(struct builder *b, int32_t storage, uint32_t flags) {
  b->uses[b->first_use[b->step.operators]++] = (struct mgd_plan_use){storage, flags};
}

static struct mgd_plan *plan_of(const struct builder *b) {
  struct mgd_plan *plan = NULL;
  EXPECT_OK(mgd_plan_make(&b->step, &b->machine, 0, &plan));
  return plan;
}

/* ---- an independent check: contents have numbers, and each read must find the newest */

enum where { UNKNOWN, HOME, AWAY };

struct checker {
  const struct builder *b;
  enum where where[MOST];
  int64_t newest[MOST], here[MOST], on_host[MOST]; /* contents */
  int64_t used;
  bool is_awaited[MOST]; /* copied to the host, and did not leave since */
  int lap;
  const struct mgd_layout *layout; /* of the plan; checked in the last lap */
  bool is_early;                   /* what is fetched may have its address before */
};

static int64_t aligned(int64_t bytes) {
  return (bytes + MGD_PLACE_ALIGNMENT - 1) / MGD_PLACE_ALIGNMENT * MGD_PLACE_ALIGNMENT;
}

/* Whether what is home during the operator lies apart, inside the block, and nothing else has an address. */
static const char *find_overlap(const struct checker *c, int32_t o) {
  for (int32_t s = 0; s < c->b->step.storages; s++) {
    const int64_t at = mgd_plan_layout_offset(c->layout, s, o), bytes = aligned(c->b->storage[s].bytes);
    if (at < 0 && c->b->storage[s].bytes > 0 && c->where[s] == HOME) { return "no address for what is home"; }
    if (at >= 0 && !c->is_early && c->where[s] != HOME) { return "an address for what is away"; }
    if (at < 0) { continue; }
    if (at % MGD_PLACE_ALIGNMENT || at + bytes > c->layout->height) { return "an address outside of the block"; }
    for (int32_t t = 0; t < s; t++) {
      const int64_t other = mgd_plan_layout_offset(c->layout, t, o);
      if (other >= 0 && at < other + aligned(c->b->storage[t].bytes) && other < at + bytes) { return "an overlap"; }
    }
  }
  return NULL;
}

static const char *come_home(struct checker *c, int32_t s) {
  c->where[s] = HOME;
  c->used += c->b->storage[s].bytes;
  return c->lap > 1 && c->used > c->b->machine.room ? "more than the room" : NULL;
}

static const char *do_action(struct checker *c, struct mgd_plan_action action, int *last_kind) {
  const int32_t s = action.storage;
  if (action.kind < *last_kind) {
    return "actions before an operator out of order";
  }
  *last_kind = action.kind;
  if (c->where[s] == UNKNOWN) {
    c->where[s] = action.kind == MGD_PLAN_FETCH ? AWAY : HOME;
    c->used += action.kind == MGD_PLAN_FETCH ? 0 : c->b->storage[s].bytes;
  }
  if ((c->where[s] == HOME) == (action.kind == MGD_PLAN_FETCH)) {
    return "an action on bytes that are elsewhere";
  }
  switch (action.kind) {
    case MGD_PLAN_WRITE:
      c->on_host[s] = c->here[s];
      c->is_awaited[s] = true;
      return NULL;
    case MGD_PLAN_LEAVE:
      c->where[s] = AWAY;
      c->is_awaited[s] = false;
      c->used -= c->b->storage[s].bytes;
      return c->lap > 0 && c->on_host[s] != c->newest[s] ? "left without a good copy" : NULL;
    default:
      c->here[s] = c->on_host[s];
      return come_home(c, s);
  }
}

static const char *do_use(struct checker *c, const struct mgd_plan_use *use, int64_t *content) {
  const int32_t s = use->storage;
  const char *wrong = NULL;
  if (use->flags & MGD_PLAN_MADE) {
    if (c->where[s] == HOME) {
      return "made twice";
    }
    wrong = come_home(c, s);
  } else if (c->where[s] == UNKNOWN) {
    (void)come_home(c, s);
  } else if (c->where[s] == AWAY) {
    return "used while it is away";
  }
  if ((use->flags & MGD_PLAN_READ) && c->lap > 0 && c->here[s] != c->newest[s]) {
    return "read what is lost";
  }
  if (use->flags & (MGD_PLAN_WRITTEN | MGD_PLAN_MADE)) {
    c->newest[s] = c->here[s] = ++*content;
    wrong = c->is_awaited[s] ? "copied for nothing" : wrong;
  }
  return wrong;
}

static const char *do_operator(struct checker *c, const struct mgd_plan *plan, int32_t o, int64_t *content) {
  int last_kind = MGD_PLAN_WRITE;
  const char *wrong = NULL;
  for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1] && !wrong; i++) {
    wrong = do_action(c, plan->action[i], &last_kind);
  }
  for (int32_t k = c->b->first_use[o]; k < c->b->first_use[o + 1] && !wrong; k++) {
    wrong = do_use(c, &c->b->uses[k], content);
  }
  if (c->layout && c->lap == 3 && !wrong) { wrong = find_overlap(c, o); }
  for (int32_t s = 0; s < c->b->step.storages; s++) {
    if (c->b->storage[s].dies == o) {
      c->used -= c->where[s] == HOME ? c->b->storage[s].bytes : 0;
      c->where[s] = AWAY;
      wrong = c->is_awaited[s] ? "copied for nothing" : wrong;
      c->is_awaited[s] = false;
      c->on_host[s] = c->here[s] = -1;
    }
  }
  return wrong;
}

/* What is wrong with the plan in the host's order; NULL: nothing. The first step finds out what was home before. */
static const char *find_fault(const struct builder *b, const struct mgd_plan *plan, const struct mgd_layout *layout,
                              bool is_early) {
  static struct checker c;
  memset(&c, 0, sizeof c);
  c.b = b;
  c.layout = layout;
  c.is_early = is_early;
  int64_t content = 0, bytes[3] = {0};
  for (c.lap = 0; c.lap < 4; c.lap++) {
    for (int32_t o = 0; o < b->step.operators; o++) {
      const char *wrong = do_operator(&c, plan, o, &content);
      if (wrong) {
        return wrong;
      }
    }
  }
  for (int32_t i = 0; i < plan->actions; i++) {
    bytes[plan->action[i].kind] += b->storage[plan->action[i].storage].bytes;
  }
  return bytes[MGD_PLAN_WRITE] != plan->bytes_out || bytes[MGD_PLAN_FETCH] != plan->bytes_in ? "wrong sums" : NULL;
}

static void expect_valid(const struct builder *b, const struct mgd_plan *plan) {
  struct mgd_layout *layout = NULL;
  struct mgd_plan *early = NULL;
  EXPECT_OK(mgd_plan_layout_make(&b->step, plan, 0, NULL, 0, false, 0, &layout));
  const char *wrong = find_fault(b, plan, layout, false);
  EXPECT_TEXT(wrong ? wrong : "", "");
  mgd_plan_layout_free(layout);
  EXPECT_OK(mgd_plan_early_leave(&b->step, plan, 0, &early));
  wrong = find_fault(b, early, NULL, false);
  EXPECT_TEXT(wrong ? wrong : "", "");
  mgd_plan_free(early);
}

/* ---- by hand */

/* Two layers: x is made by 0 and read by 3, y made by 1 and read by 2. */
static void two_layers(struct builder *b, int64_t room) {
  begin(b, room);
  const int32_t x = add_storage(b, 10, 3), y = add_storage(b, 10, 2);
  for (int32_t o = 0; o < 4; o++) {
    (void)add_operator(b, 100);
    add_use(b, o == 0 || o == 3 ? x : y, o < 2 ? MGD_PLAN_MADE : MGD_PLAN_READ);
  }
}

static void what_fits_stays(void) {
  struct builder b;
  int64_t ns[2];
  two_layers(&b, 20);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "");
  EXPECT_INT(plan->ns, 400);
  EXPECT_INT(plan->ideal_ns, 400);
  EXPECT_INT(plan->bytes_in + plan->bytes_out, 0);
  EXPECT_OK(mgd_plan_simulate(&b.step, &b.machine, plan, 2, 0, ns));
  EXPECT_INT(ns[0], 400);
  EXPECT_INT(ns[1], 400);
  mgd_plan_free(plan);
  mgd_plan_free(NULL);
}

/* x leaves after operator 0, and operator 1 waits 10 ns until it has. It comes back when y is dead, and operator 3
 * waits for it. */
static void what_does_not_fit_leaves_and_comes_back(void) {
  struct builder b;
  int64_t ns[2];
  two_layers(&b, 19);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "1: W0 L0  3: F0");
  EXPECT_INT(plan->ns, 420);
  EXPECT_INT(plan->ideal_ns, 400);
  EXPECT_INT(plan->bytes_in, 10);
  EXPECT_INT(plan->bytes_out, 10);
  expect_valid(&b, plan);
  EXPECT_OK(mgd_plan_simulate(&b.step, &b.machine, plan, 2, 0, ns));
  EXPECT_INT(ns[0], 420);
  EXPECT_INT(ns[1], 420);
  mgd_plan_free(plan);
}

/* Operators that use none of them give the copies time: nothing waits. The host does what stands before 3 when 2
 * starts, and the copy begins when y has gone. */
static void copies_run_beside_operators(void) {
  struct builder b;
  begin(&b, 15);
  const int32_t x = add_storage(&b, 10, 4), y = add_storage(&b, 10, 2);
  for (int32_t o = 0; o < 5; o++) {
    (void)add_operator(&b, 100);
    if (o == 0 || o == 4) {
      add_use(&b, x, o == 0 ? MGD_PLAN_MADE : MGD_PLAN_READ);
    } else if (o == 2) {
      add_use(&b, y, MGD_PLAN_MADE);
    }
  }
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "1: W0 L0  3: F0");
  EXPECT_INT(plan->ns, 500);
  mgd_plan_free(plan);
  b.storage[y].bytes = 5;
  plan = plan_of(&b);
  EXPECT_PLAN(plan, "");
  mgd_plan_free(plan);
}

/* Parameters that nobody writes have a copy on the host for good, and are not written to it again. */
static void what_is_only_read_is_not_written_back(void) {
  struct builder b;
  begin(&b, 20);
  for (int32_t s = 0; s < 3; s++) {
    (void)add_storage(&b, 10, -1);
  }
  for (int32_t o = 0; o < 3; o++) {
    (void)add_operator(&b, 100);
    add_use(&b, o, MGD_PLAN_READ);
  }
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_INT(plan->bytes_out, 0);
  EXPECT_INT(plan->bytes_in, 30);
  EXPECT_PLAN(plan, "0: L2 F1  1: L0 F2  2: L1 F0"); /* one more than must, and nobody waits */
  EXPECT_INT(plan->ns, 300);
  expect_valid(&b, plan);
  mgd_plan_free(plan);
  b.uses[0].flags = MGD_PLAN_WRITTEN; /* it stays, or is written once a step */
  plan = plan_of(&b);
  EXPECT(plan->bytes_out <= 10);
  expect_valid(&b, plan);
  mgd_plan_free(plan);
}

/* A storage that operator 3 makes, and that dies after operator 1 of the next step, is away over the border. */
static void a_life_may_go_over_the_end_of_the_step(void) {
  struct builder b;
  begin(&b, 15);
  const int32_t x = add_storage(&b, 10, 1), y = add_storage(&b, 10, 0), z = add_storage(&b, 10, 2);
  const int32_t uses[4] = {y, x, z, x};
  for (int32_t o = 0; o < 4; o++) {
    (void)add_operator(&b, 100);
    add_use(&b, uses[o], o == 1 ? MGD_PLAN_READ : MGD_PLAN_MADE);
  }
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "0: W0 L0  1: F0");
  EXPECT_INT(plan->ns, 420);
  expect_valid(&b, plan);
  mgd_plan_free(plan);
}

/* What is held until the end of the step though nobody reads it again leaves as well, and never comes back. */
static void what_is_not_read_again_leaves_for_good(void) {
  struct builder b;
  begin(&b, 15);
  const int32_t x = add_storage(&b, 10, 2), y = add_storage(&b, 10, 1);
  (void)add_operator(&b, 100);
  add_use(&b, x, MGD_PLAN_MADE);
  (void)add_operator(&b, 100);
  add_use(&b, y, MGD_PLAN_MADE);
  (void)add_operator(&b, 100);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "1: W0 L0");
  EXPECT_INT(plan->ns, 310);
  expect_valid(&b, plan);
  mgd_plan_free(plan);
}

/* Layers that are read in turn. Of 32 there is room for 28: 26 stay, one is used, and one arrives. The six that come back
 * are far from each other, so that those that stay give the link time for each. Neighbours would wait for each other. */
static void those_that_leave_are_spread_over_the_step(void) {
  struct builder b;
  begin(&b, 280 * MB);
  for (int32_t s = 0; s < 32; s++) {
    (void)add_storage(&b, 10 * MB, -1);
    (void)add_operator(&b, 2 * MB);
    add_use(&b, s, MGD_PLAN_READ);
  }
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_INT(plan->bytes_in, 60 * MB);
  EXPECT_INT(plan->ns, 64 * MB);
  expect_valid(&b, plan);
  mgd_plan_free(plan);
}

/* x, y and z are made by 0, 1 and 2 and read by 6, 5 and 4; r is read by 0 and 5, and never written. Operator 3 makes
 * what needs `more` bytes than there are. */
static void a_nest(struct builder *b, int64_t y, int64_t z, int64_t r, int64_t more) {
  begin(b, 20 * MB + y + z + r - more);
  const int64_t bytes[] = {10 * MB, y, z, 10 * MB};
  for (int32_t s = 0; s < 4; s++) {
    (void)add_storage(b, bytes[s], s == 3 ? 3 : 6 - s);
  }
  (void)add_storage(b, r, -1);
  for (int32_t o = 0; o < 7; o++) {
    (void)add_operator(b, MB);
    add_use(b, o < 4 ? o : 6 - o, o < 4 ? MGD_PLAN_MADE : MGD_PLAN_READ);
    if (o == 0 || o == 5) {
      add_use(b, 4, MGD_PLAN_READ);
    }
  }
}

static void expect_copies(const struct builder *b, int64_t out, int64_t in) {
  struct mgd_plan *plan = plan_of(b);
  EXPECT_INT(plan->bytes_out, out);
  EXPECT_INT(plan->bytes_in, in);
  expect_valid(b, plan);
  mgd_plan_free(plan);
}

/* The furthest next use is that of x, whose 10 MB are more than is needed. */
static void less_leaves_where_that_is_enough(void) {
  struct builder b;
  a_nest(&b, 4 * MB, 3 * MB, 0, 3 * MB); /* z is enough, and y too */
  expect_copies(&b, 3 * MB, 3 * MB);
  a_nest(&b, 4 * MB, 3 * MB, 0, 4 * MB); /* y */
  expect_copies(&b, 4 * MB, 4 * MB);
  a_nest(&b, 4 * MB, 4 * MB, 0, 7 * MB); /* both */
  expect_copies(&b, 8 * MB, 8 * MB);
  a_nest(&b, 6 * MB, 4 * MB, 0, 7 * MB); /* as many bytes as x has */
  expect_copies(&b, 10 * MB, 10 * MB);
  a_nest(&b, 4 * MB, 4 * MB, 0, 9 * MB); /* both are not enough */
  expect_copies(&b, 10 * MB, 10 * MB);
  a_nest(&b, 2 * MB, 2 * MB, 9 * MB, 6 * MB); /* r has a good copy on the host */
  expect_copies(&b, 0, 9 * MB);
}

static void what_no_operator_uses_is_away(void) {
  struct builder b;
  two_layers(&b, 20);
  (void)add_storage(&b, INT64_C(1) << 50, -1);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_PLAN(plan, "");
  mgd_plan_free(plan);
}

/* A plan by hand, which gives up room that nobody needs: the bytes cannot come back before they have arrived. */
static void bytes_come_back_when_they_have_arrived(void) {
  struct builder b;
  int64_t ns[2];
  int32_t first_action[5] = {0, 0, 3, 3, 3};
  struct mgd_plan_action action[3] = {{MGD_PLAN_WRITE, 0}, {MGD_PLAN_LEAVE, 0}, {MGD_PLAN_FETCH, 0}};
  const struct mgd_plan plan = {.operators = 4, .actions = 3, .first_action = first_action, .action = action};
  two_layers(&b, 40);
  b.machine.out.bytes_per_ns = 0.05; /* from 100 to 300 */
  EXPECT_OK(mgd_plan_simulate(&b.step, &b.machine, &plan, 2, 0, ns));
  EXPECT_INT(ns[0], 410);
  EXPECT_INT(ns[1], 410);
}

/* ---- refusals */

static void expect_refused(const struct builder *b, int code) {
  struct mgd_plan *plan = (struct mgd_plan *)(uintptr_t)8;
  int64_t ns;
  EXPECT_CODE(mgd_plan_make(&b->step, &b->machine, 0, &plan), code);
  EXPECT(plan == (struct mgd_plan *)(uintptr_t)8);
  EXPECT_CODE(mgd_plan_simulate(&b->step, &b->machine, NULL, 1, 0, &ns), code);
}

/* Sets one thing wrong, in a step that is right otherwise. */
#define REFUSED(code, wrong)  \
  do {                        \
    two_layers(&b, 20);       \
    wrong;                    \
    expect_refused(&b, code); \
  } while (0)

static void nonsense_is_refused(void) {
  struct builder b;
  REFUSED(MGD_E_NO_ROOM, b.machine.room = 9);
  REFUSED(MGD_E_INVALID, b.step.operators = 0);
  REFUSED(MGD_E_INVALID, b.step.operators = MGD_PLAN_MOST + 1);
  REFUSED(MGD_E_INVALID, b.step.storages = -1);
  REFUSED(MGD_E_INVALID, b.step.storages = MGD_PLAN_MOST + 1);
  REFUSED(MGD_E_INVALID, b.step.storages = 1);
  REFUSED(MGD_E_INVALID, b.step.ns = NULL);
  REFUSED(MGD_E_INVALID, b.step.first_use = NULL);
  REFUSED(MGD_E_INVALID, b.step.uses = NULL);
  REFUSED(MGD_E_INVALID, b.step.storage = NULL);
  REFUSED(MGD_E_INVALID, b.ns[1] = -1);
  REFUSED(MGD_E_INVALID, b.first_use[0] = 1);
  REFUSED(MGD_E_INVALID, b.first_use[2] = 0);
  REFUSED(MGD_E_INVALID, b.first_use[4] = MGD_PLAN_MOST + 1);
  REFUSED(MGD_E_INVALID, b.uses[1].storage = -1);
  REFUSED(MGD_E_INVALID, b.uses[1].storage = 2);
  REFUSED(MGD_E_INVALID, b.uses[1].flags = 0);
  REFUSED(MGD_E_INVALID, b.uses[1].flags = 8);
  REFUSED(MGD_E_INVALID, b.uses[2].flags |= MGD_PLAN_MADE);    /* made twice */
  REFUSED(MGD_E_INVALID, b.uses[1].flags = MGD_PLAN_WRITTEN);  /* never made */
  REFUSED(MGD_E_INVALID, b.storage[1].dies = -1);              /* made, and lives for ever */
  REFUSED(MGD_E_INVALID, b.storage[1].dies = 1);               /* used after its death */
  REFUSED(MGD_E_INVALID, b.storage[1].dies = 4);
  REFUSED(MGD_E_INVALID, b.storage[1].dies = -2);
  REFUSED(MGD_E_INVALID, b.storage[1].bytes = -1);
  REFUSED(MGD_E_INVALID, add_use(&b, 0, MGD_PLAN_READ));       /* twice in one operator */
  REFUSED(MGD_E_INVALID, b.machine.room = -1);
  REFUSED(MGD_E_INVALID, b.machine.in.latency_ns = -1);
  REFUSED(MGD_E_INVALID, b.machine.out.latency_ns = -1);
  REFUSED(MGD_E_INVALID, b.machine.in.bytes_per_ns = -1.0);
  REFUSED(MGD_E_INVALID, b.machine.out.bytes_per_ns = HUGE_VAL);
  REFUSED(MGD_E_OVERFLOW, b.storage[0].bytes = b.storage[1].bytes = INT64_MAX);
  REFUSED(MGD_E_OVERFLOW, b.storage[0].bytes = INT64_MAX / 4);
  REFUSED(MGD_E_OVERFLOW, b.ns[0] = b.ns[1] = INT64_MAX);
  REFUSED(MGD_E_OVERFLOW, b.machine.in.bytes_per_ns = 1e-300);
  REFUSED(MGD_E_OVERFLOW, b.machine.out.latency_ns = INT64_MAX);
}

static void arguments_are_checked(void) {
  struct builder b;
  int64_t ns[1];
  struct mgd_plan *plan;
  two_layers(&b, 19);
  EXPECT_CODE(mgd_plan_make(NULL, &b.machine, 0, &plan), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_make(&b.step, NULL, 0, &plan), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_make(&b.step, &b.machine, 0, NULL), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_make(&b.step, &b.machine, -1, &plan), MGD_E_INVALID);
  plan = plan_of(&b);
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, NULL, 1, 0, ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, plan, 0, 0, ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, plan, 1, -1, ns), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, plan, 1, 0, NULL), MGD_E_INVALID);
  b.ns[0] = INT64_MAX / 100;
  EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, plan, 100, 0, ns), MGD_E_OVERFLOW);
  mgd_plan_free(plan);
}

/* The plan of two_layers() with one thing wrong. */
#define BROKEN(wrong)                                                                                \
  do {                                                                                               \
    struct mgd_plan *plan = plan_of(&b);                                                             \
    struct mgd_plan_action *action = plan->action;                                                   \
    EXPECT_INT(plan->actions, 3);                                                                    \
    wrong;                                                                                           \
    EXPECT_CODE(mgd_plan_simulate(&b.step, &b.machine, plan, 1, 0, ns), MGD_E_INVALID);              \
    EXPECT(action);                                                                                  \
    mgd_plan_free(plan);                                                                             \
  } while (0)

static void a_plan_that_breaks_a_rule_is_refused(void) {
  struct builder b;
  int64_t ns[1];
  two_layers(&b, 19); /* 1: W0 L0  3: F0 */
  BROKEN(plan->operators = 3);
  BROKEN(plan->actions = 2);
  BROKEN(plan->first_action[0] = 1);
  BROKEN(plan->first_action[2] = 4);
  BROKEN(action[0].storage = 2);
  BROKEN(action[0].storage = -1);
  BROKEN(action[0].kind = 3);
  BROKEN(action[0] = action[1]);                       /* leaves twice */
  BROKEN(action[0].storage = 1);                       /* leaves without a copy */
  BROKEN(action[1] = action[0]);                       /* does not leave, and room is short */
  BROKEN(plan->first_action[2] = plan->first_action[3] = 3); /* comes before there is room */
  BROKEN(action[0] = action[2]);                       /* fetched while it is home */
  BROKEN(action[2] = action[0]);                       /* written while it is away */
  BROKEN(plan->first_action[1] = 2);                   /* leaves before it is made */
  BROKEN(plan->first_action[3] = plan->first_action[4] = plan->actions = 2); /* does not come back */
}

static void running_out_of_memory_leaves_nothing_behind(void) {
  struct builder b;
  struct mgd_plan *plan = NULL;
  int64_t ns[1];
  two_layers(&b, 19);
  int64_t n = 1;
  while (mgd_plan_make(&b.step, &b.machine, n, &plan) == MGD_E_NOMEM) {
    EXPECT(plan == NULL);
    n++;
  }
  EXPECT_INT(n, 63);
  EXPECT_PLAN(plan, "1: W0 L0  3: F0");
  n = 1;
  while (mgd_plan_simulate(&b.step, &b.machine, plan, 1, n, ns) == MGD_E_NOMEM) {
    n++;
  }
  EXPECT_INT(n, 24);
  EXPECT_INT(ns[0], 420);
  mgd_plan_free(plan);
}

/* ---- at random */

/* Every other storage lives for ever; the others are made by some operator and die some operators later. */
static void random_step(struct builder *b, uint64_t *random) {
  begin(b, 0);
  const int32_t operators = 1 + (int32_t)pick(random, MOST - 1), storages = (int32_t)pick(random, MOST);
  int32_t made[MOST], life[MOST];
  for (int32_t s = 0; s < storages; s++) {
    made[s] = pick(random, 2) ? (int32_t)pick(random, operators) : -1;
    life[s] = (int32_t)pick(random, operators);
    const int64_t bytes = pick(random, 8) ? pick(random, 3000000) : pick(random, 2);
    (void)add_storage(b, bytes, made[s] < 0 ? -1 : (made[s] + life[s]) % operators);
  }
  for (int32_t o = 0; o < operators; o++) {
    (void)add_operator(b, pick(random, 200000));
    const int64_t seldom = 2 + pick(random, 20);
    for (int32_t s = 0; s < storages; s++) {
      const bool lives = made[s] < 0 || (o - made[s] + operators) % operators <= life[s];
      if (made[s] == o) {
        add_use(b, s, MGD_PLAN_MADE | (uint32_t)pick(random, 2) * MGD_PLAN_WRITTEN);
      } else if (lives && pick(random, seldom) == 0) {
        add_use(b, s, 1 + (uint32_t)pick(random, 3));
      }
    }
  }
  b->machine.in = (struct mgd_link){pick(random, 2) * 10000, (double)pick(random, 40)};
  b->machine.out = (struct mgd_link){pick(random, 2) * 10000, (double)pick(random, 40)};
}

/* The room is between what the largest operator needs and what there is. */
static void choose_room(struct builder *b, uint64_t *random) {
  int64_t least = 0, all = 0;
  for (int32_t o = 0; o < b->step.operators; o++) {
    int64_t own = 0;
    for (int32_t k = b->first_use[o]; k < b->first_use[o + 1]; k++) {
      own += b->storage[b->uses[k].storage].bytes;
    }
    least = own > least ? own : least;
  }
  for (int32_t s = 0; s < b->step.storages; s++) {
    all += b->storage[s].bytes;
  }
  b->machine.room = least + (pick(random, 4) ? pick(random, all - least + 1) : 0);
}

/* Lays out the plan; the plan with early departures; and that one with places that are free before a copy begins. */
static const char *find_fault_of_layouts(const struct builder *b, const struct mgd_plan *plan, uint64_t *random) {
  struct mgd_layout *layout = NULL;
  struct mgd_plan *early = NULL;
  EXPECT_OK(mgd_plan_layout_make(&b->step, plan, 0, NULL, 0, false, 0, &layout));
  const char *wrong = find_fault(b, plan, layout, false);
  mgd_plan_layout_free(layout);
  EXPECT_OK(mgd_plan_early_leave(&b->step, plan, 0, &early));
  EXPECT_OK(mgd_plan_layout_make(&b->step, early, 0, NULL, 0, false, 0, &layout));
  wrong = wrong ? wrong : find_fault(b, early, layout, false);
  const int64_t height = layout->height, room = pick(random, 2) ? height + b->machine.room / 8 : b->machine.room;
  mgd_plan_layout_free(layout);
  EXPECT_OK(mgd_plan_layout_make(&b->step, early, 0, NULL, room, true, 0, &layout));
  wrong = wrong ? wrong : find_fault(b, early, layout, true);
  wrong = !wrong && layout->height > room && layout->height > height ? "a block that is too high" : wrong;
  mgd_plan_layout_free(layout);
  mgd_plan_free(early);
  return wrong;
}

/* The plan, and that with early departures, without layouts. */
static const char *find_fault_of_departures(const struct builder *b, const struct mgd_plan *plan) {
  struct mgd_plan *early = NULL;
  EXPECT_OK(mgd_plan_early_leave(&b->step, plan, 0, &early));
  const char *wrong = find_fault(b, plan, NULL, false);
  wrong = wrong ? wrong : find_fault(b, early, NULL, false);
  mgd_plan_free(early);
  return wrong;
}

static void expect_random_plan(uint64_t seed, bool lays_out) {
  static struct builder b;
  struct mgd_plan *plan, *again;
  int64_t ns[6];
  uint64_t random = seed;
  random_step(&b, &random);
  choose_room(&b, &random);
  plan = plan_of(&b);
  again = plan_of(&b);
  const char *wrong = lays_out ? find_fault_of_layouts(&b, plan, &random) : find_fault_of_departures(&b, plan);
  if (!wrong && mgd_plan_simulate(&b.step, &b.machine, plan, 6, 0, ns) != MGD_OK) {
    wrong = "does not run";
  }
  if (!wrong && (plan->ns != (ns[3] + ns[4] + ns[5] + 2) / 3 || plan->ns < plan->ideal_ns)) {
    wrong = "wrong time";
  }
  if (!wrong && (again->actions != plan->actions || again->ns != plan->ns ||
                 memcmp(again->action, plan->action, (size_t)plan->actions * sizeof *plan->action) != 0)) {
    wrong = "another plan the second time";
  }
  if (wrong) {
    fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, wrong);
    exit(1);
  }
  mgd_plan_free(again);
  mgd_plan_free(plan);
}

/* Returns how many bytes have an address at once. */
static int64_t most_placed(const struct builder *b, const struct mgd_layout *layout) {
  int64_t most = 0;
  for (int32_t o = 0; o < b->step.operators; o++) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < b->step.storages; s++) {
      bytes += mgd_plan_layout_offset(layout, s, o) >= 0 ? aligned(b->storage[s].bytes) : 0;
    }
    most = bytes > most ? bytes : most;
  }
  return most;
}

/* What these steps take in all, per mille of what their operators do: a part of the planner that is lost makes it more.
 * And how high the layouts are, per mille of the room that the plans were made for; and how many cannot be lower. */
static void plans_are_as_fast_as_they_were(void) {
  static struct builder b;
  int64_t ns = 0, ideal = 0, height = 0, room = 0, lowest = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    uint64_t random = seed;
    random_step(&b, &random);
    choose_room(&b, &random);
    struct mgd_plan *plan = plan_of(&b);
    ns += plan->ns;
    ideal += plan->ideal_ns;
    struct mgd_layout *layout = NULL;
    if (seed <= 100) { /* a search takes some 20 ms */
      EXPECT_OK(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, &layout));
      height += layout->height;
      room += b.machine.room;
      lowest += layout->height == most_placed(&b, layout);
    }
    mgd_plan_layout_free(layout);
    mgd_plan_free(plan);
  }
  EXPECT_INT(ns * 1000 / ideal, 1625);
  EXPECT_INT(height * 1000 / room, 1005);
  EXPECT_INT(lowest, 40);
}

/* ---- layouts */

/* x leaves before operator 1 and comes back before 3; y lives meanwhile, and has the same bytes of the block. */
static void what_is_away_gives_its_address_to_another(void) {
  struct builder b;
  struct mgd_layout *layout = NULL;
  two_layers(&b, 19);
  struct mgd_plan *plan = plan_of(&b); /* 1: W0 L0  3: F0 */
  EXPECT_OK(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, &layout));
  EXPECT_INT(layout->height, MGD_PLACE_ALIGNMENT);
  EXPECT_INT(layout->stays, 3);
  EXPECT_INT(mgd_plan_layout_offset(layout, 0, 0), 0);
  EXPECT_INT(mgd_plan_layout_offset(layout, 0, 1), -1);
  EXPECT_INT(mgd_plan_layout_offset(layout, 1, 0), -1);
  EXPECT_INT(mgd_plan_layout_offset(layout, 1, 2), 0);
  EXPECT_INT(mgd_plan_layout_offset(layout, 0, 3), 0);
  mgd_plan_layout_free(layout);
  mgd_plan_free(plan);
}

/* Layers that each read a weight of 1 MB, of which a part fits: copies run all the time if one may begin at once when
 * the one before has ended, while the operator runs that has waited for it. */
static void chain(struct builder *b, int32_t layers, int64_t room) {
  begin(b, room);
  for (int32_t i = 0; i < layers; i++) {
    (void)add_operator(b, 100000);
    add_use(b, add_storage(b, MB, -1), MGD_PLAN_READ);
  }
}

/* Returns how many fetched storages have bytes that another one has while the first user of the fetch before runs. */
static int late_places(const struct builder *b, const struct mgd_plan *plan, const struct mgd_layout *layout) {
  int found = 0;
  int32_t before = -1; /* in a chain the storage is the number of its only user */
  for (int lap = 0; lap < 2; lap++) {
    for (int32_t o = 0; o < plan->operators; o++) {
      for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
        const int32_t s = plan->action[i].storage;
        if (plan->action[i].kind != MGD_PLAN_FETCH) { continue; }
        const int64_t at = mgd_plan_layout_offset(layout, s, s);
        for (int32_t t = 0; lap == 1 && t < b->step.storages; t++) {
          const int64_t other = mgd_plan_layout_offset(layout, t, before);
          found += t != s && other >= 0 && other < at + aligned(MB) && at < other + aligned(MB);
        }
        before = s;
      }
    }
  }
  return found;
}

/* With room for one weight more than the plan takes. The places take turns: of an odd number of copies, one is late. */
static void the_place_of_a_copy_is_free_when_the_one_before_has_ended(void) {
  static struct builder b;
  for (int64_t fits = MOST / 2; fits < MOST - 4; fits++) {
    struct mgd_plan *early = NULL;
    struct mgd_layout *layout = NULL;
    chain(&b, MOST, fits * MB);
    struct mgd_plan *plan = plan_of(&b);
    EXPECT_OK(mgd_plan_early_leave(&b.step, plan, 0, &early));
    EXPECT_OK(mgd_plan_layout_make(&b.step, early, 0, NULL, 0, false, 0, &layout));
    EXPECT(late_places(&b, early, layout) > 0);
    const int64_t room = layout->height + aligned(MB);
    mgd_plan_layout_free(layout);
    EXPECT_OK(mgd_plan_layout_make(&b.step, early, 0, NULL, room, true, 0, &layout));
    EXPECT_INT(late_places(&b, early, layout), early->bytes_in / MB % 2);
    EXPECT(layout->height <= room);
    const char *wrong = find_fault(&b, early, layout, true);
    EXPECT_TEXT(wrong ? wrong : "", "");
    mgd_plan_layout_free(layout);
    mgd_plan_free(early);
    mgd_plan_free(plan);
  }
}

/* What is small, or left out, has no address; what nothing uses is away. */
static void only_some_have_addresses(void) {
  struct builder b;
  struct mgd_layout *layout = NULL;
  const bool left_out[3] = {false, true, false};
  two_layers(&b, 40);
  (void)add_storage(&b, INT64_C(1) << 40, -1);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_OK(mgd_plan_layout_make(&b.step, plan, 10, NULL, 0, false, 0, &layout));
  EXPECT_INT(layout->stays, 0);
  EXPECT_INT(layout->height, 0);
  mgd_plan_layout_free(layout);
  EXPECT_OK(mgd_plan_layout_make(&b.step, plan, 9, left_out, 0, false, 0, &layout));
  EXPECT_INT(layout->stays, 1);
  EXPECT_INT(mgd_plan_layout_offset(layout, 0, 1), 0);
  EXPECT_INT(mgd_plan_layout_offset(layout, 1, 1), -1);
  EXPECT_INT(mgd_plan_layout_offset(layout, 2, 1), -1);
  mgd_plan_layout_free(layout);
  mgd_plan_free(plan);
}

static void a_layout_that_cannot_be_is_refused(void) {
  struct builder b;
  struct mgd_layout *layout = NULL;
  two_layers(&b, 19);
  struct mgd_plan *plan = plan_of(&b);
  EXPECT_CODE(mgd_plan_layout_make(NULL, plan, 0, NULL, 0, false, 0, &layout), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_layout_make(&b.step, NULL, 0, NULL, 0, false, 0, &layout), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, NULL), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, -1, false, 0, &layout), MGD_E_INVALID);
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, -1, &layout), MGD_E_INVALID);
  int64_t n = 1;
  while (mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, n, &layout) == MGD_E_NOMEM) { n++; }
  EXPECT_INT(n, 15);
  mgd_plan_layout_free(layout);
  layout = NULL;
  struct mgd_plan *early = NULL;
  n = 1;
  while (mgd_plan_early_leave(&b.step, plan, n, &early) == MGD_E_NOMEM) {
    EXPECT(early == NULL);
    n++;
  }
  EXPECT_INT(n, 6);
  EXPECT_PLAN(early, "1: W0 L0  3: F0");
  mgd_plan_free(early);
  plan->actions = 50000; /* their number alone is looked at */
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, &layout), MGD_E_NO_ROOM);
  plan->actions = 3;
  b.step.operators = 3;
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, &layout), MGD_E_INVALID);
  b.step.operators = 4;
  b.storage[0].bytes = INT64_MAX;
  EXPECT_CODE(mgd_plan_layout_make(&b.step, plan, 0, NULL, 0, false, 0, &layout), MGD_E_OVERFLOW);
  EXPECT(layout == NULL);
  mgd_plan_layout_free(NULL);
  mgd_plan_free(plan);
}

/* The check finds each action that is left out, if bytes depend on it. */
static void the_check_finds_what_is_wrong(void) {
  struct builder b;
  two_layers(&b, 19);
  struct mgd_plan *plan = plan_of(&b); /* 1: W0 L0  3: F0 */
  expect_valid(&b, plan);
  const struct mgd_plan_action first = plan->action[0];
  plan->action[0] = plan->action[1];
  EXPECT(find_fault(&b, plan, NULL, false));
  plan->action[0].storage = 1;
  EXPECT(find_fault(&b, plan, NULL, false));
  plan->action[0] = first;
  plan->first_action[2] = plan->first_action[3] = 3;
  EXPECT_TEXT(find_fault(&b, plan, NULL, false), "more than the room");
  mgd_plan_free(plan);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const long steps = argc > 2 ? strtol(argv[2], NULL, 10) : 1000000;
  what_fits_stays();
  what_does_not_fit_leaves_and_comes_back();
  copies_run_beside_operators();
  what_is_only_read_is_not_written_back();
  a_life_may_go_over_the_end_of_the_step();
  what_is_not_read_again_leaves_for_good();
  those_that_leave_are_spread_over_the_step();
  less_leaves_where_that_is_enough();
  what_no_operator_uses_is_away();
  bytes_come_back_when_they_have_arrived();
  nonsense_is_refused();
  arguments_are_checked();
  a_plan_that_breaks_a_rule_is_refused();
  running_out_of_memory_leaves_nothing_behind();
  the_check_finds_what_is_wrong();
  plans_are_as_fast_as_they_were();
  what_is_away_gives_its_address_to_another();
  the_place_of_a_copy_is_free_when_the_one_before_has_ended();
  only_some_have_addresses();
  a_layout_that_cannot_be_is_refused();
  expect_random_plan(3000879, true); /* the pace fetches bytes before they leave, which few steps lead to */
  for (long i = 0; i < steps / 500; i++) {
    expect_random_plan(seed * 1000003 + (uint64_t)i, i % 32 == 0); /* most of the time is for layouts */
  }
  printf("test_plan: seed %" PRIu64 ", %ld random steps\n", seed, steps / 500);
  return 0;
}
