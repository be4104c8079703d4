/* user.h: what a thread that uses storages has of its own: its counts of uses, and the ticks that number them.
 *
 * Part of handle.h, which includes it. Takes no lock.
 */
#ifndef MGD_USER_H
#define MGD_USER_H

#include <stdbool.h>
#include <stdint.h>

#define MGD_MAX_DEVICES 64 /* the host and 63 accelerators */

/* One thread's uses by the storages' home, so that "does anybody else use this?" reads a number for each thread and no
 * storage. Only its thread writes it, without a lock; both numbers only grow, so that what came and went in between is
 * seen. */
struct mgd_user {
  struct mgd_user *next; /* all of a machine; those whose thread has left are taken again */
  bool taken;
  uint64_t begun[MGD_MAX_DEVICES], ended[MGD_MAX_DEVICES];
};

/* A number that only its own thread writes. */
static inline void mgd_count_up(uint64_t *number, uint64_t by) {
  __atomic_store_n(number, __atomic_load_n(number, __ATOMIC_RELAXED) + by, __ATOMIC_RELAXED);
}

/* Numbers for uses, as many as MGD_TICKS from the one that is returned: one operator takes them together, so that
 * threads seldom meet here. They never run backwards. `ticks` is the caller's. */
#define MGD_TICKS 8
static inline uint64_t mgd_ticks_take(uint64_t *ticks) {
  return __atomic_fetch_add(ticks, MGD_TICKS, __ATOMIC_RELAXED) + MGD_TICKS;
}

#endif
