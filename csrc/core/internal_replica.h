/* internal_replica.h: the structs of the directory of replicas, and its private functions.
 *
 * Private to the core, like internal_machine.h, whose machine holds the directory.
 */
#ifndef MGD_INTERNAL_REPLICA_H
#define MGD_INTERNAL_REPLICA_H

#include "core/core.h"

#define MGD_KEPT_LIMIT 0.5 /* of a device's capacity: the most that replicas take */
#define MGD_KEPT_LEAST 0.0625 /* of it: for the most recently used ones; storages leave before these are doomed */
#define MGD_KEPT_FREE 0.125   /* of it: what a new replica leaves free, if possible */

/* Links slots of replicas in order, -1 at an end. */
struct mgd_replica_list {
  int32_t first, last;
};

enum mgd_replica_state {
  MGD_REPLICA_FREE,   /* slot unused; in the list `free` */
  MGD_REPLICA_CACHED, /* in its device's list `kept` and in its source's chain */
  MGD_REPLICA_DOOMED  /* in the list `doomed` until it is reaped; its source may be gone */
};

/* Describes one copy. Invariants: a slot is in exactly the list that its state names; a
 * source's chain holds exactly its cached replicas, of which no two have the same
 * device and extent; a bucket's chain holds exactly the cached replicas that hash
 * to it; bytes >= 0, and they count as REPLICA of the device until reaped. */
struct mgd_replica {
  enum mgd_replica_state state;
  int device;
  int64_t bytes;
  uint64_t extent;
  int32_t source;         /* slot of the source, while cached */
  int32_t next, previous; /* neighbours in the list */
  int32_t sibling, elder; /* neighbours in the source's chain, the newest is first; -1 at an end */
  int32_t collision;      /* next in the bucket's chain, -1 at the end */
};

/* Describes a storage with copies. Invariants: it is open or in the chain of free slots,
 * never both; a closed one has no replica. A source's id is (generation << 32 | slot + 1), so a stale id is
 * recognised. */
struct mgd_source {
  bool open;
  uint32_t generation; /* how often the slot was freed */
  uint64_t writes;
  int32_t first; /* replica, -1 when there is none */
  int32_t next;  /* in the chain of free slots, -1 at the end */
};

struct mgd_replicas {
  struct mgd_replica *slots;
  int32_t *buckets; /* by source, device and extent: the first cached replica, -1 when there is none */
  int32_t size;     /* of both, a power of two, 0 at first */
  struct mgd_replica_list free, doomed;
  struct mgd_source *sources;
  int32_t source_size;
  int32_t first_free_source; /* -1 when all are used */
  uint64_t shake;            /* fault injection: each find dooms its replica with probability 1/4. State of the random
                                numbers; 0: off */
};

/* ---- replica_table.c */
void mgd_replica_table_init(struct mgd_replicas *r);
void mgd_replica_table_append(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot);
void mgd_replica_table_take_out(struct mgd_replicas *r, struct mgd_replica_list *list, int32_t slot);
void mgd_replica_table_put_in_bucket(struct mgd_replicas *r, int32_t slot);
int mgd_replica_table_grow(struct mgd_machine *m); /* adds free slots; or NOMEM */
void mgd_replica_table_doom(struct mgd_machine *m,
                            int32_t slot); /* dooms a cached replica; its bytes count until it is reaped */
void mgd_replica_table_doom_all(struct mgd_machine *m, struct mgd_source *s);
/* Returns the slot of the cached replica, or -1. */
int32_t mgd_replica_table_look_up(const struct mgd_replicas *r, int32_t source, int device, uint64_t extent);
int32_t mgd_replica_table_bucket(const struct mgd_replicas *r, int32_t source, int device,
                                 uint64_t extent); /* size > 0 */

/* ---- source.c */
struct mgd_source *mgd_source_find(struct mgd_machine *m, uint64_t id); /* NULL when it is closed */

/* ---- replica.c */
int64_t mgd_replica_limit_locked(const struct mgd_machine *m, int device); /* bytes that replicas may take */
void mgd_replica_shrink_locked(struct mgd_machine *m, int device); /* dooms what exceeds that limit */

#endif
