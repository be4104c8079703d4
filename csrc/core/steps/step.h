/* step.h: what a device does again and again, and what was learned from it.
 *
 * Programs repeat their steps. Once bytes had to leave a device, its operators are logged. When the log repeats, its
 * last period is planned (plan.h), and the plan is followed from then on: which bytes get a copy on the host, leave and
 * come back right before which operator. What the program does otherwise than before costs time and nothing else: every
 * operator still gets its operands by mgd_restore_begin().
 *
 * A device has one log, and plans for the last few steps that it learned. An operator is known by its name and by what
 * it uses, and a storage by its role: it lives through all steps, or it is the n-th that a certain operator of the step
 * makes.
 */
#ifndef MGD_STEP_H
#define MGD_STEP_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mgd_step_use {
  struct mgd_handle *handle; /* whose home is the device, and which the caller uses (mgd_handle_use) */
  bool written;
};

/* An operator that is about to run on storages of one device. */
struct mgd_step_call {
  const char *name; /* the pointer counts, not the text; it lives for ever, or is NULL */
  const struct mgd_step_use *uses;
  size_t n;
  int64_t worked; /* what operators took so far, in ns, or a moment of a clock; -1: nobody knows */
};

/* Of a device whose operators end long after they were issued. */
struct mgd_step_clock {
  void *context;
  /* ns that operators took from one moment to a later one; -1: nobody knows. Called with the mutex of the machine. */
  int64_t (*between)(void *context, int64_t from, int64_t to);
};

struct mgd_step_state {
  bool logs, follows;
  int32_t logged;                 /* operators in the log */
  int32_t known;                  /* steps that were learned, at most MGD_STEP_PLANS */
  int64_t lost;                   /* how often a plan was lost */
  /* Of the step that is followed, or was last: */
  int32_t operators, at;          /* of the plan; the operator that comes next */
  int64_t plans, laps;            /* plans made; periods followed to their end */
  int64_t room, predicted, ideal; /* of the plan: bytes; ns of a period */
  int64_t bytes_in, bytes_out;    /* that it copies in a period */
};

/* Whether devices learn; they do at first. Off: what was learned is forgotten. It is also when the capacity changes. */
int mgd_step_learn(struct mgd_machine *m, bool on);
/* The device logs from now on, or goes on to. The caller has seen bytes leave it for want of room. */
int mgd_step_begin(struct mgd_machine *m, int device);
/* Logs an operator, or follows the plan: *n actions that have begun, each with a use that the caller puts back when he
 * has ended it: SPARE, SPILL and DROP end by mgd_evict_end(), RESTORE by mgd_restore_end(); FORGET as in
 * mgd_evict_begin(). *n in: room for actions, at least MGD_STEP_ACTIONS. *plans: mgd_step_plan() is to be called.
 * ABSENT: the device does not log, until mgd_step_begin(). */
#define MGD_STEP_ACTIONS 64
int mgd_step_operator(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                      size_t *n, bool *plans);
/* The next of the actions before this operator. To be called as long as the call before has filled its room but for
 * two: some actions take as many. */
int mgd_step_rest(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                  size_t *n);
/* Whether times are wanted: the device logs. Takes no lock, and may be an operator late. */
bool mgd_step_logs(const struct mgd_machine *m, int device);
/* Plans the period that was found. `free`: bytes that the device's allocator could give now; `pieces`: bytes beside
 * them that may serve some requests and not others (step.c says how much of them counts). `clock`: whose moments
 * `worked` had, NULL where it was ns. The bytes that an operator uses stand for a time that nobody knows. Takes some
 * ms, most of it without the mutex. ABSENT: there is no period, or another thread has changed the log meanwhile. WAIT:
 * more must be seen. */
int mgd_step_plan(struct mgd_machine *m, int device, int64_t free, int64_t pieces,
                  const struct mgd_step_clock *clock);
int mgd_step_read(struct mgd_machine *m, int device, struct mgd_step_state *out);

#ifdef __cplusplus
}
#endif
#endif
