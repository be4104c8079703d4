/* internal_clock_lock.h: the interpreter's lock on a clock, as the clock's other files see it. */
#ifndef MGD_INTERNAL_CLOCK_LOCK_H
#define MGD_INTERNAL_CLOCK_LOCK_H

#include <stddef.h>
#include <stdint.h>

struct mgd_alloc;

#define MGD_CLOCK_TURNS 4096 /* the most that are remembered */

/* The lock was held from `begin` to `end`. */
struct mgd_turn {
  int64_t begin, end;
};

/* Invariants: the turns from `first` to before `last` are in order, none is empty, and between two of them the lock was
 * free for a while; they are MGD_CLOCK_TURNS at most. Before the first of them the lock counts as free. */
struct mgd_clock_lock {
  struct mgd_turn *turns;
  size_t first, last, room; /* room: how many `turns` has memory for */
};

/* ---- clock_lock.c */
/* Returns when a thread that needs the lock for `ns`, from `begin` on, has held it for so long. */
int64_t mgd_clock_lock_end(const struct mgd_clock_lock *l, int64_t begin, int64_t ns);
/* Records that a thread holds it so. */
void mgd_clock_lock_take(struct mgd_clock_lock *l, struct mgd_alloc *alloc, int64_t begin, int64_t ns);

#endif
