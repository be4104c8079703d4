/* internal_step_learned.h: the structs of a learned step.
 *
 * Private to the core; internal_step.h has the struct that holds it, and the functions on it.
 */
#ifndef MGD_INTERNAL_STEP_LEARNED_H
#define MGD_INTERNAL_STEP_LEARNED_H

#include "core/core.h"
#include "core/planner/plan_layout.h"

/* Describes a storage of a learned step. */
struct mgd_step_role {
  struct mgd_handle *handle; /* the storage that has the role now, NULL: none */
  int64_t bytes;
  bool lasting;
  bool own;    /* memory that an operator has for itself: no storage gets the role */
  bool unseen; /* it came from a file, and no storage of this process has had it yet */
};

struct mgd_step_kind {
  uint64_t kind, window;
  int32_t first_use, first_made; /* indices of `use_roles`, `made_roles` */
  int32_t next;                  /* next operator in the same bucket, -1: none */
};

/* Describes a step that repeats; plan NULL: the place is empty. Invariant: mgd_handle.role[slot] of a role's handle is
 * that role. */
struct mgd_step_learned {
  int32_t slot; /* its index in mgd_step.known */
  int32_t operators, roles, uses;
  int32_t alive; /* lasting roles that a storage has, or that are unseen; 0: the step cannot recur */
  struct mgd_step_kind *kinds; /* operators + 1 */
  int32_t *buckets;            /* by hash of the window, as many as operators: an operator, or -1 */
  int32_t *use_roles;          /* by use, as named in the call; -1: none */
  int32_t *made_roles;
  struct mgd_step_role *role;
  struct mgd_plan *plan;
  struct mgd_layout *layout; /* of the plan; NULL: its storages have no addresses */
  bool laid_out; /* it was tried to give it a layout */
  bool crowded;  /* for good: what has no address needs the room in which places were free ahead of copies */
  /* the planner's input, kept to plan again with another room */
  int64_t *ns;
  int32_t *plan_first;
  struct mgd_plan_use *plan_uses;
  struct mgd_plan_storage *plan_storages;
  int64_t room, margin; /* bytes that the plan was made for, and bytes that it leaves free beside them */
  int64_t whole;        /* the room including all pieces, when the plan was made */
  int64_t enough;       /* room of the last plan under which nothing was evicted for lack of room; 0: none yet */
  int64_t too_much;     /* room of the last plan under which something was; `whole`: none yet */
  int64_t plans, laps, since; /* plans made; periods followed to their end, in all and since the last plan */
  bool seeks;           /* there were pieces, so the usable room is still to be found */
  int64_t
      missed; /* the most bytes evicted for lack of room in a period since the plan was checked; 0 after the first */
  bool loaded;          /* it came from a file, and fewer than two periods were followed yet */
  uint64_t used;        /* mgd_step.calls when the plan was last taken up */
};

/* True: there is a plan, and its step can recur. */
static inline bool mgd_step_is_known(const struct mgd_step_learned *l) { return l->plan && l->alive > 0; }

#endif
