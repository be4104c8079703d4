/* plan_settle.c: makes the choice for each gap valid in the host's order, and writes it down as a plan.
 *
 * The plan is valid for any leave, fetch and write of the choice: everything fits in the gaps as `evict` has them, and
 * each gap is then shortened only as far as everything still fits. This file gives that guarantee, and uses no times.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

/* Bytes that stay after all become a gap that ends where it begins. In other gaps, leave is at most `evict`, and fetch
 * is not before leave. */
static void clamp_gap(const struct mgd_plan_cycle *c, int32_t k, struct mgd_plan_choice *choice) {
  const int32_t evict = choice->evict[k];
  if (evict < 0) {
    choice->leave[k] = -1;
    return;
  }
  if (choice->leave[k] < 0) {
    choice->leave[k] = choice->fetch[k] = evict;
    return;
  }
  choice->leave[k] = choice->leave[k] < evict ? choice->leave[k] : evict;
  choice->fetch[k] = c->after[k] >= 0 && choice->fetch[k] >= choice->leave[k] ? choice->fetch[k] : c->until[k];
}

void mgd_plan_settle_mend(const struct mgd_plan_cycle *c, int64_t spare, int64_t *bytes,
                          struct mgd_plan_profile *profile, struct mgd_plan_choice *choice) {
  for (int32_t k = 0; k < c->uses; k++) {
    clamp_gap(c, k, choice);
  }
  mgd_plan_evict_profile(c, choice->leave, c->until, bytes, profile);
  for (int32_t k = 0; k < c->uses; k++) {
    if (choice->leave[k] < 0) {
      continue;
    }
    const int64_t limit = c->machine.room - mgd_plan_bytes_of(c, k);
    int32_t *fetch = &choice->fetch[k];
    *fetch = *fetch < c->until[k] ? mgd_plan_profile_last_above(profile, *fetch, c->until[k], limit) + 1 : *fetch;
    mgd_plan_profile_add(profile, *fetch, c->until[k], mgd_plan_bytes_of(c, k));
  }
  for (int32_t k = 0; k < c->uses; k++) {
    const int64_t size = mgd_plan_bytes_of(c, k);
    if (choice->leave[k] >= 0 && mgd_plan_profile_most(profile, choice->leave[k], choice->fetch[k]) + size <=
                                     c->machine.room - spare) {
      mgd_plan_profile_add(profile, choice->leave[k], choice->fetch[k], size);
      choice->leave[k] = -1;
    }
  }
}

/* ---- the list */

static struct mgd_plan_entry entry_for(const struct mgd_plan_cycle *c, int32_t at, int32_t kind, int32_t turn,
                                       int32_t s) {
  return (struct mgd_plan_entry){(int64_t)(at % c->operators * 3 + kind) << 31 | turn, s};
}

static int32_t list_entries(const struct mgd_plan_cycle *c, const struct mgd_plan_choice *choice, const int32_t *due,
                            struct mgd_plan_entry *order) {
  int32_t n = 0;
  for (int32_t k = 0; k < c->uses; k++) {
    const int32_t s = c->step->uses[k].storage, leave = choice->leave[k], write = choice->write[k];
    if (leave >= 0) {
      order[n++] = entry_for(c, leave, MGD_PLAN_LEAVE, 0, s);
    }
    if (leave >= 0 && c->after[k] >= 0) {
      order[n++] = entry_for(c, choice->fetch[k], MGD_PLAN_FETCH, choice->fetch_turn[k], s);
    }
    if (due[k] >= 0 && mgd_plan_is_written(&c->step->uses[k])) {
      const bool in_time = write >= 0 && write <= due[k];
      order[n++] = entry_for(c, in_time ? write : due[k], MGD_PLAN_WRITE, choice->write_turn[k], s);
    }
  }
  return n;
}

void mgd_plan_settle_list(const struct mgd_plan_cycle *c, const struct mgd_plan_choice *choice, const int32_t *due,
                          struct mgd_plan_entry *order, struct mgd_plan *plan) {
  plan->actions = list_entries(c, choice, due, order);
  plan->bytes_in = plan->bytes_out = 0;
  mgd_plan_heap_sort(order, plan->actions);
  int32_t o = 0;
  for (int32_t i = 0; i < plan->actions; i++) {
    const int32_t place = (int32_t)(order[i].key >> 31), s = order[i].value;
    while (o <= place / 3) {
      plan->first_action[o++] = i;
    }
    plan->action[i] = (struct mgd_plan_action){place % 3, s};
    plan->bytes_in += place % 3 == MGD_PLAN_FETCH ? c->step->storage[s].bytes : 0;
    plan->bytes_out += place % 3 == MGD_PLAN_WRITE ? c->step->storage[s].bytes : 0;
  }
  while (o <= c->operators) {
    plan->first_action[o++] = plan->actions;
  }
}
