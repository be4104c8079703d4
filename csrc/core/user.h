/* user.h: the per-thread counts of uses of storages, and the ticks that number uses.
 *
 * Part of handle.h, which includes it. The functions are lock-free.
 */
#ifndef MGD_USER_H
#define MGD_USER_H

#include <stdbool.h>
#include <stdint.h>

#define MGD_MAX_DEVICES 64 /* the host and 63 accelerators */

/* Counts one thread's uses by the storages' home, so that a check for uses by other threads reads one entry per thread
 * and no storage. Only the thread itself writes it, lock-free. Both counts only grow, so a use that began and ended
 * between two reads is noticed. */
struct mgd_user {
  struct mgd_user *next; /* list of all in a machine; an entry is reused after its thread has left */
  bool taken;
  uint64_t begun[MGD_MAX_DEVICES], ended[MGD_MAX_DEVICES];
};

/* Adds to a number that only the calling thread writes. */
static inline void mgd_count_up(uint64_t *number, uint64_t by) {
  __atomic_store_n(number, __atomic_load_n(number, __ATOMIC_RELAXED) + by, __ATOMIC_RELAXED);
}

/* Takes MGD_TICKS consecutive numbers for uses and returns the first. An operator takes them in one call, so threads
 * seldom contend here. The numbers only grow. `ticks` is the caller's. */
#define MGD_TICKS 8
static inline uint64_t mgd_ticks_take(uint64_t *ticks) {
  return __atomic_fetch_add(ticks, MGD_TICKS, __ATOMIC_RELAXED) + MGD_TICKS;
}

#endif
