/* internal_clock_task.h: one operation on the clock whose end is not known yet.
 *
 * Part of internal_clock.h, which includes it.
 */
#ifndef MGD_INTERNAL_CLOCK_TASK_H
#define MGD_INTERNAL_CLOCK_TASK_H

#include "clock/clock.h"

struct mgd_clock_stream;
struct mgd_clock_link;

/* A wait lets its stream continue when `awaited` has ended. A mark takes no time: it ends when all before it has. */
enum mgd_task_kind { MGD_TASK_RUN, MGD_TASK_COPY, MGD_TASK_WAIT, MGD_TASK_MARK };
enum mgd_copy_phase { MGD_COPY_QUEUED, MGD_COPY_STARTING, MGD_COPY_FLOWING };

/* This is one operation in a stream, whose end is not known yet. */
struct mgd_task {
  enum mgd_task_kind kind;
  bool known;     /* it has left its streams, and `end` is its end */
  int references; /* one for its streams together, and one for each moment and wait */
  int device;     /* device of its stream; copy between two devices: the source */
  int other;      /* copy: the target device; wait: the device of `awaited`; else `device` */
  struct mgd_clock_stream *streams[2]; /* [1]: second stream of a copy between two devices, or NULL */
  struct mgd_task *next[2];            /* the next task in each of them */
  struct mgd_task *tie_before, *tie_after; /* list of ties: all copies and waits, in the order of issue */
  struct mgd_task *front_before, *front_after; /* list of ties that are first in all their streams */
  bool is_front;
  uint64_t number;                         /* in the order of issue */
  int64_t issued, cost, end;               /* its earliest begin; RUN: ns that it takes; its end if known */
  const char *name;                        /* for the log */
  struct mgd_task *awaited; /* WAIT */
  /* COPY */
  struct mgd_clock_link *link;
  enum mgd_copy_phase phase;
  int64_t bytes, began; /* began: when it got its link */
  int64_t since; /* STARTING: when its bytes begin to flow. FLOWING: when `left` bytes were left */
  double left, rate, share; /* `share`: scratch while rates are computed */
};

#endif
