/* internal_handle.h: the structs of the directory of storages, and its private functions.
 *
 * Private to the core, like internal_machine.h, whose machine holds the directory.
 */
#ifndef MGD_INTERNAL_HANDLE_H
#define MGD_INTERNAL_HANDLE_H

#include "core/growth.h"

struct mgd_handle_list {
  struct mgd_handle *oldest, *youngest;
};

/* Holds the sum of bytes of any number of storages. */
__extension__ typedef __int128 mgd_wide;

/* One place in the order. It holds the key, so that comparing two storages need not read their handles. */
struct mgd_order_entry {
  double key;     /* the policy's; before the policy was asked: the device's age when the entry was made */
  uint64_t stamp; /* the handle's, when the key was computed */
  struct mgd_handle *handle;
};

/* The storages whose home is one device, and its guests. Invariants:
 *   order       has exactly the resident or arriving, unpinned storages with bytes, and room for all open ones. The
 *               first `sorted` are a heap by (key, stamp); those up to `ordered` are new and have no key yet; behind
 *               them are `parked` ones, which the current search found unable to leave. No key is a NaN
 *   guests      has the open spilled storages of other devices whose bytes are here; they are guest_count
 *   departures  counts moves under way away from this device, of its own storages and of guests, orphans included
 *   departing   is the sum of bytes of the guests among these departures
 * Other sums of bytes are: ordered_bytes over `order`, last_bytes over those in it with MGD_ADVICE_LAST, moving_bytes
 * over the open storages that are leaving, or coming home unpinned, guest_bytes over the guests. */
struct mgd_storages {
  struct mgd_handle *first; /* list of all open ones */
  struct mgd_order_entry *order;
  int32_t open, ordered, sorted, parked, size;
  struct mgd_handle_list guests;
  int32_t departures, guest_count;
  int64_t departing;
  mgd_wide ordered_bytes, last_bytes, moving_bytes, guest_bytes;
  uint64_t arrivals; /* how often a storage has been added to the order so far */
  int64_t pressed;   /* bytes of own storages evicted for lack of room so far */
  int64_t copied;    /* bytes of own storages that were copied away and home so far */
  double age; /* largest finite key of an evicted storage; a policy may add to it (mgd_victim.age) */
  /* guest_backoff rises by one, up to MOST_BACKOFF, when a plan sends guests on to the host, and falls by one when a
   * guest comes home from here. guests_to_refuse: how many victims of other devices are refused from now on; it is set
   * to 2^guest_backoff when guests were sent on. */
  int32_t guest_backoff, guests_to_refuse;
};

struct mgd_growth_row { /* steps in a row in which what waits on the host has grown */
  int64_t start, before;   /* waiting bytes before the first of these steps, and at the end of the last one */
  int32_t length, longest; /* longest: that a longer step has ended, of which these steps were parts */
};

/* Invariants: waiting is the sum of bytes of the open storages that are SPILLED on the host. fresh[i] is that of those
 * that came there in the current call of a module (i == calls % 2), and in the one before. */
struct mgd_growth {
  mgd_wide waiting, fresh[2];
  uint32_t calls;
  struct mgd_growth_row rows[MGD_GROWTH_ENDS];
  bool warned, notes; /* notes: mgd_growth_notes(), read lock-free */
};

/* Invariants: used is the sum of bytes over handles with on_host, open ones and orphans, and at most peak; spares are
 * the open resident or arriving storages that fill the host with a copy that may be given up, and spare_bytes is the
 * sum of their bytes. */
struct mgd_host_room {
  int64_t used, limit, peak, spare_bytes;
  struct mgd_handle_list spares;
  struct mgd_growth growth;
};

/* ---- user.c */
struct mgd_uses {
  uint64_t begun, ended;
};
struct mgd_uses mgd_user_count_locked(const struct mgd_machine *m, int device);
/* Marks all users but `kept` as left, and all uses as ended. */
void mgd_user_forget_locked(struct mgd_machine *m, const struct mgd_user *kept);
void mgd_user_free(struct mgd_user *users);

/* ---- host.c, growth.c */
void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host);
int64_t mgd_host_room_locked(const struct mgd_machine *m); /* bytes; negative above a lowered limit. Spares are room */
/* Counts the storage if it waits on the host. `by`: 1 after its state has changed, -1 before. */
void mgd_growth_count_locked(struct mgd_machine *m, struct mgd_handle *h, int by);

/* ---- residency.c */
bool mgd_residency_is_guest(const struct mgd_handle *h);
bool mgd_residency_is_home(const struct mgd_handle *h); /* RESIDENT or ARRIVING */
bool mgd_residency_is_moving(const struct mgd_handle *h);
bool mgd_residency_is_victim(const struct mgd_handle *h); /* it has a place in the order */
bool mgd_residency_is_refused_locked(const struct mgd_machine *m, const struct mgd_handle *h);
/* True: the bytes are in use, or their owner does not let them leave now. */
bool mgd_residency_must_stay_locked(const struct mgd_machine *m, const struct mgd_handle *h);
void mgd_residency_list_add(struct mgd_handle_list *list, struct mgd_handle *h);
void mgd_residency_list_remove(struct mgd_handle_list *list, struct mgd_handle *h);
/* Add the handle to, and remove it from, the order of victims, the list and the sums that its fields imply. */
void mgd_residency_file_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_residency_unfile_locked(struct mgd_machine *m, struct mgd_handle *h);
/* begin: counts the move and files the handle, which the caller has unfiled and set to SPILLING or RESTORING. end: does
 * the reverse, while the state is still that of the move; the caller then sets the new state and calls
 * mgd_residency_arrive_locked(). */
void mgd_residency_begin_move_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_residency_end_move_locked(struct mgd_machine *m, struct mgd_handle *h);
/* Returns the copy on the host, which the host's sums then no longer count. */
void *mgd_residency_take_memory_locked(struct mgd_machine *m, struct mgd_handle *h);
/* Called after a move: files an open handle by its new state; removes an orphan and puts its copy into *memory. */
void mgd_residency_arrive_locked(struct mgd_machine *m, struct mgd_handle *h, void **memory);

/* ---- handle.c */
/* True: it has a copy that takes memory of the host. */
static inline bool mgd_handle_fills_host(const struct mgd_handle *h) { return h->memory && !h->mapped; }

/* True: the host has a copy that is as good as the bytes at home. */
static inline bool mgd_handle_is_clean(const struct mgd_handle *h) {
  return h->memory && !__atomic_load_n(&h->dirty, __ATOMIC_RELAXED);
}

/* True: it stays as long as other storages can leave. */
static inline bool mgd_handle_leaves_last(const struct mgd_handle *h) { return (h->advice & MGD_ADVICE_LAST) != 0; }

/* ---- order.c */
#define MGD_LOOKS 16 /* handles of each kind that a call looks at before it releases the mutex */

/* A search for victims: the storages whose keys it has computed again, and the number of new storages whose first key
 * it may still compute. */
struct mgd_order_search {
  struct mgd_handle *looked_at[MGD_LOOKS];
  int32_t count, new_keys;
};
void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h); /* opening it made the room */
void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h);
/* Discards the key, because the storage's worth has changed. A parked storage is left as it is. */
void mgd_order_look_again_locked(struct mgd_machine *m, struct mgd_handle *h);
bool mgd_order_leaves_for_free(const struct mgd_handle *h, bool clean); /* no copy to the host is needed, or counted */
bool mgd_order_before(const struct mgd_order_entry *a, const struct mgd_order_entry *b);
int32_t mgd_order_parent(int32_t place); /* in the heap; place > 0 */
/* Returns the storage that leaves next, or NULL: all are parked. It is the one with the least key if at most MGD_LOOKS
 * keys are out of date. */
struct mgd_handle *mgd_order_first_locked(struct mgd_machine *m, struct mgd_storages *s,
                                          struct mgd_order_search *search);
void mgd_order_park_locked(struct mgd_machine *m, struct mgd_handle *h);
void mgd_order_unpark_locked(struct mgd_machine *m, struct mgd_storages *s);

/* ---- evict.c: one storage goes to the host (leave), or stays and gets a copy there (spare). The actions are added to
 * `actions`, which has `size` places. False: it cannot now. `mine`: the caller's own read-only uses. */
bool mgd_evict_leave_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *actions, size_t *n,
                            size_t size);
bool mgd_evict_spare_locked(struct mgd_machine *m, struct mgd_handle *h, uint32_t mine, struct mgd_action *actions,
                            size_t *n, size_t size);

/* ---- restore.c: begins to bring a spilled storage home. The action holds a use, which its mover gives back. */
bool mgd_restore_fetch_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a);

/* ---- check_handle.c */
bool mgd_check_handle_all_locked(const struct mgd_machine *m);

#endif
