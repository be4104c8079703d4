/* internal_handle.h: what the directory of storages is made of.
 *
 * Private to the core, as internal_machine.h is, whose machine holds it.
 */
#ifndef MGD_INTERNAL_HANDLE_H
#define MGD_INTERNAL_HANDLE_H

#include "core/core.h"

struct mgd_handle_list {
  struct mgd_handle *oldest, *youngest;
};

/* A sum of bytes of as many storages as there may be. */
__extension__ typedef __int128 mgd_wide;

/* A place in the order. The key is here, so that comparing two storages need not read their handles. */
struct mgd_order_entry {
  double key;     /* the policy's; until the policy was asked, its device's age when the storage came */
  uint64_t stamp; /* the handle's, when the key was computed */
  struct mgd_handle *handle;
};

/* The storages whose home is one device, and its guests. Invariants:
 *   order       exactly the resident unpinned storages that have bytes; it has room for all open ones. The first
 *               `sorted` are a heap by (key, stamp); those up to `ordered` are new and have no key yet; behind them are
 *               `parked` ones, which the present search found unable to leave. Keys are numbers
 *   guests      the open spilled storages of other devices whose bytes are here; guest_count of them
 *   departures  moves under way away from this device, of its own storages and of guests, orphans included
 *   departing   bytes of those departures that are guests
 * The sums of bytes: ordered_bytes of `order`, and last_bytes of those in it with MGD_ADVICE_LAST; moving_bytes of the
 * open storages that are leaving, or coming home unpinned; guest_bytes of the guests. */
struct mgd_storages {
  struct mgd_handle *first; /* all open ones */
  struct mgd_order_entry *order;
  int32_t open, ordered, sorted, parked, size;
  struct mgd_handle_list guests;
  int32_t departures, guest_count;
  int64_t departing;
  mgd_wide ordered_bytes, last_bytes, moving_bytes, guest_bytes;
  uint64_t arrivals; /* how often a storage has come into the order so far */
  int64_t pressed;   /* bytes of own storages that left for want of room so far */
  int64_t copied;    /* bytes of own storages that were copied away and home so far */
  double age; /* largest finite key of a storage that has left; a policy may add to it (mgd_victim.age) */
  /* guest_backoff rises by one, up to MOST_BACKOFF, when a plan sends guests on to the host, and falls by one when a
   * guest comes home from here. guests_to_refuse: how many victims of other devices it does not take yet; set to
   * 2^guest_backoff when guests were sent on. */
  int32_t guest_backoff, guests_to_refuse;
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

/* ---- user.c */
struct mgd_uses {
  uint64_t begun, ended;
};
struct mgd_uses mgd_user_count_locked(const struct mgd_machine *m, int device);
/* Forgets all users but `kept`: they have left, and nobody uses anything. */
void mgd_user_forget_locked(struct mgd_machine *m, const struct mgd_user *kept);
void mgd_user_free(struct mgd_user *users);

/* ---- host.c */
void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host);

/* ---- residency.c */
bool mgd_residency_is_guest(const struct mgd_handle *h);
bool mgd_residency_is_home(const struct mgd_handle *h); /* or will be, with nothing left to decide */
bool mgd_residency_is_moving(const struct mgd_handle *h);
bool mgd_residency_is_victim(const struct mgd_handle *h); /* it has a place in the order */
bool mgd_residency_is_refused_locked(const struct mgd_machine *m, const struct mgd_handle *h);
/* Somebody uses the bytes, or their owner does not let them leave now. */
bool mgd_residency_must_stay_locked(const struct mgd_machine *m, const struct mgd_handle *h);
void mgd_residency_list_add(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_residency_list_remove(struct mgd_handle_list *list, struct mgd_handle *h);
/* Into the order of victims, the list and the sums that its fields name, and out of them. */
void mgd_residency_file_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_residency_unfile_locked(struct mgd_machine *m, struct mgd_handle *h);
/* begin: the caller has unfiled the handle and set its state to SPILLING or RESTORING; counts the move and files the
 * handle. end: the reverse, while the state is still that of the move; the caller then sets the new state and calls
 * mgd_residency_arrive_locked(). */
void mgd_residency_begin_move_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_residency_end_move_locked(struct mgd_machine *m, struct mgd_handle *h);
/* Hands out the copy on the host, which then counts no more. */
void *mgd_residency_take_memory_locked(struct mgd_machine *m, struct mgd_handle *h);
/* After a move: the handle is filed where it has come to; of an orphan nothing stays, its copy is handed out. */
void mgd_residency_arrive_locked(struct mgd_machine *m, struct mgd_handle *h, void **memory);

/* ---- handle.c */
/* Whether the host has a copy that is as good as the bytes at home. */
static inline bool mgd_handle_is_clean(const struct mgd_handle *h) {
  return h->memory && !__atomic_load_n(&h->dirty, __ATOMIC_RELAXED);
}
/* Whether there are storages or guests on devices above that id, or any is on its way. */
bool mgd_handle_busy_locked(const struct mgd_machine *m, int above);

/* Whether it is to stay as long as others can leave. */
static inline bool mgd_handle_leaves_last(const struct mgd_handle *h) { return (h->advice & MGD_ADVICE_LAST) != 0; }

/* ---- order.c */
#define MGD_LOOKS 16 /* handles that a call looks at, of each kind, before it lets others in */

/* A search for victims: whose keys it has computed anew, and for how many new storages it may still compute the first
 * one. */
struct mgd_order_search {
  struct mgd_handle *looked_at[MGD_LOOKS];
  int32_t count, new_keys;
};
void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h); /* room for it was made when it was opened */
void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h);
/* What it is worth has changed. One that is parked waits. */
void mgd_order_look_again_locked(struct mgd_machine *m, struct mgd_handle *h);
bool mgd_order_before(const struct mgd_order_entry *a, const struct mgd_order_entry *b);
int32_t mgd_order_parent(int32_t place); /* in the heap; of a place above 0 */
/* The one that leaves next, or NULL: all are parked. It is the one with the least key if at most MGD_LOOKS keys are out
 * of date. */
struct mgd_handle *mgd_order_first_locked(struct mgd_machine *m, struct mgd_storages *s,
                                          struct mgd_order_search *search);
void mgd_order_park_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_order_unpark_locked(struct mgd_machine *m, struct mgd_storages *s);

/* ---- evict.c: one storage goes to the host, or gets a copy there and stays; adds its actions to `actions`, which has
 * `size` places. False: it may not, now. `mine`: uses of the caller's, who only reads it. */
bool mgd_evict_leave_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *actions, size_t *n,
                            size_t size);
bool mgd_evict_spare_locked(struct mgd_machine *m, struct mgd_handle *h, uint32_t mine, struct mgd_action *actions,
                            size_t *n, size_t size);

/* ---- restore.c: one that is away begins to come home. The action has a use, which its mover puts back. */
bool mgd_restore_fetch_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a);

/* ---- check_handle.c */
bool mgd_check_handle_all_locked(const struct mgd_machine *m);

#endif
