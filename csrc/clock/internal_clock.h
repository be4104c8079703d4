/* internal_clock.h: the definition of struct mgd_clock.
 *
 * Private to the files of the clock and to the test that breaks a clock on purpose. docs/developer_notes/clock.md
 * shows how the files depend on each other.
 */
#ifndef MGD_INTERNAL_CLOCK_H
#define MGD_INTERNAL_CLOCK_H

#include "core/arithmetic.h"
#include "clock/clock.h"
#include "clock/internal_clock_hold.h"
#include "clock/internal_clock_lock.h"
#include "clock/internal_clock_log.h"
#include "clock/internal_clock_task.h"
#include "core/internal_machine.h"

#define MGD_CLOCK_HOST (-1)
#define MGD_CLOCK_QUEUE 1024 /* unsettled operations that a stream holds at most */
#define MGD_CLOCK_LEAD 1024  /* operations that a thread is ahead of a stream at most, as on CUDA */
#define MGD_CLOCK_PAUSE 100000 /* ns of real time in which a thread that is not blocked issues something */

/* A stream's times are known until free_at; its queue, if any, begins with a copy or a wait. */
struct mgd_clock_stream {
  int64_t free_at;
  struct mgd_task *first, *last;
  int queued;
  bool unlocked;      /* threads only: it issues without the interpreter's lock */
  uint64_t last_copy; /* threads only: the number of its newest copy */
  uint64_t beside; /* threads only: the sum of all other times when it last paused for them (clock_lead.c) */
  int since_half;     /* operations issued to it since `half` was recorded */
  struct mgd_moment half; /* the end of what it held at that time */
  /* Holds that were given up and that this stream may still use are listed here, oldest first. */
  struct mgd_hold *leaving, *leaving_last;
  int64_t leaving_bytes; /* sum over these, without shared ones (mgd_hold.shared) */
  int leaving_count;
};

/* Operations run at a place: a device or the host. The host's streams are the program's threads; they have no queue. */
struct mgd_clock_place {
  struct mgd_speed speed;
  struct mgd_clock_stream streams[MGD_MAX_STREAMS];
  int64_t issued; /* the issuing thread's time when the last operation was issued here; host: 0 */
  int64_t busy, worked;         /* ns of operators that ran; of operators that were issued */
  int64_t capacity, held;       /* bytes; held: the sum over `living` */
  int64_t largest, leaving; /* largest capacity since an audit last found no excess; bytes in all streams' `leaving` */
  struct mgd_hold *living; /* holds that were not given up */
  struct mgd_hold *over; /* holds that are over, kept for an audit */
};

struct mgd_clock_link {
  struct mgd_link cost;
  uint64_t buses; /* bit i: the link passes bus i */
  int64_t free_at, busy;
  struct mgd_task *active; /* the copy that has the link; `queued` counts its copies that are not over */
  int queued;
};

/* Invariants: all times are >= 0, and no known time is later than `latest`; a stream's queue begins with a task that
 * cannot end yet, a copy or a wait, and the host's streams have none; `fronts` are the ties that are first in all their
 * streams, so only they can be the next event; a link has at most one copy under way; `held` is the sum of living
 * bytes, `leaving` that of the streams', merged bytes are a part of their hold's; rates are finite and >= 0. */
struct mgd_clock {
  pthread_mutex_t mutex;
  struct mgd_alloc alloc;
  int devices;
  int64_t latest;
  int64_t pause; /* ns of real time, MGD_CLOCK_PAUSE outside of tests */
  uint64_t issued; /* tasks ever made, and copies that needed none */
  struct mgd_task *ties, *ties_last, *fronts, *fronts_last;
  double buses[MGD_MAX_BUSES]; /* bytes/ns, 0: no limit */
  bool audited; /* holds that are over are kept in `over` */
  struct mgd_log *log; /* NULL: nothing is logged */
  struct mgd_clock_lock lock; /* the interpreter's lock */
  struct mgd_clock_place *places; /* [0] is the host, [d + 1] is accelerator d */
  struct mgd_clock_link *links; /* [(from + 1) * (devices + 1) + to + 1] */
};

static inline struct mgd_clock_place *mgd_clock_place_of(const struct mgd_clock *c, int device) {
  return &c->places[device + 1];
}

static inline struct mgd_clock_link *mgd_clock_link_of(const struct mgd_clock *c, int from, int to) {
  return &c->links[(size_t)(from + 1) * (size_t)(c->devices + 1) + (size_t)(to + 1)];
}

static inline bool mgd_clock_is_place(const struct mgd_clock *c, int device) {
  return device >= MGD_CLOCK_HOST && device < c->devices;
}

static inline void mgd_clock_reach(struct mgd_clock *c, int64_t time) { c->latest = mgd_max(c->latest, time); }

static inline void mgd_clock_move(struct mgd_clock *c, struct mgd_clock_stream *s, int64_t to) {
  s->free_at = to;
  mgd_clock_reach(c, to);
}

static inline bool mgd_clock_is_speed(const struct mgd_speed *s) {
  bool sound = mgd_is_amount(s->bytes_per_ns) && s->launch_ns >= 0 && s->python_ns >= 0 && s->issue_ns >= s->python_ns;
  for (int i = 0; i < MGD_WORK_KINDS * MGD_PRECISIONS; i++) {
    sound = sound && mgd_is_amount(s->flops_per_ns[i / MGD_PRECISIONS][i % MGD_PRECISIONS]);
  }
  return sound;
}

static inline bool mgd_clock_is_device(const struct mgd_clock *c, int device, int stream) {
  return device >= 0 && device < c->devices && stream >= 0 && stream < MGD_MAX_STREAMS;
}

/* ---- clock_wiring.c */
int mgd_clock_wiring_check_ends(const struct mgd_clock *c, int from, int to); /* NO_DEVICE; INVALID: from == to */

/* ---- clock_queue.c */
struct mgd_task *mgd_clock_queue_new(struct mgd_clock *c, enum mgd_task_kind kind, int device, int stream);
void mgd_clock_queue_append(struct mgd_clock *c, struct mgd_task *t);
void mgd_clock_queue_advance(struct mgd_clock *c, struct mgd_clock_stream *s); /* until a copy or open wait */
void mgd_clock_queue_finish(struct mgd_clock *c, struct mgd_task *t, int64_t end);
void mgd_clock_queue_drop(struct mgd_task *t); /* drops one reference; NULL is ignored */
bool mgd_clock_queue_is_first(const struct mgd_task *t); /* in all its streams */
struct mgd_moment mgd_clock_queue_share(const struct mgd_moment *m); /* returns another reference to it */

/* ---- clock_flow.c */
void mgd_clock_flow_settle(struct mgd_clock *c, struct mgd_task *t); /* until its end is known */
void mgd_clock_flow_settle_all(struct mgd_clock *c);
void mgd_clock_flow_limit(struct mgd_clock *c, const struct mgd_clock_stream *s); /* makes the queue accept one more */
void mgd_clock_flow_settle_stream(struct mgd_clock *c, const struct mgd_clock_stream *s);
int64_t mgd_clock_flow_time(struct mgd_clock *c, struct mgd_moment *m); /* settles it; afterwards *m has no task */
/* Records the end of what the stream holds, at the earliest `issued`. Without memory it settles instead of failing. */
struct mgd_moment mgd_clock_flow_mark(struct mgd_clock *c, int device, int stream, int64_t issued);

/* ---- clock_lead.c */
/* Called before the thread issues an operation to the stream, before anything is computed for it: the clock's mutex may
 * be released in between. True: the thread has waited, so its time is another. */
bool mgd_clock_lead_limit(struct mgd_clock *c, int thread, int device, int stream);

/* ---- clock_hold.c */
int64_t mgd_clock_hold_end(struct mgd_clock *c, struct mgd_hold *h); /* when it is free; it must be given up */
void mgd_clock_hold_discard_all(struct mgd_clock *c, int device);
void mgd_clock_hold_free(struct mgd_clock *c, struct mgd_hold *h); /* it must be over */

/* ---- clock_check.c */
int mgd_clock_check(const struct mgd_clock *c); /* OK or BROKEN; the clock's mutex is held */
static inline void mgd_clock_enter(struct mgd_clock *c) { (void)pthread_mutex_lock(&c->mutex); }

static inline int mgd_clock_leave(struct mgd_clock *c, int code) {
#if MGD_DEBUG >= 2
  code = mgd_clock_check(c) == MGD_OK ? code : MGD_E_BROKEN;
#endif
  (void)pthread_mutex_unlock(&c->mutex);
  return code;
}

#endif
