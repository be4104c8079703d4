/* internal_trace.h: the part of a machine that records what happened, where in
 * the program, and how often to the same tensor.
 *
 * Private to the core, like internal_machine.h, which includes it: these structs
 * live inside the machine and are guarded by its mutex.
 */
#ifndef MGD_INTERNAL_TRACE_H
#define MGD_INTERNAL_TRACE_H

#include "core/core.h"

/* Invariants: held <= size, held <= totals.events; the newest event has sequence
 * totals.events and lies just before `next`; sequences in the ring have no gap. */
struct mgd_trace {
  struct mgd_event *ring;
  size_t size, held, next;
  size_t usual; /* while all is kept: the size to return to; else 0 */
  uint64_t objects; /* object ids ever given */
  struct mgd_totals totals;
};

#define MGD_SITE_SLOTS 8192 /* a power of two, large enough to keep probing short */

/* Both arrays are made with the first site and never move.
 * Invariants: count <= MGD_MAX_SITES; the arrays exist if count > 0; a known
 * site is found in the index under its own id. */
struct mgd_sites {
  struct mgd_site *list; /* by site id - 1; both strings share one block, which begins at file */
  uint16_t *index;       /* open addressing by hash: an id, or 0 */
  uint32_t count;
};

#define MGD_REPEAT_SETS 256 /* a power of two */
#define MGD_REPEAT_WAYS 8

/* Counts the copies of one object to one device. A slot of an earlier step is free. */
struct mgd_repeat_slot {
  uint64_t object, step, used; /* used: the tick of its newest copy */
  uint64_t count;
  int64_t bytes;
  int to;
};

/* The slots are allocated at the first copy. Within a set, a new pair replaces the
 * slot that was used longest ago.
 * Invariants: 0 <= limit; slots exist if and only if tick > 0; the newest slot was
 * used at this tick, by an object, at least once, in this or an earlier step. */
struct mgd_repeats {
  struct mgd_repeat_slot *slots; /* MGD_REPEAT_SETS sets of MGD_REPEAT_WAYS */
  uint64_t step, tick;           /* ticks count copies */
  size_t newest;
  int64_t limit;
  uint64_t warned[MGD_MAX_SITES / 64 + 1]; /* a bit for each site */
};

/* ---- site.c */
uint32_t mgd_site_find_locked(const struct mgd_sites *sites, const struct mgd_site *site); /* 0 when it is not known */
void mgd_site_free(struct mgd_sites *sites);

#endif
