/* internal_step_log.h: the log of a device's operators.
 *
 * Private to the core; internal_step.h has the struct that holds it. The machine's mutex guards all of it.
 */
#ifndef MGD_INTERNAL_STEP_LOG_H
#define MGD_INTERNAL_STEP_LOG_H

#include "core/core.h"
#include "core/steps/step.h"

struct mgd_step;

#define MGD_STEP_OPERATORS (1 << 16) /* the most that a log holds; then it restarts */
#define MGD_STEP_USES (1 << 18)
#define MGD_STEP_WINDOW 8 /* so many consecutive operators usually identify a place in a step */

/* Updates a hash of the last MGD_STEP_WINDOW operators, a polynomial, when one comes and the oldest goes. */
static inline uint64_t mgd_step_roll(uint64_t window, uint64_t comes, uint64_t goes) {
  const uint64_t base = 0x9e3779b97f4a7c15u; /* the golden ratio as a fraction of 2^64; odd, so no bits are lost */
  const uint64_t square = base * base, fourth = square * square;
  return window * base + comes - goes * (fourth * fourth);
}

static inline uint64_t mgd_step_mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

/* Describes a storage in the log. Operators are numbered from 0 in the order of the log. */
struct mgd_step_seen {
  struct mgd_handle *handle; /* NULL: it has died, or is memory that an operator had for itself */
  int64_t bytes;
  int32_t made, ordinal; /* the operator that made it, -1: before the log; index among its results */
  int32_t died; /* the last operator before it died, -1: alive */
  bool own;     /* an operator had it for itself: it has no handle, and follows the results in `made` */
};

struct mgd_step_logged_use {
  int32_t seen;
  bool written;
};

struct mgd_step_logged {
  const char *name;
  uint64_t kind; /* hash of the name, and of the bytes and writes of its uses */
  uint64_t window; /* hash of the kinds of the last MGD_STEP_WINDOW operators */
  uint64_t mark; /* hash of the kind, and of the used storages that are older than the log */
  uint64_t place; /* hash of the marks of the last MGD_STEP_WINDOW operators */
  int64_t worked, pressed; /* mgd_step_call.worked; mgd_storages.pressed before the operator */
  int64_t known_ns; /* its duration in the plan that was followed; -1: none */
  int32_t first_use, first_made; /* indices of `uses`, `made`; they end at the next operator's */
  int32_t earlier; /* the previous operator in its bucket, -1: none */
};

/* Invariants: `made` lists what was made in the log, in order; mgd_handle.seen of a live storage in the log is its
 * index in `seen`. period > 0: the last operators are like those `period` before them; `fresh` of these were in no
 * plan. */
struct mgd_step_log {
  struct mgd_step_logged *operators;
  struct mgd_step_logged_use *uses;
  struct mgd_step_seen *seen;
  int32_t *made;
  int32_t count, uses_count, seen_count, made_count; /* lengths of the arrays above */
  int32_t size, uses_size, seen_size, made_size;
  int32_t *buckets; /* by hash of the place: the last operator, -1: none */
  int32_t period, fresh;
};

/* ---- step_log.c */
void mgd_step_log_clear_locked(struct mgd_step_log *log);
void mgd_step_log_free(struct mgd_step_log *log);
/* Appends an operator, and its duration if that is known (else -1), after what the operator before had for itself.
 * False: the log is full, or there is no memory. */
bool mgd_step_log_add_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind,
                             int64_t known_ns);
void mgd_step_log_made_locked(struct mgd_machine *m, struct mgd_step_log *log, struct mgd_handle *h);
void mgd_step_log_died_locked(struct mgd_step_log *log, struct mgd_handle *h);
void mgd_step_log_resized_locked(struct mgd_step_log *log, const struct mgd_handle *h);
/* True: the operator that was added last begins a period again. `doubts`: how many found periods proved to be none. */
bool mgd_step_log_repeats_locked(struct mgd_step_log *log, int32_t doubts);
/* The period that was found cannot be planned, or not yet. A shorter one takes its place if there is one: a whole
 * training that repeats the one before hides its own steps. */
void mgd_step_log_look_again_locked(struct mgd_step_log *log);

#endif
