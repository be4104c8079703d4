/* step.h: learns the steps that a device repeats, and plans them.
 *
 * Programs repeat their steps. Once bytes had to leave a device, its operators are logged. When the log repeats, its
 * last period is planned (plan.h), and the plan is followed from then on: it says which bytes get a copy on the host,
 * leave and come back right before which operator. A deviation from the plan costs only time: every operator still gets
 * its operands by mgd_restore_begin().
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
  struct mgd_handle *handle; /* its home is the device, and the caller uses it (mgd_handle_use) */
  bool written;
};

/* Describes what an operator got of the device's allocator while it ran: its results, and what its kernels need for
 * themselves. */
struct mgd_step_request {
  const void *at;
  int64_t bytes;
};
#define MGD_STEP_REQUESTS 32 /* of one operator, at most; further ones are not known */

/* Describes an operator that is about to run on storages of one device. */
struct mgd_step_call {
  const char *name; /* compared by its text, whose hash is cached by the pointer: it lives for ever, or is NULL */
  const struct mgd_step_use *uses;
  size_t n;
  int64_t worked; /* ns that operators took so far, or a moment of a clock; -1: unknown */
  const struct mgd_step_request *requests; /* of the operator before, in their order */
  size_t requested;                        /* how many these are, at most MGD_STEP_REQUESTS */
};

/* Measures the operators of a device that runs them long after they were issued. */
struct mgd_step_clock {
  void *context;
  /* Returns the ns that operators took from one moment to a later one; -1: unknown. Called with the machine's mutex. */
  int64_t (*between)(void *context, int64_t from, int64_t to);
};

struct mgd_step_state {
  bool logs, follows;
  int32_t logged;                 /* operators in the log */
  int32_t known;                  /* learned steps, at most MGD_STEP_PLANS */
  int64_t lost;                   /* how often a plan was lost */
  /* The rest is about the step that is followed, or was followed last: */
  int32_t operators, at;          /* the plan's operators; the one that comes next */
  int64_t plans, laps;            /* plans made; periods followed to their end */
  int64_t room, predicted, ideal; /* the plan's: bytes; ns of a period, beside the plans that other devices follow */
  int64_t bytes_in, bytes_out;    /* bytes that it copies in a period */
};

/* Sets whether devices learn; they do at first. Off: all learned steps are forgotten. A change of a device's capacity
 * makes it forget its steps, too. */
int mgd_step_learn(struct mgd_machine *m, bool on);
/* Starts logging on the device, unless it logs already. Called when bytes have left it for lack of room. */
int mgd_step_begin(struct mgd_machine *m, int device);
/* Logs an operator, or follows the plan: then *n actions have begun, each with a use that the caller gives back when it
 * has ended the action: SPARE, SPILL and DROP by mgd_evict_end(), RESTORE by mgd_restore_end(); FORGET is handled as in
 * mgd_evict_begin(). *n in: room for actions, at least MGD_STEP_ACTIONS. *plans: the caller must call mgd_step_plan(),
 * at once if no plan is followed; else it may do so later.
 * ABSENT: the device does not log, until mgd_step_begin(). */
#define MGD_STEP_ACTIONS 64
int mgd_step_operator(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                      size_t *n, bool *plans);
/* Returns the next actions before this operator. Call it again as long as the previous call left room for at most two
 * actions: some take two places. */
int mgd_step_rest(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                  size_t *n);
/* True: the device logs, so it needs times. Lock-free; the answer may be one operator late. */
bool mgd_step_logs(const struct mgd_machine *m, int device);
/* Plans the period that was found. `free`: bytes that the device's allocator could give now; `pieces`: further bytes
 * that serve only some requests (step_plan.c says how much of them counts). `clock`: measures between moments in
 * `worked`; NULL: these are ns. Unknown durations are estimated from the bytes that an operator uses. Takes some ms,
 * most of it without the mutex. ABSENT: there is no period, or another thread has changed the log meanwhile. WAIT: more
 * operators must be logged first.
 * What operators requested beside their results counts as in use while they run, as far as there is room for that: it
 * is assumed to be freed when the operator ends. */
int mgd_step_plan(struct mgd_machine *m, int device, int64_t free, int64_t pieces, const struct mgd_step_clock *clock);
/* ---- addresses: for an allocator that cuts its memory into pieces (plan_layout.h)
 * True: the device follows a plan that has no addresses yet. */
bool mgd_step_layout_is_wanted(struct mgd_machine *m, int device);
/* Gives addresses to the storages of the followed plan that have more than `least` bytes and are not on the device now,
 * in a block of *bytes bytes, at most `room`. Results of at most MGD_PLACE_APART bytes have none as far as all that has
 * none finds room in `beside` bytes, which the allocator has for such requests alone. The core plans with less room if
 * they do not fit. Takes up to 64 layouts (plan_layout.h), mostly six to twelve, which is one to five seconds for some
 * hundred storages, without the mutex. *bytes 0: no storage has an address. ABSENT: no plan is followed. NO_ROOM: no
 * plan fits. NOMEM: nothing was changed.
 */
int mgd_step_layout_make(struct mgd_machine *m, int device, int64_t room, int64_t beside, int64_t least,
                         int64_t *bytes);
void mgd_step_layout_forget(struct mgd_machine *m, int device); /* the block is gone */
/* Gets where in the block the bytes of h belong while the running operator runs. If h is NULL: where what it requests
 * of so many bytes belongs, results first; and if `bytes` is 0, where all belongs that is made or comes home from this
 * operator to the 64th from here, the soonest first. Returns how many there are, at most n. */
int mgd_step_layout_places(struct mgd_machine *m, int device, const struct mgd_handle *h, int64_t bytes,
                           struct mgd_step_place *places, int n);
int mgd_step_read(struct mgd_machine *m, int device, struct mgd_step_state *out);

#ifdef __cplusplus
}
#endif
#endif
