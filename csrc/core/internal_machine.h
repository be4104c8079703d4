/* internal_machine.h: the definition of struct mgd_machine.
 *
 * Private to the core and to the tests that break an invariant on purpose. All other code sees an opaque pointer.
 *
 * One mutex guards the whole machine. A public function takes it, decides and releases it. The policy (mgd_victim_fn)
 * and the veto (mgd_may_leave_fn) are called with it held, and must not call the core. mgd_evict_begin() and
 * mgd_step_plan() release it in between; every other function is one transition. Functions named ..._locked require it.
 */
#ifndef MGD_INTERNAL_MACHINE_H
#define MGD_INTERNAL_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/core.h"
#include "core/internal_handle.h"
#include "core/internal_holder.h"
#include "core/internal_replica.h"
#include "core/internal_trace.h"

/* 0: nothing is checked. 2: mgd_check() runs after every transition, which returns BROKEN if it fails. */
#ifndef MGD_DEBUG
#define MGD_DEBUG 0
#endif

/* Counts allocations so that a test can make the n-th one fail.
 * It is atomic because a long computation allocates without holding the mutex. */
struct mgd_alloc {
  atomic_llong made;
  long long fail_at; /* 0: never */
};

/* One device and its ledger.
 * Invariants: the name is unique and not empty; capacity >= 0; every owner
 * holds >= 0 bytes; their sum is an int64_t and at most peak; RESERVED is
 * exactly the sum of the claims granted here, and REPLICA that of the replicas
 * here, cached or doomed. The sum may exceed the capacity:
 * a ledger records what happened, and a driver may report more than was promised. */
struct mgd_device {
  char name[MGD_NAME_BYTES];
  int64_t capacity;
  bool spills;  /* false: the storages whose home it is may not leave */
  double speed; /* finite, > 0 */
  int64_t by_owner[MGD_OWNERS];
  int64_t peak;
  int32_t first_waiter, last_waiter; /* slots of claims, -1: none waits */
  struct mgd_replica_list kept;      /* cached replicas, least recently used first */
  int64_t kept_bytes;                /* sum over `kept`, at most mgd_replica_limit_locked() */
  struct mgd_storages storages;
  struct mgd_step *step; /* internal_step.h; NULL: the device does not log */
};

enum mgd_claim_state {
  MGD_CLAIM_FREE,    /* slot unused; `next` chains the free slots */
  MGD_CLAIM_GRANTED, /* its bytes count as RESERVED */
  MGD_CLAIM_WAITING, /* in its device's queue */
  MGD_CLAIM_LATE     /* its deadline passed, so another call dequeued it; its owner has not polled yet */
};

/* A ticket stands for a claim.
 * Invariants: a WAITING claim is in exactly one queue, that of its device, and
 * queues are in order of arrival; no other claim is in any queue. A claim in
 * use has bytes >= 0, reserved in 0..1, a device that exists (unless LATE, which
 * holds nothing) and an arrival that was given out. A ticket's id
 * is (generation << 32 | slot + 1), so a stale ticket is recognised. */
struct mgd_claim {
  enum mgd_claim_state state;
  uint32_t generation;    /* how often the slot was given back */
  int32_t next, previous; /* neighbours in the queue or free list, -1 at an end */
  int device;
  int64_t bytes;
  double reserved; /* fraction of the capacity this claim leaves free */
  int64_t deadline;
  uint64_t arrival;
};

struct mgd_claims {
  struct mgd_claim *slots;
  int32_t size;
  int32_t first_free; /* -1 when all slots are used */
  uint64_t arrivals;
};

/* Invariants: 1 <= count <= MGD_MAX_DEVICES; device 0 is the host, "cpu";
 * heuristic and victim are never NULL; a link's latency is >= 0, its bandwidth finite and
 * >= 0, and a device's link to itself costs nothing. */
struct mgd_machine {
  pthread_mutex_t mutex;
  int (*check)(const struct mgd_machine *m); /* called after each transition in debug builds */
  struct mgd_alloc alloc;
  int count;
  struct mgd_device devices[MGD_MAX_DEVICES];
  struct mgd_link links[MGD_MAX_DEVICES][MGD_MAX_DEVICES]; /* [from][to] */
  struct mgd_buses buses;                                  /* of copies from and to the host */
  struct mgd_claims claims;
  struct mgd_replicas replicas;
  struct mgd_host_room host;
  struct mgd_holder *holders; /* MGD_MAX_HOLDERS of them, or NULL */
  int last_holder; /* the last id that was given */
  struct mgd_handle_list orphans; /* closed while SPILLING or RESTORING: in no other list, freed when the move ends */
  struct mgd_user *users;
  mgd_victim_fn victim;
  void *victim_context, *heuristic_context;
  mgd_may_leave_fn may_leave; /* NULL: all may leave */
  struct mgd_trace trace;
  struct mgd_sites sites;
  struct mgd_repeats repeats;
  mgd_heuristic_fn heuristic;
  bool heuristic_enabled;
  uint64_t disturbed, logging; /* mgd_step_disturb(), 0: off; mgd_step_logs(), bit i: device i, read lock-free */
  bool learns, fetches_late; /* mgd_step_learn(), mgd_step_fetch_ahead() */
};

/* ---- alloc.c */
/* Sets the counter; the fail_at-th call from then on fails, 0 means none. */
void mgd_alloc_init(struct mgd_alloc *a, int64_t fail_at);
/* Like realloc for count * size bytes, count > 0; NULL leaves `old` as it was. */
void *mgd_alloc_resize(struct mgd_alloc *a, void *old, size_t count, size_t size);
/* Returns new, zeroed memory, or NULL. */
void *mgd_alloc_new(struct mgd_alloc *a, size_t count, size_t size);
void mgd_alloc_free(void *memory);
/* A mutex is a resource that can run out, so its creation counts as an allocation. */
int mgd_alloc_mutex(struct mgd_alloc *a, pthread_mutex_t *mutex);

/* ---- state.c */
void mgd_state_enter(struct mgd_machine *m);
/* Ends a transition and returns `code`, or BROKEN when debugging finds a broken invariant. */
int mgd_state_leave(struct mgd_machine *m, int code);
bool mgd_state_knows_device_locked(const struct mgd_machine *m, int id);

/* ---- link.c */
void mgd_link_reset_locked(struct mgd_machine *m, int id); /* all links of a device to their defaults */
/* Returns the ns for `copies` transfers of `bytes` in total, as a double, which never overflows: for comparing. */
double mgd_link_estimate(const struct mgd_link *link, int64_t copies, int64_t bytes);

/* ---- ledger.c */
int64_t mgd_ledger_used_locked(const struct mgd_machine *m, int id);
/* Returns the bytes of the device that may be used if the fraction `reserved` of it stays free. */
int64_t mgd_ledger_limit_locked(const struct mgd_machine *m, int id, double reserved);
/* Returns what is left of that limit, at least 0; replicas do not count as used. */
int64_t mgd_ledger_room_locked(const struct mgd_machine *m, int id, double reserved);
void mgd_ledger_move_locked(struct mgd_machine *m, int id, enum mgd_owner owner, int64_t bytes);

/* ---- place.c */
/* Returns the share with room for the bytes that has the least in use for its speed, these bytes included; or -1. */
int mgd_place_lightest(const struct mgd_share *shares, size_t n, int64_t bytes);
int mgd_place_validate(const struct mgd_object_request *request);
/* Chooses as mgd_admit_object() does, among the devices of `allowed` instead of the request's. */
int mgd_place_pick_locked(const struct mgd_machine *m, const struct mgd_object_request *request, mgd_mask allowed,
                          enum mgd_reason *why);

/* ---- check.c */
int mgd_check_locked(const struct mgd_machine *m);

#endif
