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
 * Invariants: `order` is a heap by (key, seen) of exactly the resident unpinned
 * storages, with room for all open ones; guests are the spilled storages whose
 * bytes are here, first come first. */
struct mgd_storages {
  struct mgd_handle *first; /* all open ones */
  struct mgd_handle **order;
  int32_t open, ordered, size;
  struct mgd_handle_list guests;
  double age; /* key of the newest victim: what comes later is worth more by it */
};

/* Invariants: used is the sum over handles with on_host, and at most peak;
 * spares are the resident storages with memory, whose copy may be given up. */
struct mgd_host_room {
  int64_t used, limit, peak;
  struct mgd_handle_list spares;
};

/* ---- handle.c */
void mgd_handle_list_add(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_handle_list_remove(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host);
/* Into the order of victims and the list of spares, as its fields say. */
void mgd_handle_settle_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_handle_unsettle_locked(struct mgd_machine *m, struct mgd_handle *h);

bool mgd_handle_busy_locked(const struct mgd_machine *m, int above); /* storages or guests on devices above that id */

/* ---- evict.c */
void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h); /* room for it was made when it was opened */
void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h);

#endif
