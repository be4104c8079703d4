/* plan.c: the planner's interface: makes plans in several ways and returns the fastest one.
 *
 * No way is best for all steps. Each way gives a valid plan, so they are compared by simulation. All memory of the
 * planner is allocated and freed from here.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

#define LAPS 6   /* the last STEADY laps are measured: the first step or two differ from the rest */
#define STEADY 3

/* The ways to plan. The room that a way leaves free when it chooses victims is used by early fetches. */
static const struct mgd_plan_way ways[] = {
    {.trades = true}, {.trades = true, .small = true}, {.slack = 10}, {.slack = 20}, {.slack = 30}, {.slack = 40},
    {.slack = 60},    {.even = true},                  {.even = true, .spare = 1}};

/* Everything that is needed to make a plan. A zeroed struct owns no memory. */
struct planner {
  struct mgd_alloc alloc;
  struct mgd_plan_cycle cycle;
  struct mgd_plan_profile profile;
  struct mgd_plan_evict evict;
  struct mgd_plan_device device;
  struct mgd_plan_pace pace;
  struct mgd_plan_choice choice;
  struct mgd_plan_entry *order;
  struct mgd_plan best, next;
};

/* ---- memory */

static int make_choice(struct mgd_alloc *a, size_t uses, struct mgd_plan_choice *choice) {
  int32_t **const arrays[] = {&choice->evict, &choice->leave,      &choice->fetch,
                              &choice->write, &choice->write_turn, &choice->fetch_turn};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    *arrays[i] = mgd_alloc_new(a, uses + 1, sizeof **arrays[i]);
    if (!*arrays[i]) {
      return MGD_E_NOMEM;
    }
  }
  return MGD_OK;
}

/* Allocates a plan with room for `actions` actions. */
static int make_list(struct mgd_alloc *a, int32_t operators, size_t actions, struct mgd_plan *plan) {
  plan->operators = operators;
  plan->first_action = mgd_alloc_new(a, (size_t)operators + 1, sizeof *plan->first_action);
  plan->action = mgd_alloc_new(a, actions + 1, sizeof *plan->action);
  return plan->first_action && plan->action ? MGD_OK : MGD_E_NOMEM;
}

static void free_list(struct mgd_plan *plan) {
  mgd_alloc_free(plan->first_action);
  mgd_alloc_free(plan->action);
}

static int make_planner(struct planner *p) {
  const struct mgd_plan_cycle *c = &p->cycle;
  const size_t uses = (size_t)c->uses;
  int code = mgd_plan_profile_make(&p->alloc, c->operators, &p->profile);
  code = code == MGD_OK ? mgd_plan_evict_make(&p->alloc, c, &p->evict) : code;
  code = code == MGD_OK ? mgd_plan_device_make(&p->alloc, c, &p->device) : code;
  code = code == MGD_OK ? mgd_plan_pace_make(&p->alloc, c, &p->pace) : code;
  code = code == MGD_OK ? make_choice(&p->alloc, uses, &p->choice) : code;
  code = code == MGD_OK ? make_list(&p->alloc, c->operators, 3 * uses, &p->best) : code;
  code = code == MGD_OK ? make_list(&p->alloc, c->operators, 3 * uses, &p->next) : code;
  p->order = code == MGD_OK ? mgd_alloc_new(&p->alloc, 3 * uses + 1, sizeof *p->order) : NULL;
  return p->order ? MGD_OK : MGD_E_NOMEM;
}

static void free_planner(struct planner *p) {
  mgd_plan_cycle_free(&p->cycle);
  mgd_plan_profile_free(&p->profile);
  mgd_plan_evict_free(&p->evict);
  mgd_plan_device_free(&p->device);
  mgd_plan_pace_free(&p->pace);
  mgd_alloc_free(p->choice.evict);
  mgd_alloc_free(p->choice.leave);
  mgd_alloc_free(p->choice.fetch);
  mgd_alloc_free(p->choice.write);
  mgd_alloc_free(p->choice.write_turn);
  mgd_alloc_free(p->choice.fetch_turn);
  mgd_alloc_free(p->order);
  free_list(&p->best);
  free_list(&p->next);
}

/* ---- the choice */

static int measure_plan(struct planner *p, struct mgd_plan *plan) {
  int64_t ns[LAPS], sum = 0;
  const int code = mgd_plan_run_laps(&p->device, plan, LAPS, ns);
  for (int i = LAPS - STEADY; i < LAPS && code == MGD_OK; i++) {
    sum += ns[i];
  }
  plan->ns = (sum + STEADY - 1) / STEADY;
  return code == MGD_OK ? MGD_OK : MGD_E_BROKEN;
}

/* Makes a plan in this way, in p->next. */
static int try_way(struct planner *p, struct mgd_plan_way way) {
  const struct mgd_plan_cycle *c = &p->cycle;
  struct mgd_plan_choice *choice = &p->choice;
  mgd_plan_evict_choose(&p->evict, c, way, &p->profile, choice->evict);
  for (int32_t k = 0; k < c->uses; k++) { /* room counts as free right after the use */
    choice->leave[k] = choice->evict[k] >= 0 ? c->operator_of[k] + 1 : -1;
  }
  mgd_plan_evict_profile(c, choice->leave, c->until, p->evict.bytes, &p->profile);
  mgd_plan_pace_choose(&p->pace, &p->device, &p->profile, choice);
  mgd_plan_settle_mend(c, c->largest * way.spare, p->evict.bytes, &p->profile, choice);
  mgd_plan_pace_find_due(c, choice->leave, p->pace.latest, p->pace.due);
  mgd_plan_settle_list(c, choice, p->pace.due, p->order, &p->next);
  return measure_plan(p, &p->next);
}

/* Puts the fastest plan into p->best. */
static int find_best(struct planner *p) {
  int64_t ideal = 0;
  for (int32_t o = 0; o < p->cycle.operators; o++) {
    ideal += p->cycle.step->ns[o];
  }
  p->best.ns = INT64_MAX;
  for (size_t i = 0; i < sizeof ways / sizeof *ways && p->best.ns > ideal; i++) {
    const int code = try_way(p, ways[i]);
    if (code != MGD_OK) {
      return code;
    }
    p->next.ideal_ns = ideal;
    if (p->next.ns < p->best.ns) {
      const struct mgd_plan better = p->next;
      p->next = p->best;
      p->best = better;
    }
  }
  return MGD_OK;
}

/* Copies the plan into memory of its own, without spare room. */
static int copy_plan(struct mgd_alloc *a, const struct mgd_plan *plan, struct mgd_plan **out) {
  struct mgd_plan *copy = mgd_alloc_new(a, 1, sizeof *copy);
  if (!copy || make_list(a, plan->operators, (size_t)plan->actions, copy) != MGD_OK) {
    mgd_plan_free(copy);
    return MGD_E_NOMEM;
  }
  memcpy(copy->first_action, plan->first_action, ((size_t)plan->operators + 1) * sizeof *plan->first_action);
  memcpy(copy->action, plan->action, (size_t)plan->actions * sizeof *plan->action);
  copy->actions = plan->actions;
  copy->ns = plan->ns;
  copy->ideal_ns = plan->ideal_ns;
  copy->bytes_in = plan->bytes_in;
  copy->bytes_out = plan->bytes_out;
  *out = copy;
  return MGD_OK;
}

/* ---- the interface */

int mgd_plan_make(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine, int64_t fail_allocation,
                  struct mgd_plan **out) {
  struct planner p = {0};
  if (fail_allocation < 0 || !out) {
    return MGD_E_INVALID;
  }
  mgd_alloc_init(&p.alloc, fail_allocation);
  int code = mgd_plan_cycle_make(&p.alloc, step, machine, &p.cycle);
  code = code == MGD_OK ? make_planner(&p) : code;
  code = code == MGD_OK ? find_best(&p) : code;
  code = code == MGD_OK ? copy_plan(&p.alloc, &p.best, out) : code;
  free_planner(&p);
  return code;
}

void mgd_plan_free(struct mgd_plan *plan) {
  if (plan) {
    free_list(plan);
    mgd_alloc_free(plan);
  }
}

int mgd_plan_simulate(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                      const struct mgd_plan *plan, int32_t laps, int64_t fail_allocation, int64_t *ns) {
  struct planner p = {0};
  if (laps < 1 || fail_allocation < 0 || !ns) {
    return MGD_E_INVALID;
  }
  mgd_alloc_init(&p.alloc, fail_allocation);
  int code = mgd_plan_cycle_make(&p.alloc, step, machine, &p.cycle);
  if (code == MGD_OK && p.cycle.longest_ns > INT64_MAX / ((int64_t)laps + 1)) {
    code = MGD_E_OVERFLOW;
  }
  code = code == MGD_OK ? mgd_plan_device_make(&p.alloc, &p.cycle, &p.device) : code;
  code = code == MGD_OK ? mgd_plan_run_laps(&p.device, plan, laps, ns) : code;
  free_planner(&p);
  return code;
}
