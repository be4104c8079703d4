/* plan.h: which bytes leave a device with too little room, and when they come back: decided in advance.
 *
 * A recorded step is a list of operators that comes again and again. The plan says for each operator what the executor
 * does right before it issues it. The host issues operators ahead of the device, and room is taken and given back in
 * the host's order, so that a plan is a list by operator and knows no times.
 *
 * Bytes are int64_t, times ns. Operators, storages and uses are numbers from 0. Needs no machine; keeps no state.
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
  MGD_PLAN_WRITTEN = 2, /* a copy on the host is no longer good */
  MGD_PLAN_MADE = 4     /* the operator allocates it; implies WRITTEN */
};

/* What an operator does with a storage: one of the flags at least. An operator names a storage once at most. */
struct mgd_plan_use {
  int32_t storage;
  uint32_t flags;
};

/* A storage that dies is made by exactly one operator, and used by none outside its life. Where dies is less than the
 * operator that makes it, it dies in the next step. One that lives through all steps is made by none; where no
 * operator uses it, it is taken to be away. */
struct mgd_plan_storage {
  int64_t bytes; /* >= 0 */
  int32_t dies;  /* the operator after which it is freed; -1: it lives through all steps */
};

/* The caller's arrays; nobody keeps them. The step after operators - 1 is operator 0 again. */
struct mgd_plan_step {
  int32_t operators, storages;           /* >= 1; >= 0 */
  const int64_t *ns;                     /* the duration of each operator, >= 0 */
  const int32_t *first_use;              /* operators + 1: uses of o are first_use[o] .. first_use[o + 1] - 1 */
  const struct mgd_plan_use *uses;       /* first_use[operators] */
  const struct mgd_plan_storage *storage; /* storages */
};

struct mgd_plan_machine {
  int64_t room;            /* bytes that the storages may take */
  struct mgd_link in, out; /* from the host, to the host; they do not disturb each other */
};

/* ---- the plan */

/* Right before an operator is issued. Copies of one direction run one after the other, in the order of the plan. */
enum mgd_plan_action_kind {
  MGD_PLAN_WRITE, /* begin to copy the bytes to the host. They stay, and may be read meanwhile; nobody writes them
                   * before they leave for the first time after it */
  MGD_PLAN_LEAVE, /* give up the bytes: a good copy is on the host or was begun. Who takes the room waits, on the
                   * device, for that copy and for the operators that used it */
  MGD_PLAN_FETCH  /* take room and begin to copy the bytes back; who uses them waits, on the device */
};

struct mgd_plan_action {
  int32_t kind, storage;
};

/* Invariants, in the host's order and for step after step: what is home, with what is being fetched, never exceeds the
 * room, an operator's results included; what an operator uses is home or was begun to be fetched; LEAVE is of bytes
 * that are home and not used by the operator before which it stands; FETCH of those that are away. Before one operator
 * all WRITEs come first and all FETCHes last. A storage that no operator writes has no WRITE: its copy is good from the
 * first time on that it left, and at that time the executor has to write it. */
struct mgd_plan {
  int32_t operators, actions;
  int32_t *first_action; /* operators + 1: actions before o are first_action[o] .. first_action[o + 1] - 1 */
  struct mgd_plan_action *action;
  int64_t ns;                 /* of a step in the steady state, by mgd_plan_simulate()'s rules */
  int64_t ideal_ns;           /* the sum of the operators */
  int64_t bytes_in, bytes_out; /* copied in each step */
};

/* Plans the steady state. NO_ROOM: an operator's own storages exceed the room. OVERFLOW: the sum of bytes or of times
 * does. INVALID: the step or the machine is outside what is said above. NOMEM. fail_allocation: the allocation that
 * fails, 0 for none. Same arguments, same plan. Takes O((operators + uses) log) for each of nine ways. */
int mgd_plan_make(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine, int64_t fail_allocation,
                  struct mgd_plan **out);
void mgd_plan_free(struct mgd_plan *plan); /* NULL is none */

/* plan_early.c: each WRITE moves up to right behind the last operator that writes the storage, as far as the order of
 * the copies allows: for an executor whose copies wait for all operators that were issued before. NOMEM: nothing
 * changed. */
int mgd_plan_early_write(const struct mgd_plan_step *step, struct mgd_plan *plan, int64_t fail_allocation);

/* How long each of `laps` steps takes after one that is not counted: into ns, which has laps entries and is written
 * also where the call fails. INVALID: the plan is not one for this step and this room.
 *
 * The device runs operator after operator. One starts when the one before has ended, its storages have arrived and
 * its room is free; a copy when its stream is free, the host has come there, the bytes have been written, and, to come
 * back, have arrived at the host and the room is free. The host is one operator ahead: it does what stands before an
 * operator when the one before starts. Room that is free first is taken first. */
int mgd_plan_simulate(const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                      const struct mgd_plan *plan, int32_t laps, int64_t fail_allocation, int64_t *ns);

#ifdef __cplusplus
}
#endif
#endif
