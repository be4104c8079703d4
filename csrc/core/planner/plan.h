/* plan.h: plans in advance which bytes leave a device with too little room, and when they come back.
 *
 * A recorded step is a list of operators that repeats. The plan says for each operator what the executor does right
 * before it issues the operator. The host issues operators ahead of the device, and room is taken and given back in
 * the host's order, so a plan is a list by operator and has no times.
 *
 * Bytes are int64_t, times ns. Operators, storages and uses are numbers from 0. The planner needs no machine and keeps
 * no state.
 */
#ifndef MGD_PLAN_H
#define MGD_PLAN_H

#include "core/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MGD_PLAN_MOST ((int32_t)1 << 26) /* operators, uses and storages of a step, each */

/* ---- the recorded step */

enum mgd_plan_use_flag {
  MGD_PLAN_READ = 1,
  MGD_PLAN_WRITTEN = 2, /* a copy on the host is not good any more */
  MGD_PLAN_MADE = 4     /* the operator allocates it; implies WRITTEN */
};

/* Tells what an operator does with a storage, by at least one flag. An operator names a storage at most once. */
struct mgd_plan_use {
  int32_t storage;
  uint32_t flags;
};

/* A storage that dies is made by exactly one operator, and not used outside its life. If `dies` is less than the
 * operator that makes it, it dies in the next step. A storage that lives through all steps is made by no operator; if
 * no operator uses it, it is assumed to be away. */
struct mgd_plan_storage {
  int64_t bytes; /* >= 0 */
  int32_t dies;  /* the operator after which it is freed; -1: it lives through all steps */
};

/* The arrays are the caller's and are not kept. After operator operators - 1 comes operator 0 again. */
struct mgd_plan_step {
  int32_t operators, storages;           /* >= 1; >= 0 */
  const int64_t *ns;                     /* the duration of each operator, >= 0 */
  const int32_t *first_use;              /* has operators + 1: uses of o are first_use[o] .. first_use[o + 1] - 1 */
  const struct mgd_plan_use *uses;       /* has first_use[operators] */
  const struct mgd_plan_storage *storage; /* has storages */
};

struct mgd_plan_machine {
  int64_t room;            /* bytes that the storages may take */
  struct mgd_link in, out; /* from the host, to the host; they do not slow each other down */
};

/* ---- the plan */

/* Actions are done right before an operator is issued. Copies of one direction run in sequence, in the plan's order. */
enum mgd_plan_action_kind {
  MGD_PLAN_WRITE, /* begin to copy the bytes to the host. They stay, and may be read meanwhile; no operator writes
                   * them before they next leave */
  MGD_PLAN_LEAVE, /* free the bytes: a good copy is on the host or was begun. The next use of the room waits, on the
                   * device, for that copy and for the operators that used the bytes */
  MGD_PLAN_FETCH  /* take room and begin to copy the bytes back; their users wait, on the device */
};

struct mgd_plan_action {
  int32_t kind, storage;
};

/* Invariants, in the host's order and in every step: the bytes at home, those being fetched and an operator's results
 * included, never exceed the room; what an operator uses is home or its FETCH has begun; a LEAVE is for bytes that are
 * home and that the operator after it does not use; a FETCH is for bytes that are away. Before one operator all WRITEs
 * come first and all FETCHes last. A storage that no operator writes has no WRITE: the executor copies it when it
 * leaves for the first time, and that copy stays good. */
struct mgd_plan {
  int32_t operators, actions;
  int32_t *first_action; /* operators + 1: actions before o are first_action[o] .. first_action[o + 1] - 1 */
  struct mgd_plan_action *action;
  int64_t ns;                 /* duration of a step in the steady state, by mgd_plan_simulate()'s rules */
  int64_t ideal_ns;           /* sum of the operators' durations */
  int64_t bytes_in, bytes_out; /* copied in each step */
};

/* Plans the steady state. NO_ROOM: an operator's own storages exceed the room. OVERFLOW: the sum of bytes or of times
 * is too large. INVALID: the step or the machine is not as documented above. NOMEM: memory ran out. fail_allocation:
 * the number of the allocation that fails, 0 for none. The result is deterministic. Takes O((operators + uses) log) for
 * each of at most nine candidate plans. */
int mgd_plan_make(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine, int64_t fail_allocation,
                  struct mgd_plan **out);
void mgd_plan_free(struct mgd_plan *plan); /* NULL is ignored */

/* plan_early.c: moves each WRITE up to right behind the last operator that writes the storage, as far as the order of
 * the copies allows: for an executor whose copies wait for all operators that were issued before. NOMEM: nothing
 * changed. */
int mgd_plan_early_write(const struct mgd_plan_step *step, struct mgd_plan *plan, int64_t fail_allocation);

/* plan_early.c: makes the plan in which each LEAVE stands right behind the storage's last use, and its WRITE: for an
 * executor whose copies into room that was given up wait for all operators that were issued before. */
int mgd_plan_early_leave(const struct mgd_plan_step *step, const struct mgd_plan *plan, int64_t fail_allocation,
                         struct mgd_plan **out);

/* Computes how long each of `laps` steps takes after one that is not counted. ns has `laps` entries, and may be written
 * even if the call fails. INVALID: the plan does not fit this step and this room.
 *
 * The device runs operator after operator. One starts when the one before has ended, its storages have arrived and
 * its room is free. A copy starts when its stream is free, the host has reached it and the bytes have been written; a
 * copy back also needs the bytes on the host and free room. The host is one operator ahead: it does the actions before
 * an operator when the previous operator starts. Room that is free first is taken first. */
int mgd_plan_simulate(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                      const struct mgd_plan *plan, int32_t laps, int64_t fail_allocation, int64_t *ns);

#ifdef __cplusplus
}
#endif
#endif
