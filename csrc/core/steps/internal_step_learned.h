/* internal_step_learned.h: what a learned step is made of.
 *
 * Private to the core; internal_step.h has the device that holds it, and what is done with it.
 */
#ifndef MGD_INTERNAL_STEP_LEARNED_H
#define MGD_INTERNAL_STEP_LEARNED_H

#include "core/core.h"
#include "core/planner/plan.h"

/* A storage of a learned step. */
struct mgd_step_role {
  struct mgd_handle *handle; /* who has it now, NULL: nobody */
  int64_t bytes;
  bool lasting;
  bool unseen; /* it came from a file, and nobody has had it yet in this process */
};

struct mgd_step_kind {
  uint64_t kind, window;
  int32_t first_use, first_made; /* of `use_roles`, `made_roles` */
  int32_t next;                  /* operator whose window is in the same bucket, -1 */
};

/* A step that repeats; plan NULL is none. Invariant: a role's handle knows its role (mgd_handle.role[slot]). */
struct mgd_step_learned {
  int32_t slot; /* its place among those that the device knows */
  int32_t operators, roles, uses;
  int32_t alive; /* lasting roles that a storage has, or that are unseen; 0: the step can be met no more */
  struct mgd_step_kind *kinds; /* operators + 1 */
  int32_t *buckets;            /* by window, as many as operators: -1, or an operator */
  int32_t *use_roles;          /* of each use as it is named in the call; -1: none */
  int32_t *made_roles;
  struct mgd_step_role *role;
  struct mgd_plan *plan;
  /* what was planned, to plan again with less room */
  int64_t *ns;
  int32_t *plan_first;
  struct mgd_plan_use *plan_uses;
  struct mgd_plan_storage *plan_storages;
  int64_t room, margin; /* bytes that the plan was made for, and that it leaves free beside */
  int64_t whole;        /* with all pieces, when the plan was made */
  int64_t enough;       /* the room of the last plan with which no bytes had to leave unasked for; 0: none yet */
  int64_t too_much;     /* that of the last one with which some had to; `whole`: none yet */
  int64_t plans, laps, since; /* made for this step; periods followed to their end, and those since the last plan */
  bool seeks;           /* there were pieces, so that it is to be found out how much room there is */
  bool tight;           /* bytes had to leave in the period that has ended */
  bool loaded;          /* it came from a file, and no two periods were followed yet */
  uint64_t used;        /* mgd_step.calls when it was taken up last */
};

/* Whether there is a plan that can be met. */
static inline bool mgd_step_is_known(const struct mgd_step_learned *l) { return l->plan && l->alive > 0; }

#endif
