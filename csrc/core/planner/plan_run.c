/* plan_run.c: runs a plan step after step, as the executor does, and checks each action, for the planner.
 *
 * The step is trusted, the plan is not: it may have been made for another step.
 */
#include "core/planner/internal_plan.h"

/* A run of a plan. In the first lap, a missing storage is assumed to have been there all the time. */
struct runner {
  struct mgd_plan_device *d;
  const struct mgd_plan *plan;
  bool is_first;
};

static bool has_good_form(const struct mgd_plan *plan, const struct mgd_plan_cycle *c) {
  if (!plan || plan->operators != c->operators || !plan->first_action || plan->first_action[0] != 0) {
    return false;
  }
  for (int32_t o = 0; o < c->operators; o++) {
    if (plan->first_action[o + 1] < plan->first_action[o]) {
      return false;
    }
  }
  if (plan->first_action[c->operators] != plan->actions || (plan->actions > 0 && !plan->action)) {
    return false;
  }
  for (int32_t i = 0; i < plan->actions; i++) {
    if (plan->action[i].storage < 0 || plan->action[i].storage >= c->storages) {
      return false;
    }
  }
  return true;
}

/* Does one action. False: the action is not possible in this state. */
static bool act(struct runner *r, struct mgd_plan_action action) {
  struct mgd_plan_device *d = r->d;
  const int32_t s = action.storage;
  if (r->is_first && action.kind != MGD_PLAN_FETCH && !d->is_home[s]) {
    mgd_plan_device_appear(d, s);
  }
  switch (action.kind) {
    case MGD_PLAN_WRITE:
      if (d->is_home[s]) {
        mgd_plan_device_write(d, s);
        return true;
      }
      return false;
    case MGD_PLAN_LEAVE:
      if (d->is_home[s] && (d->has_copy[s] || r->is_first)) {
        d->has_copy[s] = true;
        mgd_plan_device_leave(d, s);
        return true;
      }
      return false;
    case MGD_PLAN_FETCH:
      if (!d->is_home[s] && d->has_copy[s]) {
        mgd_plan_device_fetch(d, s);
        return true;
      }
      return r->is_first;
    default:
      return false;
  }
}

/* Whether operator o may run: its operands must be home, its results must not be, and there must be room for them. */
static bool may_run(struct runner *r, int32_t o) {
  const struct mgd_plan_cycle *c = r->d->cycle;
  for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    const bool is_made = (use->flags & MGD_PLAN_MADE) != 0;
    if (r->is_first && !is_made && !r->d->is_home[use->storage]) {
      mgd_plan_device_appear(r->d, use->storage);
    }
    if (r->d->is_home[use->storage] == is_made) {
      return false;
    }
  }
  return r->d->used + c->made[o] <= c->machine.room;
}

static bool run_lap(struct runner *r) {
  const int32_t operators = r->d->cycle->operators;
  for (int32_t o = 0; o < operators; o++) {
    for (int32_t i = r->plan->first_action[o]; i < r->plan->first_action[o + 1]; i++) {
      if (!act(r, r->plan->action[i]) || r->d->used > r->d->cycle->machine.room) {
        return false;
      }
    }
    if (!may_run(r, o)) {
      return false;
    }
    mgd_plan_device_run(r->d, o);
    mgd_plan_device_die(r->d, o);
  }
  return true;
}

int mgd_plan_run_laps(struct mgd_plan_device *d, const struct mgd_plan *plan, int32_t laps, int64_t *ns) {
  if (!has_good_form(plan, d->cycle)) {
    return MGD_E_INVALID;
  }
  struct runner r = {.d = d, .plan = plan, .is_first = true};
  mgd_plan_device_reset(d);
  for (int32_t lap = -1; lap < laps; lap++) {
    const int64_t before = d->end;
    if (!run_lap(&r)) {
      return MGD_E_INVALID;
    }
    r.is_first = false;
    if (lap >= 0) {
      ns[lap] = d->end - before;
    }
  }
  return MGD_OK;
}
