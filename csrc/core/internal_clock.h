/* internal_clock.h: what a struct mgd_clock is made of.
 *
 * Private to clock.c and check.c, and to the test that breaks a clock on
 * purpose. A clock belongs to no machine and locks by itself.
 */
#ifndef MGD_INTERNAL_CLOCK_H
#define MGD_INTERNAL_CLOCK_H

#include <pthread.h>

#include "arithmetic.h"
#include "core.h"

#define MGD_CLOCK_HOST (-1)

/* One place where operations run. The host is a place whose streams are the
 * threads of the program. */
struct mgd_clock_place {
  struct mgd_speed speed;
  int64_t streams[MGD_MAX_STREAMS]; /* when each is free, ns */
  int64_t issued;                   /* the time of the thread that issued the last operation here, then; host: 0 */
};

struct mgd_clock_link {
  struct mgd_link cost;
  int64_t free_at; /* ns */
};

/* Invariants: all times are >= 0, and none is later than `latest`; a link is never busy longer than the busiest
 * stream of the devices at its ends (of the host not, which does not wait for
 * its copies); a device's link to itself is never busy; speeds and bandwidths
 * are finite and >= 0. */
struct mgd_clock {
  pthread_mutex_t mutex;
  int devices;
  int64_t latest;
  struct mgd_clock_place *places; /* [0] is the host, [d + 1] is accelerator d */
  struct mgd_clock_link *links;   /* [(from + 1) * (devices + 1) + to + 1] */
};

static inline struct mgd_clock_place *mgd_clock_place_of(const struct mgd_clock *c, int device) {
  return &c->places[device + 1];
}

static inline struct mgd_clock_link *mgd_clock_link_of(const struct mgd_clock *c, int from, int to) {
  return &c->links[(size_t)(from + 1) * (size_t)(c->devices + 1) + (size_t)(to + 1)];
}

/* Over the device's streams. */
static inline int64_t mgd_clock_latest(const struct mgd_clock *c, int device) {
  int64_t ns = 0;
  for (int s = 0; s < MGD_MAX_STREAMS; s++) {
    const int64_t time = mgd_clock_place_of(c, device)->streams[s];
    ns = time > ns ? time : ns;
  }
  return ns;
}

/* Whether all rates are such: finite and not negative. */
static inline bool mgd_clock_is_speed(const struct mgd_speed *s) {
  bool sound = mgd_is_amount(s->bytes_per_ns) && s->launch_ns >= 0 && s->issue_ns >= 0;
  for (int kind = 0; kind < MGD_WORK_KINDS; kind++) {
    for (int precision = 0; precision < MGD_PRECISIONS; precision++) {
      sound = sound && mgd_is_amount(s->flops_per_ns[kind][precision]);
    }
  }
  return sound;
}

/* ---- check.c */
int mgd_check_clock(const struct mgd_clock *c); /* OK or BROKEN; the clock's mutex is held */

#endif
