/* replica.h: what tests of the directory of replicas share: sources and copies
 * in one line each, and looks that expect what they find. */
#ifndef REPLICA_H
#define REPLICA_H

#include "expect.h"

static inline uint64_t open_source(struct mgd_machine *m) {
  uint64_t source = 0;
  EXPECT_OK(mgd_source_open(m, &source));
  EXPECT(source != 0);
  return source;
}

/* Keeps a copy of the source as it is now. */
static inline int32_t keep(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int64_t bytes) {
  uint64_t writes = 77;
  int32_t slot = -1;
  EXPECT_OK(mgd_source_writes(m, source, &writes));
  EXPECT_OK(mgd_replica_add(m, source, writes, device, extent, bytes, &slot));
  EXPECT(slot >= 0);
  return slot;
}

static inline bool is_kept(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t expected) {
  int32_t slot = -7;
  int code = mgd_replica_find(m, source, device, extent, &slot);
  EXPECT(code == MGD_OK || code == MGD_E_ABSENT);
  EXPECT_INT(slot, code == MGD_OK ? expected : -7);
  return code == MGD_OK;
}

static inline void expect_reaped(struct mgd_machine *m, int32_t expected) {
  int32_t slot = -7;
  EXPECT_CODE(mgd_replica_reap(m, &slot), expected < 0 ? MGD_E_ABSENT : MGD_OK);
  EXPECT_INT(slot, expected < 0 ? -7 : expected);
}

static inline int64_t replicas_on(struct mgd_machine *m, int device) { return usage_of(m, device).by_owner[MGD_REPLICA]; }

#endif
