/* residency.h: what is planned when storages leave for want of room and come back
 * to be used, and what a policy knows of those that may leave.
 *
 * Part of types.h, which includes it.
 */
#ifndef MGD_RESIDENCY_H
#define MGD_RESIDENCY_H

#include "core/handle.h"

enum mgd_action_kind {
  MGD_DO_SPILL,    /* copy the bytes of `handle` from `from` to `to`, give those at `from` back, call mgd_evict_end */
  MGD_DO_DROP,     /* the same with nothing to copy: the host's copy is good */
  MGD_DO_FORGET,   /* free `memory`, a copy that is worth less than its room */
  MGD_DO_MAKE_ROOM,/* `bytes` on `from` are missing for what follows */
  MGD_DO_RESTORE,  /* allocate at home, copy from `from`, call mgd_restore_end */
  MGD_DO_SPARE,    /* copy the bytes to the host, leave them where they are, call mgd_evict_end(to their home) */
  MGD_DO_JOIN      /* a copy has begun that brings the bytes: let the operator come after it, call mgd_restore_end */
};

struct mgd_action {
  enum mgd_action_kind kind;
  int from, to;
  int64_t bytes;
  struct mgd_handle *handle;
  void *memory; /* of the host: to copy to (NULL: allocate it), from, or to free */
};

/* What the program says of a storage, beside what is seen of it. It changes when bytes leave, never what they are. LAST
 * and FIRST exclude each other; FIRST and NEXT come before LAST. */
enum mgd_advice {
  MGD_ADVICE_LAST = 1,  /* it leaves when nobody else can, and no plan has it leave */
  MGD_ADVICE_FIRST = 2, /* it leaves before all that have no such advice */
  MGD_ADVICE_NEXT = 4,  /* the same until it is used or comes home */
  MGD_ADVICE_READ = 8   /* it is only read: the policy takes what leaving costs for paid */
};

/* What a policy knows of a storage that may leave. The storage with the smallest key leaves first; among equals the one
 * that was used longest ago. Of a storage that was used since its key was computed, the key is computed again only when
 * the storage comes to the front. So a use must not make a key smaller, or mgd_order_rekey() must be called for each
 * storage whose key became smaller. The policy is called with the machine's mutex held. */
struct mgd_victim {
  const struct mgd_handle *handle; /* for policies that know more of it */
  uint64_t stamp; /* tick of its last use */
  int64_t bytes;
  bool clean;     /* its copy on the host is good: leaving costs nothing */
  double age;     /* of the device: largest key of a storage that has left it */
  double leave_ns, return_ns; /* what it takes to bring it to the host, 0 when clean, and back */
};
typedef double (*mgd_victim_fn)(void *context, const struct mgd_victim *victim);

/* Whether the bytes of a storage may leave as far as its owner knows. Called with the machine's mutex held, so it reads
 * and does nothing else; the storage lives as long. */
typedef bool (*mgd_may_leave_fn)(const struct mgd_handle *handle);

/* A snapshot of one device's storages, in bytes. All but the guests have their home there. */
struct mgd_residency_usage {
  int64_t idle, in_use, moving;         /* resident or on the way */
  int64_t pinned[MGD_PIN_KINDS];        /* resident */
  int64_t held;                         /* resident, in use by no operator, and their owner does not let them leave */
  int64_t spilled;                      /* elsewhere */
  int64_t guests;                       /* of other devices, which are here */
  int64_t storages;                     /* how many have their home there */
};

#endif
