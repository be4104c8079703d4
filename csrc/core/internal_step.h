/* internal_step.h: the log of a device's operators, and what was learned from it.
 *
 * Private to the core, as internal_machine.h is, whose devices hold one each. All of it is guarded by the machine's
 * mutex. From the bottom to the top: step_log.c, step_learn.c, step_follow.c, step.c.
 */
#ifndef MGD_INTERNAL_STEP_H
#define MGD_INTERNAL_STEP_H

#include "internal_machine.h"
#include "internal_step_learned.h"
#include "plan.h"
#include "step.h"

#define MGD_STEP_OPERATORS (1 << 16) /* that a log holds; then it begins anew */
#define MGD_STEP_USES (1 << 18)
#define MGD_STEP_WINDOW 8 /* operators that tell a place in a step from others, as a rule */
#define MGD_STEP_NAMES 256 /* names of operators whose hashes are at hand */

/* A number of the last MGD_STEP_WINDOW operators, when one comes and the oldest goes: a polynomial of theirs. */
static inline uint64_t mgd_step_roll(uint64_t window, uint64_t comes, uint64_t goes) {
  const uint64_t base = 0x9e3779b97f4a7c15u; /* odd, so that nothing is lost: the golden ratio, as a fraction of 2^64 */
  const uint64_t square = base * base, fourth = square * square;
  return window * base + comes - goes * (fourth * fourth);
}

static inline uint64_t mgd_step_mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

#define MGD_STEP_MOST 12 /* plans for one step */
#define MGD_STEP_TRIES 8 /* of which so many may be for more room than the one before */

/* A storage in the log. Operators are numbered from 0 in the order of the log. */
struct mgd_step_seen {
  struct mgd_handle *handle; /* NULL: it has died */
  int64_t bytes;
  int32_t made, ordinal; /* by which operator, as its which result; -1: before the log began */
  int32_t died;          /* after which operator, -1 */
};

struct mgd_step_logged_use {
  int32_t seen;
  bool written;
};

struct mgd_step_logged {
  const char *name;
  uint64_t kind;   /* name, and bytes and writes of its uses */
  uint64_t window; /* kinds of the last MGD_STEP_WINDOW operators */
  uint64_t mark;   /* kind, and which storages it uses of those that are older than the log */
  uint64_t place;  /* marks of the last MGD_STEP_WINDOW operators */
  int64_t worked, pressed; /* mgd_step_call.worked; mgd_storages.pressed before the operator */
  int32_t first_use, first_made; /* of `uses`, `made`; up to those of the next operator */
  int32_t earlier;               /* the operator before this one in its bucket, -1 */
};

/* Invariants: `made` lists what was made in the log, in order; a storage that is in the log and alive knows its place
 * (mgd_handle.seen). period > 0: the last `run` operators are as those `period` before them. */
struct mgd_step_log {
  struct mgd_step_logged *operators;
  struct mgd_step_logged_use *uses;
  struct mgd_step_seen *seen;
  int32_t *made;
  int32_t count, uses_count, seen_count, made_count; /* of the arrays above */
  int32_t size, uses_size, seen_size, made_size;
  int32_t *buckets; /* by place: the last operator, -1 */
  int32_t period, run;
};

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

/* Invariant: where it follows, or has actions ahead, `known[which]` has a plan. */
struct mgd_step {
  struct mgd_step_name names[MGD_STEP_NAMES]; /* by pointer, since it lives for ever */
  struct mgd_step_log log;
  struct mgd_step_learned known[MGD_STEP_PLANS];
  int32_t which; /* the one that is followed, or was last */
  bool follows;
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
  bool hopeless; /* no plan fits */
  int64_t worked, disturbed_worked; /* for mgd_step_disturb() */
  int32_t disturbed_calls;
  bool planning; /* a thread plans, without the mutex: nobody frees what it reads */
};

/* ---- step_log.c */
void mgd_step_log_clear_locked(struct mgd_step_log *log);
void mgd_step_log_free(struct mgd_step_log *log);
/* Appends an operator. False: the log is full, or there is no memory. */
bool mgd_step_log_add_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                             uint64_t kind);
void mgd_step_log_made_locked(struct mgd_machine *m, struct mgd_step_log *log, struct mgd_handle *h);
void mgd_step_log_died_locked(struct mgd_step_log *log, struct mgd_handle *h);
void mgd_step_log_resized_locked(struct mgd_step_log *log, const struct mgd_handle *h);
bool mgd_step_log_repeats_locked(struct mgd_step_log *log); /* the operator that was added last begins a period anew */

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
/* Begins where the program is by its last operators, if a plan knows the place. The call is the operator there. */
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
void mgd_step_follow_leave_locked(struct mgd_step *s, struct mgd_handle *h); /* it has no role any more */
void mgd_step_follow_unbind_locked(struct mgd_step_learned *l); /* as it was loaded: nobody has a lasting role */

/* ---- step.c */
/* Empties the place for a step to learn, an unused one or that of the step taken up longest ago. Nobody plans. */
int32_t mgd_step_free_slot_locked(struct mgd_step *s);
/* Plans the step, without looking at the machine. */
int mgd_step_plan_of(const struct mgd_step_learned *l, const struct mgd_plan_machine *machine, struct mgd_plan **plan);
void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h);
void mgd_step_room_changed_locked(struct mgd_machine *m, int device);
void mgd_step_stays_locked(struct mgd_machine *m, const struct mgd_handle *h); /* it is to leave last, or no more */
void mgd_step_free(struct mgd_step *s); /* NULL is none */

#endif
