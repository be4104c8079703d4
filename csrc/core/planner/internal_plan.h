/* internal_plan.h: what the files of the planner share: plan*.c and nobody else.
 *
 * A step repeats, so operators are counted on over its end: operator o of the next step is operators + o. A "gap" is
 * what lies between a use of a storage and the next one, or the storage's death; it has the number of the use
 * before it. All arrays are as long as the step's, and are reused for each variant.
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
  int32_t *operator_of;        /* of a use */
  int32_t *until;              /* the gap after use k is at operators operator_of[k] + 1 .. until[k] - 1 */
  int32_t *after;              /* the next use of the same bytes; -1: they die */
  int32_t *first_death, *dead; /* those that die after o are dead[first_death[o]] .. dead[first_death[o + 1] - 1] */
  int64_t *made, *working;     /* bytes that an operator makes, and of all that it uses */
  int64_t *alive;              /* bytes that live at an operator */
  int64_t *in_ns, *out_ns;     /* a storage's copies */
  int64_t largest;             /* bytes of the largest storage */
  int64_t longest_ns;          /* no step takes longer than this */
};
/* Free it also where it failed. */
int mgd_plan_cycle_make(struct mgd_alloc *a, const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                        struct mgd_plan_cycle *c);
void mgd_plan_cycle_free(struct mgd_plan_cycle *c);

static inline bool mgd_plan_is_written(const struct mgd_plan_use *use) {
  return (use->flags & (MGD_PLAN_WRITTEN | MGD_PLAN_MADE)) != 0;
}

/* Of the storage that use k is of. */
static inline int64_t mgd_plan_bytes_of(const struct mgd_plan_cycle *c, int32_t k) {
  return c->step->storage[c->step->uses[k].storage].bytes;
}

/* ---- what is decided of each gap, by the number of the use before it */
/* Operators are counted in the step of that use. Invariants of evict: it is -1, or after the use and before `until`;
 * where all those are away from evict to until, everything fits. */
struct mgd_plan_choice {
  int32_t *evict; /* the operator that needs the room at the latest; -1: the bytes stay */
  int32_t *leave; /* the operator before which they leave; -1: they stay after all */
  int32_t *fetch; /* the operator before which they are fetched; `until` where nobody needs them again */
  int32_t *write; /* of a use that writes: the operator before which the bytes are copied to the host; -1: not yet */
  int32_t *write_turn, *fetch_turn; /* which of several copies before one operator is the first */
};

/* ---- plan_evict.c: which bytes leave */
struct mgd_plan_evict {
  struct mgd_plan_heap home; /* by next use, the latest first */
  bool *is_home, *is_written; /* by storage; is_written: by any operator */
  int32_t *gap;  /* which a storage is in, -1: none */
  int64_t *base; /* operators before the step of that gap */
  int64_t *limit, *bytes;       /* by operator */
  struct mgd_plan_entry *order; /* by use */
};
int mgd_plan_evict_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_evict *e);
void mgd_plan_evict_free(struct mgd_plan_evict *e);
struct mgd_plan_way {
  int32_t slack; /* per cent of the room that are left free */
  int32_t spare; /* and so many times the largest storage */
  bool even;     /* what is away for more than half of a step is spread over it */
  bool small;    /* small storages leave as others do */
  bool trades;   /* gaps that cost much are traded for others that free less */
};
/* Fills `evict`, which is by use. The profile is for it to use. */
void mgd_plan_evict_choose(struct mgd_plan_evict *e, const struct mgd_plan_cycle *c, struct mgd_plan_way way,
                           struct mgd_plan_profile *profile, int32_t *evict);
/* Sets the profile to what is in use when gaps are away from `from` to `to`, where from is not -1. bytes: by operator,
 * the same. */
void mgd_plan_evict_profile(const struct mgd_plan_cycle *c, const int32_t *from, const int32_t *to, int64_t *bytes,
                            struct mgd_plan_profile *profile);

/* ---- plan_device.c: when the device does what */
/* Of the room that is not used, `ready` bytes are free, and piece[s] of each s in `pieces` from its key on. Invariant:
 * ready and the pieces are room - used; ready is negative only where that is. */
struct mgd_plan_device {
  const struct mgd_plan_cycle *cycle;
  int64_t used, ready;
  int64_t reached, end;       /* the start and the end of the operator issued last; the host is at its start */
  int64_t in_free, out_free;  /* ends of the streams */
  bool *is_home, *has_copy;   /* by storage, in the host's order */
  int64_t *written, *idle, *arrives, *copied; /* by storage: ends of the last write, use, fetch, copy to the host */
  int64_t *piece;
  struct mgd_plan_heap pieces;
  struct mgd_plan_entry *scratch;
};
int mgd_plan_device_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_device *d);
void mgd_plan_device_free(struct mgd_plan_device *d);
void mgd_plan_device_reset(struct mgd_plan_device *d); /* nothing is home, the host has all */
void mgd_plan_device_write(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_leave(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_fetch(struct mgd_plan_device *d, int32_t s);
void mgd_plan_device_appear(struct mgd_plan_device *d, int32_t s); /* it was there all the time */
int64_t mgd_plan_device_start(struct mgd_plan_device *d, int32_t o); /* when it would start, if it were issued now */
void mgd_plan_device_run(struct mgd_plan_device *d, int32_t o);    /* its operands are home */
void mgd_plan_device_die(struct mgd_plan_device *d, int32_t o);    /* those that die after it */

/* ---- plan_pace.c: when they leave and come back */
struct mgd_plan_pace {
  struct mgd_plan_heap queue; /* storages to be written, by when their room is needed */
  struct mgd_plan_entry *fetches;
  int32_t fetch_count;
  int64_t next_fetch;           /* fetches of earlier steps count */
  int32_t *due;                 /* of a use: when its bytes are needed on the host, -1: never */
  int32_t *leaving;             /* of a storage: the gap in which it is to leave and did not yet, -1: none */
  int32_t *gap, *version;       /* of a storage: the last use, and the last that wrote; -1: none */
  int64_t *base, *version_base; /* operators before the steps of these */
  int64_t *lease, *lease_end;   /* of a storage: where the profile counts it in spite of `evict`; -1: nowhere */
  int64_t *latest;
};
int mgd_plan_pace_make(struct mgd_alloc *a, const struct mgd_plan_cycle *c, struct mgd_plan_pace *p);
void mgd_plan_pace_free(struct mgd_plan_pace *p);
/* By use: when its bytes are needed on the host, where gaps begin at `leave`; -1: never, or they are written before.
 * latest is by storage, for the function to use. */
void mgd_plan_pace_find_due(const struct mgd_plan_cycle *c, const int32_t *leave, int64_t *latest, int32_t *due);
/* Fills the rest of the choice by simulating some steps. The profile is what is in use when all of `evict` are away
 * from right after the use on. */
void mgd_plan_pace_choose(struct mgd_plan_pace *p, struct mgd_plan_device *d, struct mgd_plan_profile *profile,
                          struct mgd_plan_choice *choice);

/* ---- plan_settle.c: the choice, made to hold */
/* Mends leave and fetch until everything fits in the host's order. No gap is filled with the last `spare` bytes.
 * bytes: by operator, for it to use. */
void mgd_plan_settle_mend(const struct mgd_plan_cycle *c, int64_t spare, int64_t *bytes,
                          struct mgd_plan_profile *profile, struct mgd_plan_choice *choice);
/* Writes down the actions, of which there are three a use at most, and counts their bytes. order: as many entries, for
 * it to use. due: of mgd_plan_pace_find_due() for choice->leave. */
void mgd_plan_settle_list(const struct mgd_plan_cycle *c, const struct mgd_plan_choice *choice, const int32_t *due,
                          struct mgd_plan_entry *order, struct mgd_plan *plan);

/* ---- plan_run.c */
/* Runs the plan; INVALID where it breaks a rule. ns: of each lap. */
int mgd_plan_run_laps(struct mgd_plan_device *d, const struct mgd_plan *plan, int32_t laps, int64_t *ns);

#endif
