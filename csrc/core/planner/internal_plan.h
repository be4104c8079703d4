/* internal_plan.h: what the files of the planner share. Private to plan*.c.
 *
 * A step repeats, so operators are counted on over its end: operator o of the next step is operators + o. A "gap" is
 * the time between a use of a storage and the next use, or the storage's death; it has the number of the use
 * before it. All arrays are as long as the step's, and are reused for each candidate plan.
 */
#ifndef MGD_INTERNAL_PLAN_H
#define MGD_INTERNAL_PLAN_H

#include "core/planner/internal_plan_parts.h"
#include "core/planner/plan.h"

/* ---- plan_cycle.c: the step, checked and indexed */
struct mgd_plan_cycle {
  const struct mgd_plan_step *step;
  struct mgd_plan_machine machine;
  int32_t operators, storages, uses;
  int32_t *operator_of;        /* by use */
  int32_t *until;              /* the gap after use k is at operators operator_of[k] + 1 .. until[k] - 1 */
  int32_t *after; /* by use: the next use of the same bytes; -1: they die */
  int32_t *first_death, *dead; /* dead[first_death[o]] .. dead[first_death[o + 1] - 1] die after o */
  int64_t *made, *working; /* by operator: bytes that it makes, and bytes that it uses or makes */
  int64_t *alive; /* by operator: bytes of the storages that live then */
  int64_t *in_ns, *out_ns; /* by storage: durations of its copies */
  int64_t largest;             /* bytes of the largest storage */
  int64_t longest_ns;          /* no step takes longer than this */
};
/* The caller frees it even if this fails. */
int mgd_plan_cycle_make(struct mgd_alloc *a, const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                        struct mgd_plan_cycle *c);
void mgd_plan_cycle_free(struct mgd_plan_cycle *c);

static inline bool mgd_plan_is_written(const struct mgd_plan_use *use) {
  return (use->flags & (MGD_PLAN_WRITTEN | MGD_PLAN_MADE)) != 0;
}

/* Returns the bytes of the storage that use k names. */
static inline int64_t mgd_plan_bytes_of(const struct mgd_plan_cycle *c, int32_t k) {
  return c->step->storage[c->step->uses[k].storage].bytes;
}

/* ---- the decisions for each gap, by the number of the use before it */
/* Operators are counted in the step of that use. Invariants of evict: it is -1, or after the use and before `until`;
 * if all gaps with an evict are away from evict to until, everything fits. */
struct mgd_plan_choice {
  int32_t *evict; /* the operator that needs the room at the latest; -1: the bytes stay */
  int32_t *leave; /* the operator before which the bytes leave; -1: they stay after all */
  int32_t *fetch; /* the operator before which they are fetched; `until` if they are not used again */
  int32_t *write; /* if the use writes: the operator before which the bytes are copied to the host; -1: not yet */
  int32_t *write_turn, *fetch_turn; /* the order of several copies before one operator */
};

/* ---- plan_evict.c: which bytes leave */
struct mgd_plan_evict {
  struct mgd_plan_heap home; /* storages at home, by next use, the latest first */
  bool *is_home, *is_written; /* by storage; is_written: any operator writes it */
  int32_t *gap; /* by storage: the gap that it is in */
  int64_t *base; /* by storage: operators before the step of that gap */
  int64_t *limit, *bytes;       /* by operator */
  struct mgd_plan_entry *order; /* by use */
};
int mgd_plan_evict_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_evict *e);
void mgd_plan_evict_free(struct mgd_plan_evict *e);
struct mgd_plan_way {
  int32_t slack; /* per cent of the room that are left free */
  int32_t spare; /* so many times the largest storage is left free in addition */
  bool even; /* storages that are away for more than half of a step are spread over it */
  bool small; /* small storages leave like large ones */
  bool trades; /* expensive gaps are traded for cheaper ones that free less */
};
/* Fills `evict`, which is by use. `profile` is scratch memory. */
void mgd_plan_evict_choose(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_way way,
                           struct mgd_plan_profile *profile, int32_t *evict);
/* Sets `profile` to the bytes in use at each operator if each gap with from >= 0 is away from `from` to `to`. `bytes`
 * gets the same, by operator. */
void mgd_plan_evict_profile(const struct mgd_plan_cycle *c, const int32_t *from, const int32_t *to, int64_t *bytes,
                            struct mgd_plan_profile *profile);

/* ---- plan_device.c: when the device runs operators and copies */
/* Of the unused room, `ready` bytes are free now, and piece[s] bytes of each s in `pieces` are free from its key on.
 * Invariant: ready plus the pieces is room - used; ready is negative only if that sum is. */
struct mgd_plan_device {
  const struct mgd_plan_cycle *cycle;
  int64_t used, ready;
  int64_t reached, end; /* start and end of the operator issued last; the host is at `reached` */
  int64_t in_free, out_free; /* when the copy streams are free */
  bool *is_home, *has_copy;   /* by storage, in the host's order */
  int64_t *written, *idle, *arrives, *copied; /* by storage: ends of the last write, use, fetch, copy to the host */
  int64_t *piece;
  struct mgd_plan_heap pieces;
  struct mgd_plan_entry *scratch;
};
int mgd_plan_device_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_device *d);
void mgd_plan_device_free(struct mgd_plan_device *d);
void mgd_plan_device_reset(struct mgd_plan_device *d); /* then nothing is home and the host has all bytes */
void mgd_plan_device_write(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_leave(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_fetch(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_appear(struct mgd_plan_device *d, int32_t s); /* takes its room: it counts as always home */
int64_t mgd_plan_device_start(struct mgd_plan_device *d, int32_t o); /* when it would start if issued now */
void mgd_plan_device_run(struct mgd_plan_device *d, int32_t o); /* its operands must be home */
void mgd_plan_device_die(struct mgd_plan_device *d, int32_t o); /* frees what dies after it */

/* ---- plan_pace.c: when bytes leave and come back */
struct mgd_plan_pace {
  struct mgd_plan_heap queue; /* storages to be copied to the host, by when their room is needed */
  struct mgd_plan_entry *fetches;
  int32_t fetch_count;
  int64_t next_fetch; /* index of the next fetch, counted on over the steps */
  int32_t *due; /* by use: when its bytes are needed on the host, -1: never */
  int32_t *leaving; /* by storage: the gap in which it shall leave but has not yet, -1: none */
  int32_t *gap, *version; /* by storage: the last use, and the last use that wrote; -1: none */
  int64_t *base, *version_base; /* by storage: operators before the steps of these uses */
  int64_t *lease, *lease_end; /* by storage: where the profile counts it despite `evict`; -1: nowhere */
  int64_t *latest;
};
int mgd_plan_pace_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_pace *p);
void mgd_plan_pace_free(struct mgd_plan_pace *p);
/* Fills `due`, by use: when the bytes are needed on the host if gaps begin at `leave`; -1: never, or an operator writes
 * them before. `latest`, by storage, is scratch memory. */
void mgd_plan_pace_find_due(const struct mgd_plan_cycle *c, const int32_t *leave, int64_t *latest, int32_t *due);
/* Fills the rest of the choice by simulating some steps. `profile` holds the bytes in use if all gaps with an `evict`
 * are away from right after the use on. */
void mgd_plan_pace_choose(struct mgd_plan_pace *p, struct mgd_plan_device *d, struct mgd_plan_profile *profile,
                          struct mgd_plan_choice *choice);

/* ---- plan_settle.c: makes the choice valid */
/* Corrects leave and fetch until everything fits in the host's order. Filling gaps leaves `spare` bytes free. `bytes`,
 * by operator, is scratch memory. */
void mgd_plan_settle_mend(const struct mgd_plan_cycle *c, int64_t spare, int64_t *bytes,
                          struct mgd_plan_profile *profile, struct mgd_plan_choice *choice);
/* Writes the actions, at most three for each use, into the plan and counts their bytes. `order` is scratch memory with
 * as many entries. due: the result of mgd_plan_pace_find_due() for choice->leave. */
void mgd_plan_settle_list(const struct mgd_plan_cycle *c, const struct mgd_plan_choice *choice, const int32_t *due,
                          struct mgd_plan_entry *order, struct mgd_plan *plan);

/* ---- plan_run.c */
/* Runs the plan for one lap and then `laps` more. ns: the duration of each of these. INVALID: it breaks a rule. */
int mgd_plan_run_laps(struct mgd_plan_device *d, const struct mgd_plan *plan, int32_t laps, int64_t *ns);

#endif
