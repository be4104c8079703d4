/* residency.h: the actions planned when storages leave for lack of room and come
 * back to be used, and what a policy is told about a victim.
 *
 * Part of types.h, which includes it.
 */
#ifndef MGD_RESIDENCY_H
#define MGD_RESIDENCY_H

#include "core/handle.h"

enum mgd_action_kind {
  MGD_DO_SPILL,    /* copy the bytes of `handle` from `from` to `to`, free those at `from`, call mgd_evict_end */
  MGD_DO_DROP,     /* like SPILL, but copy nothing: the host's copy is good */
  MGD_DO_FORGET,   /* free `memory`, a copy that is worth less than its room */
  MGD_DO_MAKE_ROOM,/* make `bytes` on `from` free, which the actions that follow need */
  MGD_DO_RESTORE,  /* allocate at home, copy from `from`, call mgd_restore_end */
  MGD_DO_SPARE,    /* copy the bytes to the host, leave them where they are, call mgd_evict_end(to their home) */
  MGD_DO_JOIN      /* order the operator after the copy that brings the bytes, call mgd_restore_end */
};

struct mgd_action {
  enum mgd_action_kind kind;
  int from, to;
  int64_t bytes;
  struct mgd_handle *handle;
  void *memory; /* host memory to copy to (NULL: allocate it), to copy from, or to free */
};

/* The program gives this advice about a storage. It changes when bytes leave, never their values. LAST and FIRST
 * exclude each other; FIRST and NEXT take precedence over LAST. */
enum mgd_advice {
  MGD_ADVICE_LAST = 1,  /* it leaves only if no other storage can, and no plan makes it leave */
  MGD_ADVICE_FIRST = 2, /* it leaves before all storages without such advice */
  MGD_ADVICE_NEXT = 4,  /* like FIRST, until it is used or comes home */
  MGD_ADVICE_READ = 8,  /* it is only read: for the policy, leave_ns is 0 */
  MGD_ADVICE_HOST = 16  /* what is made of it may be on the host for want of room; the core ignores it */
};

/* This is what a policy is told about a storage that may leave. The storage with the smallest key leaves first; among
 * equals the least recently used one. If a storage was used since its key was computed, the key is computed again only
 * when the storage comes to the front. So a storage whose use makes its key smaller is overlooked until its pins or its
 * advice change. The policy is called with the machine's mutex held. */
struct mgd_victim {
  const struct mgd_handle *handle; /* for policies that know more about it */
  uint64_t stamp; /* tick of its last use */
  int64_t bytes;
  bool clean;     /* its copy on the host is good: leaving costs nothing */
  double age;     /* the device's: largest finite key of a storage evicted from it */
  double leave_ns, return_ns; /* of copying it to the host, 0 if clean or only read; and of copying it back */
};
typedef double (*mgd_victim_fn)(void *context, const struct mgd_victim *victim);

/* Returns whether the owner of a storage lets its bytes leave. It is called with the machine's mutex held, so it must
 * only read; the storage lives until it returns. */
typedef bool (*mgd_may_leave_fn)(const struct mgd_handle *handle);

/* Holds a snapshot of one device's storages, in bytes. All but the guests have their home there. */
struct mgd_residency_usage {
  int64_t idle, in_use, moving;         /* resident; `moving`: under way */
  int64_t pinned[MGD_PIN_KINDS];        /* resident */
  int64_t held;                         /* resident and not in use, but their owner does not let them leave */
  int64_t spilled;                      /* elsewhere */
  int64_t on_host; /* of copies on the host that count there, also of storages that are resident */
  int64_t guests;                       /* spilled here from other devices */
  int64_t storages;                     /* number of storages whose home it is */
};

#endif
