/* internal_clock.h: what a struct mgd_clock is made of.
 *
 * Private to the files of the clock and to the test that breaks a clock on purpose. Which of the files
 * stand on which: docs/developer_notes/clock.md.
 */
#ifndef MGD_INTERNAL_CLOCK_H
#define MGD_INTERNAL_CLOCK_H

#include "core/arithmetic.h"
#include "clock/clock.h"
#include "clock/internal_clock_lock.h"
#include "clock/internal_clock_log.h"
#include "clock/internal_clock_task.h"
#include "core/internal_machine.h"

#define MGD_CLOCK_HOST (-1)
#define MGD_CLOCK_QUEUE 1024 /* operations that a stream holds unsettled */
#define MGD_CLOCK_LEAD 1024  /* operations that a thread is ahead of a stream, at most, as on CUDA */

/* Known until free_at; then a queue that begins with a copy or a wait. */
struct mgd_clock_stream {
  int64_t free_at;
  struct mgd_task *first, *last;
  int queued;
  bool unlocked;      /* of a thread: what it issues is not Python's */
  uint64_t last_copy; /* of a thread: the number of its newest copy */
  int since_half;     /* operations that were issued to it after `half` */
  struct mgd_moment half; /* the end of what it held then */
  /* Given up, and perhaps still used by this stream, oldest first. */
  struct mgd_hold *leaving, *leaving_last;
  int64_t leaving_bytes; /* of these, without those that other streams use as well */
  int leaving_count;
};

/* One place where operations run. The streams of the host are the program's threads; they hold no queue. */
struct mgd_clock_place {
  struct mgd_speed speed;
  struct mgd_clock_stream streams[MGD_MAX_STREAMS];
  int64_t issued; /* the time of the thread that issued the last operation here, then; host: 0 */
  int64_t busy, worked;         /* ns of operators that ran; that were issued */
  int64_t capacity, held;       /* bytes: held are those that nobody has given up */
  int64_t largest, leaving; /* capacity since an audit found no more; bytes that were given up, of all streams */
  struct mgd_hold *living; /* what `held` counts */
  struct mgd_hold *over;   /* for an audit */
};

struct mgd_clock_link {
  struct mgd_link cost;
  uint64_t buses; /* bit i: it passes bus i */
  int64_t free_at, busy;
  struct mgd_task *active; /* the copy that has it; `queued` counts all that are not over */
  int queued;
};

struct mgd_hold {
  struct mgd_hold *next, *before; /* in `living` or, without `before`, in `leaving` or `over` */
  int64_t bytes, merged; /* merged: of these, what belongs to older ones, of which a log knows already */
  int device, stream;
  _Atomic uint64_t also; /* bit i: stream i uses them too */
  _Atomic int owner;     /* enum mgd_hold_owner */
  struct mgd_moment begin, end; /* `begin` is kept for an audit only */
  struct mgd_moment *ends;      /* `ends_count` more, before which nobody else may have the bytes */
  int ends_count;
  bool shared; /* given up, and more than its own stream had to do with the bytes */
};

/* Invariants: all times are >= 0, and none that is known is later than `latest`; a stream's queue begins with what
 * cannot end yet, a copy or a wait, and the host's have none; `fronts` are the ties that are first of their streams, so
 * that only they can be what happens next; a link has at most one copy under way; `held` is the sum
 * of living bytes, `leaving` that of the streams', merged bytes are a part; rates are finite and >= 0. */
struct mgd_clock {
  pthread_mutex_t mutex;
  struct mgd_alloc alloc;
  int devices;
  int64_t latest;
  uint64_t issued; /* tasks ever made */
  struct mgd_task *ties, *ties_last, *fronts, *fronts_last;
  double buses[MGD_MAX_BUSES]; /* bytes/ns, 0: no limit */
  bool audited;            /* what is over is kept in `over` */
  struct mgd_log *log;     /* NULL: nobody wants to know */
  struct mgd_clock_lock lock; /* the interpreter's */
  struct mgd_clock_place *places; /* [0] is the host, [d + 1] is accelerator d */
  struct mgd_clock_link *links;   /* [(from + 1) * (devices + 1) + to + 1] */
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
int mgd_clock_wiring_check_ends(const struct mgd_clock *c, int from, int to); /* OK, NO_DEVICE, or INVALID: the same */

/* ---- clock_queue.c */
struct mgd_task *mgd_clock_queue_new(struct mgd_clock *c, enum mgd_task_kind kind, int device, int stream);
void mgd_clock_queue_append(struct mgd_clock *c, struct mgd_task *t);
void mgd_clock_queue_advance(struct mgd_clock *c, struct mgd_clock_stream *s); /* ends all that waits for nobody */
void mgd_clock_queue_finish(struct mgd_clock *c, struct mgd_task *t, int64_t end);
void mgd_clock_queue_drop(struct mgd_task *t); /* one reference, or none if NULL */
bool mgd_clock_queue_is_first(const struct mgd_task *t); /* of all its streams */
struct mgd_moment mgd_clock_queue_share(const struct mgd_moment *m); /* the same moment once more */

/* ---- clock_flow.c */
void mgd_clock_flow_settle(struct mgd_clock *c, struct mgd_task *t); /* until its end is known */
void mgd_clock_flow_settle_all(struct mgd_clock *c);
void mgd_clock_flow_limit(struct mgd_clock *c, const struct mgd_clock_stream *s); /* settles what is too much */
void mgd_clock_flow_settle_stream(struct mgd_clock *c, const struct mgd_clock_stream *s);
int64_t mgd_clock_flow_time(struct mgd_clock *c, struct mgd_moment *m); /* settles it; *m holds no task any more */
/* A moment that has no task in it. Never fails: without memory it settles. */
struct mgd_moment mgd_clock_flow_mark(struct mgd_clock *c, int device, int stream, int64_t issued);

/* ---- clock_hold.c */
int64_t mgd_clock_hold_end(struct mgd_clock *c, struct mgd_hold *h); /* of one that was given up */
void mgd_clock_hold_discard_all(struct mgd_clock *c, int device);
void mgd_clock_hold_free(struct mgd_clock *c, struct mgd_hold *h); /* one that is over */

/* ---- check.c */
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
