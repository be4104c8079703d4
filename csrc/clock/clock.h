/* clock.h: the virtual time of simulated devices, documented where it is declared.
 *
 * A struct mgd_clock belongs to no machine and has its own mutex. Accelerators are
 * 0, 1, ... here, as torch numbers them, and the host is -1. Times are ns since
 * the clock was made; no real clock is ever read.
 */
#ifndef MGD_CLOCK_H
#define MGD_CLOCK_H

#include "core/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MGD_MAX_STREAMS 64 /* per device; stream 0 is the default. The host's streams are the program's threads */
#define MGD_MAX_BUSES 64

/* An operator has a kind of arithmetic and a precision, and a device has one rate for each pair: its matrix units serve
 * only some precisions, and convolutions reach a smaller part of their rate than products do. */
enum mgd_work_kind { MGD_WORK_ELEMENTWISE, MGD_WORK_MATRIX, MGD_WORK_CONVOLUTION, MGD_WORK_KINDS };
enum mgd_precision { MGD_FLOAT64, MGD_FLOAT32, MGD_TF32, MGD_BFLOAT16, MGD_FLOAT16, MGD_INT8, MGD_PRECISIONS };

struct mgd_work {
  enum mgd_work_kind kind;
  enum mgd_precision precision;
  double flops; /* a multiplication and an addition are two */
  double bytes; /* bytes that are read or written */
  const char *name; /* for a log; lives for ever, or NULL */
};

/* Describes what a simulated device can do; 0 in a field means "instantly". */
struct mgd_speed {
  double flops_per_ns[MGD_WORK_KINDS][MGD_PRECISIONS]; /* attained arithmetic rate */
  double bytes_per_ns;                                 /* attained memory bandwidth */
  int64_t launch_ns;                                   /* fixed part of an operator's time on the device */
  int64_t issue_ns;                                    /* time of the thread that issues it */
  int64_t python_ns; /* the first part of that, under the interpreter's lock; 0: threads do not share it */
};

/* Describes one copy between two places. The host has no streams: its number is ignored. */
struct mgd_transfer {
  int from, from_stream, to, to_stream;
  int64_t bytes;
  bool blocking;    /* the thread waits for it */
  const char *name; /* for a log; lives for ever, or NULL */
};

/* A moment of virtual time that may not be known yet: the end of what a stream held when it was recorded. {0} is the
 * beginning. The owner of a moment releases it with mgd_clock_forget(). */
struct mgd_task;
struct mgd_moment {
  int64_t ns; /* a lower bound if there is a task */
  struct mgd_task *task; /* the moment is the end of it; NULL: ns is exact */
};

/* ---- clock.c: birth and death */
struct mgd_clock;
int mgd_clock_create(int devices, struct mgd_clock **out);
/* Called around fork(): in between all ends are known, and the clock's mutex is held. The child makes a clock of its
 * own; moments that it has inherited are known. */
void mgd_clock_before_fork(struct mgd_clock *c);
void mgd_clock_after_fork(struct mgd_clock *c); /* in the parent */
void mgd_clock_destroy(struct mgd_clock *c); /* remaining moments and holds must not be used again */

/* ---- clock_wiring.c: what things can do, and how they are connected */
int mgd_clock_wiring_set_speed(struct mgd_clock *c, int device, struct mgd_speed speed);
int mgd_clock_wiring_set_link(struct mgd_clock *c, int from, int to, struct mgd_link link);
int mgd_clock_wiring_get_link(struct mgd_clock *c, int from, int to, struct mgd_link *out);
/* Several links share a bus in one direction: the uplink of a PCIe switch, the lanes of a card. Copies that pass it at
 * the same time share its bandwidth, which is 0 (no limit) until it is set. */
int mgd_clock_wiring_set_bus(struct mgd_clock *c, int bus, double bytes_per_ns);
int mgd_clock_wiring_join_bus(struct mgd_clock *c, int from, int to, int bus);

/* ---- clock.c: what is issued */
/* The host's streams are the threads of the program; each has a time of its own. In the functions below `thread` issues
 * the operation: that takes the device's issue time, and comes after all that any thread issued to that device before.
 * A thread that is far ahead of the stream waits for it, and lets threads that are behind go on (clock_lead.c).
 *
 * Runs one operator: max(flops / rate, bytes / bandwidth) + launch, after what the stream already holds. */
int mgd_clock_run(struct mgd_clock *c, int thread, int device, int stream, const struct mgd_work *work);
/* Copies over a link, when the copy has reached the head of both streams. A link carries one copy at a time, and takes
 * the one that was ready first. INVALID: both streams are of one device; such a copy is an operator. */
int mgd_clock_copy(struct mgd_clock *c, int thread, const struct mgd_transfer *t);
/* Gets the number of the copy that the thread issued last, which a log shows. 0: none. */
int mgd_clock_last_copy(struct mgd_clock *c, int thread, uint64_t *number);
int mgd_clock_begin_thread(struct mgd_clock *c, int thread); /* a new thread: its time is 0 until it issues something */
/* Sets whether Python issues what the thread issues, and so uses the interpreter's lock. It does at first. */
int mgd_clock_lock_use(struct mgd_clock *c, int thread, bool uses); /* clock_lock.c */

/* Records the end of what the stream holds now, at the earliest the thread's time. Replaces the moment in *m. */
int mgd_clock_record(struct mgd_clock *c, int thread, int device, int stream, struct mgd_moment *m);
/* Like mgd_clock_record(), but ignores the thread's time and adds nothing to the stream. NO_DEVICE for the host. */
int mgd_clock_end(struct mgd_clock *c, int device, int stream, struct mgd_moment *m);
void mgd_clock_forget(struct mgd_clock *c, struct mgd_moment *m);
void mgd_clock_set(struct mgd_clock *c, struct mgd_moment *m, int64_t ns); /* to that time, unless *m is a later one */
int mgd_clock_stream_wait(struct mgd_clock *c, int device, int stream, const struct mgd_moment *m);
int mgd_clock_host_wait(struct mgd_clock *c, int thread, int64_t until); /* its time moves to at least until */

/* Asking for a time settles all that it depends on: an operation that is issued later comes after that, even if it
 * would have been ready before. */
int mgd_clock_moment_time(struct mgd_clock *c, struct mgd_moment *m, int64_t *ns);
int mgd_clock_stream_time(struct mgd_clock *c, int device, int stream, int64_t *ns); /* the end of what it holds */
int mgd_clock_device_time(struct mgd_clock *c, int device, int64_t *ns); /* latest over its streams; -1 is the host */
int mgd_clock_elapsed(struct mgd_clock *c, int64_t *ns); /* when everything that was issued has ended, on all devices
                                                          * and in all threads, ended ones included */
/* Gets the ns that the operators issued to a device so far take; settles nothing. */
int mgd_clock_worked(struct mgd_clock *c, int device, int64_t *ns);
/* Gets the ns for which a link was taken; from == to: the sum of what a device's operators took, over its streams. */
int mgd_clock_busy(struct mgd_clock *c, int from, int to, int64_t *ns);

/* ---- clock_profile.c: what happened when */
enum mgd_span_kind {
  MGD_SPAN_RUN, /* an operator, on a stream */
  MGD_SPAN_COPY, /* from one place to another; bytes */
  MGD_SPAN_WAIT, /* a thread waited */
  MGD_SPAN_STALL, /* a stream waited, for an event or for room */
  MGD_SPAN_HOLD /* bytes were in use; the name is their owner; end INT64_MAX: they still are */
};
struct mgd_span {
  enum mgd_span_kind kind;
  int device, other, stream; /* where it was; copy: from and to; wait: the stream is the thread */
  int64_t begin, end, bytes;
  uint64_t number; /* the copy's */
  const char *name; /* the operator's, or what was waited for; may be NULL */
};
/* start() begins a log. stop() settles everything, ends the log and returns its spans in the order in which they became
 * known; the caller frees them with mgd_clock_profile_free(). NOMEM: there was no memory for all, and the log is gone.
 * INVALID: there is a log already, or none. */
int mgd_clock_profile_start(struct mgd_clock *c);
int mgd_clock_profile_stop(struct mgd_clock *c, struct mgd_span **spans, size_t *n);
void mgd_clock_profile_free(struct mgd_span *spans);

/* ---- clock_hold.c: bytes, from the first operation that may use them to the end of the last */
struct mgd_hold;
int mgd_clock_hold_set_capacity(struct mgd_clock *c, int device, int64_t bytes); /* no limit at first */
/* Takes bytes for what the stream runs from now on. The caller's own count says that they fit; if bytes that it gave up
 * are still used by operations of other streams, the stream waits until enough of these have ended. */
int mgd_clock_hold_take(struct mgd_clock *c, int device, int stream, int64_t bytes, struct mgd_hold **out);
/* Records that another stream of the device uses them as well. Lock-free: operators call it. */
void mgd_clock_hold_use(struct mgd_hold *hold, int stream);
/* Sets the owner; a log shows the last one, as if it had been the owner from the beginning. Lock-free. */
void mgd_clock_hold_own(struct mgd_hold *hold, enum mgd_hold_owner owner);
enum mgd_hold_owner mgd_clock_hold_owner(const struct mgd_hold *hold);
/* Hands the bytes from the stream that took them, which needs them no more, to `stream`, as if that had taken them.
 * `alone`: it comes after all other streams that used them. */
void mgd_clock_hold_hand_over(struct mgd_clock *c, struct mgd_hold *hold, int stream, bool alone);
/* Gives the bytes up: they are free when the streams that used them have run what they hold now, and not before
 * `after`, unless that is NULL. */
void mgd_clock_hold_give(struct mgd_clock *c, struct mgd_hold *hold, const struct mgd_moment *after);

#ifdef __cplusplus
}
#endif
#endif
