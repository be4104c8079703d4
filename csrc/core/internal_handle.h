/* internal_handle.h: what the directory of storages is made of.
 *
 * Private to the core, as internal_machine.h is, whose machine holds it.
 */
#ifndef MGD_INTERNAL_HANDLE_H
#define MGD_INTERNAL_HANDLE_H

#include "internal.h"

struct mgd_handle_list {
  struct mgd_handle *oldest, *youngest;
};

/* The storages whose home is one device, and its guests.
 * Invariants: `order` has exactly the resident unpinned storages that have bytes,
 * with room for all open ones; the first `sorted` of its `ordered` entries are a heap
 * by (key, seen), the others came since; keys are numbers. Guests
 * are the open spilled storages of other devices whose bytes are here, first come
 * first; departures are those that are being brought from here to the host or
 * home, orphans included, and departing is the sum of their bytes. */
struct mgd_storages {
  struct mgd_handle *first; /* all open ones */
  struct mgd_handle **order;
  int32_t open, ordered, sorted, size;
  struct mgd_handle_list guests;
  int32_t departures;
  int64_t departing;
  double age; /* key of the newest victim: what comes later is worth more by it */
  int32_t sent_on, refusals; /* plans that sent guests on, less guests that came home; victims of others that it does not take yet */
};

/* Invariants: used is the sum over handles with on_host, open ones and orphans,
 * and at most peak; spares are the open resident storages with memory, whose copy may
 * be given up, and spare_bytes is their sum. */
struct mgd_host_room {
  int64_t used, limit, peak;
  struct mgd_handle_list spares;
  int64_t spare_bytes;
};

/* Invariants: count is how many storages are SPILLING or RESTORING, and orphans
 * are those of them that are closed: they are in no other list, and go when the move ends. */
struct mgd_moves {
  int32_t count;
  struct mgd_handle_list orphans;
};

/* ---- handle.c */
void mgd_handle_list_add(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_handle_list_remove(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host);
/* Into the order of victims and the list that its fields name, and out of them. */
void mgd_handle_settle_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_handle_unsettle_locked(struct mgd_machine *m, struct mgd_handle *h);

/* A move began (1) or ends (-1); `away` is still where the bytes come from. */
void mgd_handle_count_move_locked(struct mgd_machine *m, const struct mgd_handle *h, int by);
bool mgd_handle_busy_locked(const struct mgd_machine *m, int above); /* storages or guests on devices above that id, or any on its way */

/* ---- evict.c */
void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h); /* room for it was made when it was opened */
void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h);
bool mgd_order_before(const struct mgd_handle *a, const struct mgd_handle *b);

/* ---- check_handle.c */
bool mgd_check_handles_locked(const struct mgd_machine *m);

#endif
