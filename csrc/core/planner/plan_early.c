/* plan_early.c: moves each write of a plan to where the bytes are complete.
 *
 * A plan begins a copy to the host when the link is free, which an executor cannot know: its copy waits, on the device,
 * for all operators that were issued before it. So each WRITE moves up, to right behind the last operator that writes
 * the storage, but never before a WRITE that came before it. LEAVE and FETCH actions stay where they are.
 */
#include "core/internal_machine.h"
#include "core/planner/plan.h"

/* A WRITE before operator `at`, counted from the first operator of the step; below 0: in the step before. */
struct write {
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
                           struct write *writes) {
  int32_t n = 0;
  find_last_writes(step, last);
  for (int32_t o = 0; o < plan->operators; o++) {
    for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
      const int32_t s = plan->action[i].storage;
      if (plan->action[i].kind == MGD_PLAN_WRITE) {
        writes[n++] = (struct write){s, last[s] == INT32_MIN ? o : last[s] + 1};
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
static void keep_order(struct write *writes, int32_t n, int32_t operators) {
  for (int twice = 0; twice < 2; twice++) {
    int32_t before = n ? writes[n - 1].at - operators : 0;
    for (int32_t i = 0; i < n; i++) {
      before = writes[i].at = writes[i].at > before ? writes[i].at : before;
    }
  }
}

/* Returns the first write at `at` or later. The writes are sorted by place. */
static int32_t first_at(const struct write *writes, int32_t n, int32_t at) {
  int32_t low = 0, high = n;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    low = writes[middle].at < at ? middle + 1 : low;
    high = writes[middle].at < at ? high : middle;
  }
  return low;
}

static void rebuild(const struct mgd_plan *plan, const struct write *writes, int32_t n, struct mgd_plan *out) {
  for (int32_t o = 0; o < plan->operators; o++) {
    out->first_action[o] = out->actions;
    for (int32_t at = o; at >= o - plan->operators; at -= plan->operators) {
      for (int32_t i = first_at(writes, n, at); i < n && writes[i].at == at; i++) {
        out->action[out->actions++] = (struct mgd_plan_action){MGD_PLAN_WRITE, writes[i].storage};
      }
    }
    for (int32_t i = plan->first_action[o]; i < plan->first_action[o + 1]; i++) {
      if (plan->action[i].kind != MGD_PLAN_WRITE) {
        out->action[out->actions++] = plan->action[i];
      }
    }
  }
  out->first_action[plan->operators] = out->actions;
}

int mgd_plan_early_write(const struct mgd_plan_step *step, struct mgd_plan *plan, int64_t fail_allocation) {
  struct mgd_alloc alloc;
  mgd_alloc_init(&alloc, fail_allocation);
  const size_t actions = (size_t)plan->actions + 1, storages = (size_t)step->storages + 1;
  struct write *writes = mgd_alloc_new(&alloc, actions, sizeof *writes);
  int32_t *last = mgd_alloc_new(&alloc, storages, sizeof *last);
  struct mgd_plan other = *plan; /* first the new plan, at the end the one to free */
  other.actions = 0;
  other.first_action = mgd_alloc_new(&alloc, (size_t)plan->operators + 1, sizeof *other.first_action);
  other.action = mgd_alloc_new(&alloc, actions, sizeof *other.action);
  const bool done = writes && last && other.first_action && other.action;
  if (done) {
    const int32_t n = list_writes(step, plan, last, writes);
    keep_order(writes, n, plan->operators);
    rebuild(plan, writes, n, &other);
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
