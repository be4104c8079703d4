/* plans.h: steps that are made by hand for the planner, and its plans as text. */
#ifndef PLANS_H
#define PLANS_H

#include "core/planner/plan.h"
#include "expect.h"

#define MOST 64 /* operators and storages of a step */

/* A step that grows operator by operator. */
struct builder {
  struct mgd_plan_step step;
  struct mgd_plan_machine machine;
  int64_t ns[MOST];
  int32_t first_use[MOST + 1];
  struct mgd_plan_use uses[MOST * MOST];
  struct mgd_plan_storage storage[MOST];
};

/* Links that take a ns for each byte, and no latency. */
static inline void begin(struct builder *b, int64_t room) {
  memset(b, 0, sizeof *b);
  b->step = (struct mgd_plan_step){0, 0, b->ns, b->first_use, b->uses, b->storage};
  b->machine = (struct mgd_plan_machine){room, {0, 1.0}, {0, 1.0}};
}

static inline int32_t add_storage(struct builder *b, int64_t bytes, int32_t dies) {
  b->storage[b->step.storages] = (struct mgd_plan_storage){bytes, dies};
  return b->step.storages++;
}

/* "2: W0 L0  5: F0": what stands before operators 2 and 5. */
static inline void describe(const struct mgd_plan *plan, char *text, size_t size) {
  size_t n = 0;
  text[0] = '\0';
  for (int32_t o = 0; o < plan->operators; o++) {
    for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1] && n + 32 < size; i++) {
      if (i == plan->first_action[o]) { n += (size_t)snprintf(text + n, size - n, "%s%d:", n > 0 ? "  " : "", (int)o); }
      n += (size_t)snprintf(text + n, size - n, " %c%d", "WLF"[plan->action[i].kind], (int)plan->action[i].storage);
    }
  }
}

#define EXPECT_PLAN(plan, expected)    \
  do {                                 \
    char said[1000];                   \
    describe(plan, said, sizeof said); \
    EXPECT_TEXT(said, expected);       \
  } while (0)

#endif
