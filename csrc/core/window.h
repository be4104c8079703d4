/* window.h: which storages leave so that the free bytes of a device come together.
 *
 * An allocator cuts its memory into blocks, and a request needs one piece. When enough bytes are free, but in pieces
 * between blocks in use, the least recently used storages are seldom neighbours, so evicting them makes more pieces.
 * A window is a row of neighbouring blocks, each of which is free or has a storage that may leave.
 */
#ifndef MGD_WINDOW_H
#define MGD_WINDOW_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A block of an allocator. An array of them is in the order of addresses. */
struct mgd_window_block {
  const void *at;
  int64_t bytes;
  bool is_free;
  bool begins; /* it is not joined with the block before, even if both are free */
};

/* Finds the window of at least `bytes` bytes with the least sum of costs. cost: by block; below 0: it must stay. False:
 * there is none, and *first and *last are not written. Takes O(n). */
bool mgd_window_find(const struct mgd_window_block *block, const double *cost, size_t n, int64_t bytes, size_t *first,
                     size_t *last);

/* Gets where the bytes of a storage are; NULL: the place is not known, or they are on their way. It is called with the
 * machine's mutex held, so it must only read. */
typedef const void *(*mgd_window_at_fn)(const struct mgd_handle *handle);

/* Plans that the storages in the cheapest window leave for the host. The cost of a storage is the time in ns in which
 * it leaves and comes back, times 1 to 2, by how recently it was used among the storages of the device; nothing for one
 * that is to leave first by its advice. One that is to leave last ends a window.
 * OK and actions: as for mgd_evict_begin(); if a storage cannot leave after all, those behind it stay. ABSENT: there is
 * no window, none of its storages can leave now, they have more than `most` bytes, or the host has no room for them.
 * NOMEM: memory ran out. *n in: the room in `actions`, at least 2. */
int mgd_window_evict(struct mgd_machine *m, int device, int64_t bytes, int64_t most,
                     const struct mgd_window_block *block, size_t blocks, mgd_window_at_fn at,
                     struct mgd_action *actions, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
