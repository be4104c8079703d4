/* plan_early.c: moves each write of a plan to where the bytes are complete, and each departure to the last use.
 *
 * A plan begins a copy to the host when the link is free, which an executor cannot know: its copy waits, on the device,
 * for all operators that were issued before it. So each WRITE moves up, to right behind the last operator that writes
 * the storage, but never before a WRITE that came before it. Likewise a copy into room that was given up waits for all
 * operators that were issued before the LEAVE, so each LEAVE moves up to right behind the last use. FETCH actions stay
 * where they are.
 */
#include "core/internal_machine.h"
#include "core/planner/plan.h"

#include <stdlib.h>
#include <string.h>

/* A WRITE, or a LEAVE, before operator `at`, counted from the first operator of the step; below 0: in the step before.
 */
struct move {
  int32_t storage, at;
};

/* Sets last[s] to the last operator of the step before that writes storage s (below 0); INT32_MIN: none. */
static void find_last_writes(const struct mgd_plan_step *step, int32_t *last) {
  for (int32_t s = 0; s < step->storages; s++) {
    last[s] = INT32_MIN;
  }
  for (int32_t u = 0, o = 0; o < step->operators; o++) {
    for (; u < step->first_use[o + 1]; u++) {
      const struct mgd_plan_use *use = &step->uses[u];
      last[use->storage] = use->flags & (MGD_PLAN_WRITTEN | MGD_PLAN_MADE) ? o - step->operators : last[use->storage];
    }
  }
}

/* Lists the writes in the order of the plan, each with the earliest place that its bytes allow. */
static int32_t list_writes(const struct mgd_plan_step *step, const struct mgd_plan *plan, int32_t *last,
                           struct move *writes) {
  int32_t n = 0;
  find_last_writes(step, last);
  for (int32_t o = 0; o < plan->operators; o++) {
    for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
      const int32_t s = plan->action[i].storage;
      if (plan->action[i].kind == MGD_PLAN_WRITE) {
        writes[n++] = (struct move){s, last[s] == INT32_MIN ? o : last[s] + 1};
      }
    }
    for (int32_t u = step->first_use[o]; u < step->first_use[o + 1]; u++) {
      const struct mgd_plan_use *use = &step->uses[u];
      last[use->storage] = use->flags & (MGD_PLAN_WRITTEN | MGD_PLAN_MADE) ? o : last[use->storage];
    }
  }
  return n;
}

/* Moves each write back to the place of the write before it, if it is earlier. The last write of the step before counts
 * as the one before the first. */
static void keep_order(struct move *writes, int32_t n, int32_t operators) {
  for (int twice = 0; twice < 2; twice++) {
    int32_t before = n ? writes[n - 1].at - operators : 0;
    for (int32_t i = 0; i < n; i++) {
      before = writes[i].at = writes[i].at > before ? writes[i].at : before;
    }
  }
}

/* Returns the first of the moves, which are sorted by place, at `at` or later. */
static int32_t first_at(const struct move *moves, int32_t n, int32_t at) {
  int32_t low = 0, high = n;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    low = moves[middle].at < at ? middle + 1 : low;
    high = moves[middle].at < at ? high : middle;
  }
  return low;
}

/* Adds those actions before an operator whose kinds are from .. to - 1; kinds stand in the order of their numbers. */
static void add_kinds(const struct mgd_plan *plan, int32_t o, int from, int to, struct mgd_plan *out) {
  for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
    const int kind = plan->action[i].kind;
    if (kind >= from && kind < to) { out->action[out->actions++] = plan->action[i]; }
  }
}

/* Fills `out` with the plan in which the actions of the kind are those of the moves. */
static void rebuild(const struct mgd_plan *plan, int kind, const struct move *moves, int32_t n, struct mgd_plan *out) {
  for (int32_t o = 0; o < plan->operators; o++) {
    out->first_action[o] = out->actions;
    add_kinds(plan, o, MGD_PLAN_WRITE, kind, out);
    for (int32_t at = o; at >= o - plan->operators; at -= plan->operators) {
      for (int32_t i = first_at(moves, n, at); i < n && moves[i].at == at; i++) {
        out->action[out->actions++] = (struct mgd_plan_action){kind, moves[i].storage};
      }
    }
    add_kinds(plan, o, kind + 1, MGD_PLAN_FETCH + 1, out);
  }
  out->first_action[plan->operators] = out->actions;
}

/* ---- departures */

/* Notes in last[s] the operator before which storage s must not leave: behind its uses, its WRITE and its FETCH. */
static void note_operator(const struct mgd_plan_step *step, const struct mgd_plan *plan, int32_t o, int32_t step_before,
                          int32_t *last, struct move *leaves, int32_t *n) {
  for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
    const int32_t s = plan->action[i].storage;
    if (plan->action[i].kind == MGD_PLAN_LEAVE) {
      if (leaves) { leaves[(*n)++] = (struct move){s, last[s]}; }
    } else {
      last[s] = o - step_before + (plan->action[i].kind == MGD_PLAN_FETCH);
    }
  }
  for (int32_t u = step->first_use[o]; u < step->first_use[o + 1]; u++) {
    last[step->uses[u].storage] = o - step_before + 1;
  }
}

static int compare_moves(const void *a, const void *b) {
  const struct move *x = a, *y = b;
  return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->storage > y->storage) - (x->storage < y->storage);
}

static int32_t list_leaves(const struct mgd_plan_step *step, const struct mgd_plan *plan, int32_t *last,
                           struct move *leaves) {
  int32_t n = 0;
  memset(last, 0, (size_t)step->storages * sizeof *last);
  for (int32_t o = 0; o < plan->operators; o++) { note_operator(step, plan, o, plan->operators, last, NULL, &n); }
  for (int32_t o = 0; o < plan->operators; o++) { note_operator(step, plan, o, 0, last, leaves, &n); }
  qsort(leaves, (size_t)n, sizeof *leaves, compare_moves);
  return n;
}

int mgd_plan_early_leave(const struct mgd_plan_step *step, const struct mgd_plan *plan, int64_t fail_allocation,
                         struct mgd_plan **out) {
  struct mgd_alloc alloc;
  mgd_alloc_init(&alloc, fail_allocation);
  const size_t actions = (size_t)plan->actions + 1, storages = (size_t)step->storages + 1;
  struct move *leaves = mgd_alloc_new(&alloc, actions, sizeof *leaves);
  int32_t *last = mgd_alloc_new(&alloc, storages, sizeof *last);
  struct mgd_plan *made = mgd_alloc_new(&alloc, 1, sizeof *made);
  if (made) {
    *made = *plan;
    made->actions = 0;
    made->first_action = mgd_alloc_new(&alloc, (size_t)plan->operators + 1, sizeof *made->first_action);
    made->action = mgd_alloc_new(&alloc, actions, sizeof *made->action);
  }
  const bool done = leaves && last && made && made->first_action && made->action;
  if (done) {
    rebuild(plan, MGD_PLAN_LEAVE, leaves, list_leaves(step, plan, last, leaves), made);
    *out = made;
  } else {
    mgd_plan_free(made);
  }
  mgd_alloc_free(leaves);
  mgd_alloc_free(last);
  return done ? MGD_OK : MGD_E_NOMEM;
}

/* ---- writes */

int mgd_plan_early_write(const struct mgd_plan_step *step, struct mgd_plan *plan, int64_t fail_allocation) {
  struct mgd_alloc alloc;
  mgd_alloc_init(&alloc, fail_allocation);
  const size_t actions = (size_t)plan->actions + 1, storages = (size_t)step->storages + 1;
  struct move *writes = mgd_alloc_new(&alloc, actions, sizeof *writes);
  int32_t *last = mgd_alloc_new(&alloc, storages, sizeof *last);
  struct mgd_plan other = *plan; /* first the new plan, at the end the one to free */
  other.actions = 0;
  other.first_action = mgd_alloc_new(&alloc, (size_t)plan->operators + 1, sizeof *other.first_action);
  other.action = mgd_alloc_new(&alloc, actions, sizeof *other.action);
  const bool done = writes && last && other.first_action && other.action;
  if (done) {
    const int32_t n = list_writes(step, plan, last, writes);
    keep_order(writes, n, plan->operators);
    rebuild(plan, MGD_PLAN_WRITE, writes, n, &other);
    const struct mgd_plan old = *plan;
    *plan = other;
    other = old;
  }
  mgd_alloc_free(other.first_action);
  mgd_alloc_free(other.action);
  mgd_alloc_free(writes);
  mgd_alloc_free(last);
  return done ? MGD_OK : MGD_E_NOMEM;
}
