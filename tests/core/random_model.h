/* random_model.h: the model of test_random.c: what a machine holds, as arrays,
 * and the rules of the ledger. No queues, no slots, nothing remembered that
 * could be counted again. */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H

#include "expect.h"

#define DEVICES 5 /* the host included */
#define CLAIMS 40
#define RING 16
#define KINDS MGD_EV_KINDS
#define SOURCES 4
#define COPIES 48 /* cached and doomed */

enum claim_state { UNUSED,
                   GRANTED,
                   WAITING,
                   LATE };

struct claim {
  enum claim_state state;
  int device;
  int64_t bytes, deadline;
  double reserved;
  uint64_t arrival;
  struct mgd_ticket ticket;
};

enum copy_state { GONE,
                  CACHED,
                  DOOMED };

struct copy {
  enum copy_state state;
  int source, device;
  uint64_t extent;
  int64_t bytes;
  int32_t slot;
  uint64_t made, used, doomed; /* when, in ticks of the model */
};

struct source {
  uint64_t id; /* 0: closed */
  uint64_t stale, writes;
};

struct model {
  struct mgd_machine *m;
  uint64_t random;
  int64_t now;
  int64_t capacity[DEVICES], owner[DEVICES][MGD_OWNERS], peak[DEVICES];
  struct mgd_link link[DEVICES][DEVICES];
  struct claim claims[CLAIMS];
  struct copy copies[COPIES];
  struct source sources[SOURCES];
  double speed[DEVICES];
  uint64_t arrivals, events, ticks;
  struct mgd_event ring[RING]; /* event i at i % RING */
  uint64_t count[KINDS], link_count[DEVICES][DEVICES];
  int64_t bytes[KINDS], ns[KINDS], link_bytes[DEVICES][DEVICES];
};

static inline int64_t roll(struct model *x, int64_t limit) { return pick(&x->random, limit); }

static inline int64_t used(const struct model *x, int d) { return x->owner[d][0] + x->owner[d][1] + x->owner[d][2] + x->owner[d][3]; }

static inline void touch(struct model *x, int d) { x->peak[d] = used(x, d) > x->peak[d] ? used(x, d) : x->peak[d]; }

static inline int64_t limit(const struct model *x, int d, double reserved) { return x->capacity[d] - (int64_t)(reserved * (double)x->capacity[d]); }

static inline int64_t room(const struct model *x, int d, double reserved) {
  int64_t left = limit(x, d, reserved) - (used(x, d) - x->owner[d][MGD_REPLICA]);
  return left > 0 ? left : 0;
}

#endif
