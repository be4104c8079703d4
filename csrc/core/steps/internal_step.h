/* internal_step.h: what a device logs of its operators, what was learned from it, and what is followed.
 *
 * Private to the core, as internal_machine.h is, whose devices hold one each. internal_step_log.h has the log. All is
 * guarded by the machine's mutex. From the bottom to the top: step_log.c, step_learn.c, step_follow.c,
 * step_trial.c, step.c, step_plan.c.
 */
#ifndef MGD_INTERNAL_STEP_H
#define MGD_INTERNAL_STEP_H

#include "core/internal_machine.h"
#include "core/steps/internal_step_learned.h"
#include "core/steps/internal_step_log.h"
#include "core/planner/plan.h"
#include "core/steps/step.h"

#define MGD_STEP_NAMES 256 /* names of operators whose hashes are at hand */
#define MGD_STEP_DOUBTS 2
#define MGD_STEP_CERTAIN 4 /* doubts with which all of a period is to repeat */
#define MGD_STEP_MOST 12   /* plans for one step */
#define MGD_STEP_TRIES 8   /* of which so many may be for more room than the one before */

/* The hash of a name. */
struct mgd_step_name {
  const char *name; /* NULL: none */
  uint64_t hash;
};

/* Actions of the plan that is followed that are to be done before the call at hand: from this one on, of so many
 * operators. */
struct mgd_step_ahead {
  int32_t operator_at, action, operators;
};

/* Bytes copied away from the device and home, and bytes that operators used meanwhile. */
struct mgd_step_cost {
  double copied, used;
};

/* What is measured to tell whether plans are worth it. `without`, `with`: of windows without plans, and of those in
 * which plans were lost; the last ones count most. */
struct mgd_step_trial {
  struct mgd_step_cost without, with, now;
  int64_t copied_before, lost; /* mgd_storages.copied at the operator before; mgd_step.lost when the window began */
  int32_t operators, length;   /* of the window so far, and in all; 0: none has begun */
  bool knows;                  /* a plan was known when it began */
  int32_t away, doublings;     /* windows to come in which no plan is taken up; how often their number was doubled */
};

/* Invariant: where it follows, or has actions ahead, `known[which]` has a plan. */
struct mgd_step {
  struct mgd_step_name names[MGD_STEP_NAMES]; /* by pointer, since it lives for ever */
  struct mgd_step_log log;
  struct mgd_step_learned known[MGD_STEP_PLANS];
  int32_t which; /* the one that is followed, or was last */
  bool follows;
  bool sure;  /* following: the log was full without a longer period, and is empty until the plan is lost */
  bool finds; /* the operator at hand ends a period that is to be planned */
  struct mgd_step_ahead ahead;
  int32_t at, results;    /* following: the operator that comes next; how many results the last one has made */
  int32_t strange;        /* operators in a row that were not in the plan */
  uint64_t window;        /* following or not: of the last operators */
  uint64_t recent[MGD_STEP_WINDOW]; /* their kinds, a ring; `seen` of them so far */
  uint64_t calls;
  uint64_t generation;    /* how often the log began anew */
  int32_t plan_at;        /* no plan before the log has so many operators */
  int64_t pressed, pressed_before; /* mgd_storages.pressed when this period began; at the operator before */
  int32_t quiet;                   /* operators since it changed, while no plan is followed */
  int64_t lost;
  int32_t doubts; /* plans that were lost in their first period, one after the other; at most MGD_STEP_DOUBTS */
  struct mgd_step_trial trial;
  int64_t worked, disturbed_worked; /* for mgd_step_disturb() */
  int32_t disturbed_calls;
  bool planning;  /* a thread plans, without the mutex: what it reads is not freed */
  bool forgotten; /* planning: the step ends with it, and counts as none until then */
};

/* ---- step_learn.c */
void mgd_step_learn_forget_locked(struct mgd_step_learned *l);
/* Room for so many operators, uses and results. False: there is none; what there is is to be forgotten. */
bool mgd_step_learn_allocate(struct mgd_alloc *a, struct mgd_step_learned *l, size_t operators, size_t uses,
                             size_t made);
void mgd_step_learn_index(struct mgd_step_learned *l); /* fills the buckets */
/* From the last period of the log. NOMEM. WAIT: it is not known yet when some of its results die. clock: NULL is ns. */
int mgd_step_learn_from_log_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_clock *clock,
                                   struct mgd_step_learned *out);
/* The roles of what was learned from this log get their handles. */
void mgd_step_learn_bind_locked(const struct mgd_step_log *log, struct mgd_step_learned *l);

/* ---- step_follow.c */
/* Begins where the program is by its last operators, if a plan knows the place; the longest plan that does. The call is
 * the operator there, and uses a storage that lives through all steps of the plan. */
bool mgd_step_follow_from_here_locked(struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind);
/* The actions before the call. False: too much is strange, and the plan is lost. *wants: a period has ended, and it is
 * to be asked whether the plan is still the best. */
bool mgd_step_follow_call_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                 uint64_t kind, int64_t pressed, struct mgd_action *actions, size_t *n, size_t size,
                                 bool *wants);
/* The actions before the call that are not done yet, as many as there is room for. */
void mgd_step_follow_ahead_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                  struct mgd_action *actions, size_t *n, size_t size);
void mgd_step_follow_result_locked(struct mgd_step *s, struct mgd_handle *h);
int64_t mgd_step_follow_ns_locked(const struct mgd_step *s); /* duration of the operator followed last, or -1 */
/* The storage has no role any more. True: it was the last lasting one, and the plan can be met no more. */
bool mgd_step_follow_leave_locked(struct mgd_step_learned *l, struct mgd_handle *h);
void mgd_step_follow_unbind_locked(struct mgd_step_learned *l); /* as it was loaded: nobody has a lasting role */

/* ---- step_trial.c */
/* An operator comes; so many bytes were copied so far (mgd_storages.copied). */
void mgd_step_trial_count_locked(struct mgd_step *s, const struct mgd_step_call *call, int64_t copied);

/* ---- step.c */
/* Forgets what the device has logged and learned; at the end of planning if a thread plans. */
void mgd_step_forget_locked(struct mgd_machine *m, int device);
struct mgd_step *mgd_step_of_locked(const struct mgd_machine *m, int device); /* NULL: it does not log */
/* Empties the place for a step to learn, an unused one or that of the step taken up longest ago. Nobody plans. */
int32_t mgd_step_free_slot_locked(struct mgd_step *s);
void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h);
void mgd_step_stays_locked(struct mgd_machine *m, const struct mgd_handle *h); /* it is to leave last, or no more */
void mgd_step_free(struct mgd_step *s); /* NULL is none */

/* ---- step_plan.c */
/* Plans the step, without looking at the machine. */
int mgd_step_plan_of(const struct mgd_step_learned *l, const struct mgd_plan_machine *machine, struct mgd_plan **plan);

#endif
