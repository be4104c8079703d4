/* internal_step.h: struct mgd_step: a device's log, the steps learned from it, and the plan that is followed.
 *
 * Private to the core, like internal_machine.h, whose devices hold one each. internal_step_log.h has the log. The
 * machine's mutex guards everything. The files from the bottom to the top are step_log.c, step_learn.c, step_follow.c,
 * step_trial.c, step.c, step_plan.c, step_layout.c.
 *
 * Numberings. An operator and a storage have one number in each of these:
 *
 *                      of operators                          of storages
 *   the program        mgd_step.calls, never reset           struct mgd_handle
 *   the log            mgd_step_log.operators[i],            mgd_step_log.seen[j], mgd_handle.seen == j
 *                      0 again when the log restarts
 *   a learned step k   known[k].kinds[o], where              known[k].role[r], mgd_handle.role[k] == r; the storage
 *                      o = i - (count - 1 - period)          changes from step to step, unless the role is lasting
 *   its plan           o; of the next step operators + o     r
 *
 *   log      0 1 2 3 4 5 6 7 8 9        count == 10, period == 4: operators 5 .. 8 are like 1 .. 4, and 9 is like 5
 *   step               0 1 2 3 0        learned from 5 .. 8. 9 is operator 0 of it, so `at` is 1 now
 *
 * A use has two numbers in a learned step: in `use_roles` as the call names its operands, some of which have no role;
 * and in `plan_uses`, where an operator has each storage once, and its results too.
 */
#ifndef MGD_INTERNAL_STEP_H
#define MGD_INTERNAL_STEP_H

#include "core/internal_machine.h"
#include "core/steps/internal_step_learned.h"
#include "core/steps/internal_step_log.h"
#include "core/planner/plan.h"
#include "core/steps/step.h"

#define MGD_STEP_NAMES 256 /* names of operators whose hashes are cached */
#define MGD_STEP_DOUBTS 2
#define MGD_STEP_CERTAIN 4 /* at so many doubts, all of a period must repeat */
#define MGD_STEP_MOST 12   /* after so many plans for a step, evictions cause no new one */
#define MGD_STEP_TRIES 8   /* a plan for more room is tried only below so many plans */

/* Caches the hash of a name. */
struct mgd_step_name {
  const char *name; /* NULL: none */
  uint64_t hash;
};

/* The actions of the followed plan that are still to be done before the current call: those of `operators` operators,
 * from `action` of `operator_at` on. */
struct mgd_step_ahead {
  int32_t operator_at, action, operators;
};

/* Counts the bytes copied away from the device and home, and the bytes that operators used meanwhile. */
struct mgd_step_cost {
  double copied, used;
};

/* Measures whether plans are worth their cost. `without`, `with`: sums over windows without plans, and over windows in
 * which plans were lost; recent windows weigh most. */
struct mgd_step_trial {
  struct mgd_step_cost without, with, now;
  int64_t copied_before, lost; /* mgd_storages.copied at the last operator; mgd_step.lost when the window began */
  int32_t operators, length;   /* of the window: so far, and in total; 0: none has begun */
  bool knows;                  /* a plan was known when the window began */
  int32_t away, doublings; /* remaining windows in which no plan is taken up; how often their number was doubled */
};

/* Invariant: if it follows, or has actions ahead, `known[which]` has a plan. */
struct mgd_step {
  struct mgd_step_name names[MGD_STEP_NAMES]; /* by pointer, because a name is never freed */
  struct mgd_step_log log;
  struct mgd_step_learned known[MGD_STEP_PLANS];
  int32_t which; /* the step that is followed, or was followed last */
  bool follows;
  bool sure; /* following: the log got full without a longer period; it stays empty until the plan is lost */
  bool finds; /* the current operator ends a period that mgd_step_plan() shall plan */
  struct mgd_step_ahead ahead;
  int32_t at, results; /* following: the next operator; how many results the last one has made */
  int32_t strange;        /* operators in a row that were not in the plan */
  uint64_t window; /* hash of the last operators, whether it follows or not */
  uint64_t recent[MGD_STEP_WINDOW]; /* their kinds, a ring; `calls` of them so far */
  uint64_t calls;
  uint64_t generation; /* how often the log restarted */
  int32_t plan_at; /* nothing is planned before the log has so many operators */
  int64_t pressed, pressed_before; /* mgd_storages.pressed when this period began; at the last operator */
  int32_t quiet; /* operators since that changed, while no plan is followed */
  int64_t lost;
  int32_t doubts; /* plans in a row that were lost in their first period, at most MGD_STEP_DOUBTS */
  struct mgd_step_trial trial;
  int64_t worked, disturbed_worked; /* for mgd_step_disturb() */
  int32_t disturbed_calls;
  bool planning; /* a thread plans without the mutex: what it reads is not freed */
  bool forgotten; /* planning: the struct is freed after it, and until then treated as absent */
};

/* ---- step_learn.c */
void mgd_step_learn_forget_locked(struct mgd_step_learned *l);
/* Allocates room for so many operators, uses and results. False: no memory; the caller forgets `l`. */
bool mgd_step_learn_allocate(struct mgd_alloc *a, struct mgd_step_learned *l, size_t operators, size_t uses,
                             size_t made);
void mgd_step_learn_index(struct mgd_step_learned *l); /* fills the buckets */
/* Learns the last period of the log. WAIT: it is not known yet when some of its results die. clock: NULL if times are
 * ns. May return NOMEM. */
int mgd_step_learn_from_log_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_clock *clock,
                                   struct mgd_step_learned *out);
/* Gives the roles of a step learned from this log their handles. */
void mgd_step_learn_bind_locked(const struct mgd_step_log *log, struct mgd_step_learned *l);

/* ---- step_follow.c */
/* Begins to follow a plan at the place that the last operators identify, if a plan has it; plans that were followed for
 * a period come first, then longer ones. The call is the operator there, and uses a storage that lives through all
 * steps of the plan. */
bool mgd_step_follow_from_here_locked(struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind);
/* Begins the actions before the call. False: too many operators are strange, and the plan is lost. *wants: a period has
 * ended, and the caller shall check whether the plan is still the best. */
bool mgd_step_follow_call_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                 uint64_t kind, int64_t pressed, struct mgd_action *actions, size_t *n, size_t size,
                                 bool *wants);
/* Begins the actions before the call that are not done yet, as many as there is room for. */
void mgd_step_follow_ahead_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                  struct mgd_action *actions, size_t *n, size_t size);
void mgd_step_follow_result_locked(struct mgd_step *s, struct mgd_handle *h);
int64_t mgd_step_follow_ns_locked(const struct mgd_step *s); /* duration of the operator followed last, or -1 */
/* Takes the storage's role away. True: it was the last lasting one, so the step cannot recur. */
bool mgd_step_follow_leave_locked(struct mgd_step_learned *l, struct mgd_handle *h);
void mgd_step_follow_unbind_locked(struct mgd_step_learned *l); /* as if just loaded: no storage has a role */

/* ---- step_trial.c */
/* Counts an operator. `copied`: bytes copied so far (mgd_storages.copied). */
void mgd_step_trial_count_locked(struct mgd_step *s, const struct mgd_step_call *call, int64_t copied);

/* ---- step.c */
/* Forgets what the device has logged and learned; if a thread is planning, when it has ended. */
void mgd_step_forget_locked(struct mgd_machine *m, int device);
struct mgd_step *mgd_step_of_locked(const struct mgd_machine *m, int device); /* NULL: it does not log */
/* Empties a place for a learned step: an unused one, or that of the step taken up longest ago. No thread may plan. */
int32_t mgd_step_free_slot_locked(struct mgd_step *s);
void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h);
void mgd_step_stays_locked(struct mgd_machine *m, const struct mgd_handle *h); /* its ADVICE_LAST changed */
void mgd_step_free(struct mgd_step *s); /* NULL is ignored */

/* ---- step_plan.c */
/* Plans the step, without access to the machine's state. */
int mgd_step_plan_of(const struct mgd_step_learned *l, const struct mgd_plan_machine *machine, struct mgd_plan **plan);
struct mgd_plan_step mgd_step_plan_input(const struct mgd_step_learned *l);
struct mgd_plan_machine mgd_step_plan_machine_locked(const struct mgd_machine *m, int device, int64_t room);
/* Between these two calls no other thread changes what is read without the mutex. The second may return ABSENT: the
 * step has been forgotten meanwhile, and the caller must not use it any more. */
int mgd_step_plan_leave_locked(struct mgd_machine *m, struct mgd_step *s);
int mgd_step_plan_enter(struct mgd_machine *m, int device, struct mgd_step *s);
/* The plan takes the place of the one that is followed. Addresses are for the plan that they were computed from, so
 * they are forgotten. */
void mgd_step_plan_take_locked(struct mgd_step *s, struct mgd_step_learned *l, struct mgd_plan *plan, int64_t room);

#endif
