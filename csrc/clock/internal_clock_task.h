/* internal_clock_task.h: one operation on the clock whose end is not known yet.
 *
 * Part of internal_clock.h, which includes it.
 */
#ifndef MGD_INTERNAL_CLOCK_TASK_H
#define MGD_INTERNAL_CLOCK_TASK_H

#include "clock/clock.h"

struct mgd_clock_stream;
struct mgd_clock_link;

/* A wait lets its stream go on when `awaited` has ended; a mark takes no time: its end is that of all before it. */
enum mgd_task_kind { MGD_TASK_RUN, MGD_TASK_COPY, MGD_TASK_WAIT, MGD_TASK_MARK };
enum mgd_copy_phase { MGD_COPY_QUEUED, MGD_COPY_STARTING, MGD_COPY_FLOWING };

/* One operation in a stream whose end is not known yet. */
struct mgd_task {
  enum mgd_task_kind kind;
  bool known;     /* has left its streams, and `end` says when it ended */
  int references; /* its streams', which is one, and those of moments and waits */
  int device;     /* whose stream it is in; of a copy between two: the source */
  int other;      /* the device that it looks to: of a copy the target, of a wait that of `awaited`; else `device` */
  struct mgd_clock_stream *streams[2]; /* [1]: of a copy between two devices, or NULL */
  struct mgd_task *next[2];            /* in each of them */
  struct mgd_task *tie_before, *tie_after; /* all copies and waits, in the order of issue: they tie streams together */
  struct mgd_task *front_before, *front_after; /* those of them that are the first of their streams, in that order */
  bool is_front;
  uint64_t number;                         /* in the order of issue */
  int64_t issued, cost, end;               /* it begins no earlier; RUN: ns that it takes; if known */
  const char *name;                        /* for the log */
  struct mgd_task *awaited; /* WAIT */
  /* COPY */
  struct mgd_clock_link *link;
  enum mgd_copy_phase phase;
  int64_t bytes, began; /* when it got its link */
  int64_t since; /* STARTING: when its bytes begin to flow. FLOWING: when `left` bytes were left */
  double left, rate, share; /* `share`: while rates are found */
};

#endif
