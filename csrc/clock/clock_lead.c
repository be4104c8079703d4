/* clock_lead.c: how far a thread is ahead: of the streams to which it issues, and of other threads.
 *
 * A stream accepts a bounded number of operations beyond the one that runs, and the thread waits for the rest, as on
 * CUDA. So the number of unsettled operations, and of blocks that wait for them, is bounded.
 *
 * Threads call in the order of real time. A wait takes virtual time alone: a thread that did nothing else would be a
 * whole queue ahead of a thread that real time has kept from issuing, and the latter moves to the time of the former
 * when both issue to one device (clock.c). Eight threads on two cores lost a quarter of their devices' time like that.
 * On a real machine the processor is free for those threads while the first one waits. So it is here: that thread
 * pauses for as long as threads that are behind go on. This changes the order of calls, and no time that is computed
 * for a given order.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep() */
#include <time.h>

#include "clock/internal_clock.h"

#define BEHIND 8 /* waits for a full queue that another thread may be behind, and is waited for */

/* Returns the sum of the times of all threads but this one that are at `from` or later, each counted as `until` at
 * most. Only differences matter, so it may wrap around. */
static uint64_t sum_of_times(const struct mgd_clock *c, int thread, int64_t from, int64_t until) {
  uint64_t sum = 0;
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    const int64_t time = mgd_clock_place_of(c, MGD_CLOCK_HOST)->streams[i].free_at;
    sum += i == thread || time < from ? 0 : (uint64_t)(time < until ? time : until);
  }
  return sum;
}

/* Pauses until no thread that is behind has gone on during a pause; the thread has waited since `before`. A thread that
 * waits for this one does not go on, so no two wait for each other. A thread that is further behind than some such
 * waits works for itself, and is not waited for: it might never come so far. If no thread has gone on since the last
 * time, there is no pause at all. */
static void let_threads_go_on(struct mgd_clock *c, int thread, int64_t before) {
  struct mgd_clock_stream *host = &mgd_clock_place_of(c, MGD_CLOCK_HOST)->streams[thread];
  const struct timespec pause = {c->pause / 1000000000, c->pause % 1000000000};
  const int64_t until = host->free_at, waited = until - before;
  const int64_t from = waited < before / BEHIND ? before - BEHIND * waited : 0;
  uint64_t sum, now = sum_of_times(c, thread, from, until);
  if (sum_of_times(c, thread, 0, INT64_MAX) == host->beside) { return; }
  do {
    sum = now;
    (void)mgd_clock_leave(c, MGD_OK);
    (void)nanosleep(&pause, NULL);
    mgd_clock_enter(c);
    now = sum_of_times(c, thread, from, until);
  } while (now != sum);
  host->beside = sum_of_times(c, thread, 0, INT64_MAX);
}

/* After each half of the lead the thread waits for the end of the half before. */
bool mgd_clock_lead_limit(struct mgd_clock *c, int thread, int device, int stream) {
  struct mgd_clock_stream *host = &mgd_clock_place_of(c, MGD_CLOCK_HOST)->streams[thread];
  struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[stream];
  if (++s->since_half < MGD_CLOCK_LEAD / 2) { return false; }
  const int64_t before = host->free_at, end = mgd_clock_flow_time(c, &s->half);
  s->since_half = 0;
  s->half = mgd_clock_flow_mark(c, device, stream, 0);
  if (end <= before) { return false; }
  mgd_clock_log_wait(c, MGD_CLOCK_HOST, thread, before, end, "full queue");
  mgd_clock_move(c, host, end);
  let_threads_go_on(c, thread, before);
  return true;
}
