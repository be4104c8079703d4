/* clock_ahead.c: when things will probably end, for who decides before it is known.
 *
 * What a stream holds is settled when somebody waits for it, and to settle it early would change what comes of it. So
 * each stream has an estimate, kept as things are issued: as if each copy were alone on its way. Nothing is settled
 * here.
 */
#include "internal_clock.h"

int64_t mgd_clock_ahead_of(const struct mgd_clock_stream *s) {
  return s->first ? mgd_max(s->about, s->free_at) : s->free_at;
}

void mgd_clock_ahead_expect(struct mgd_clock_stream *s, int64_t begin, int64_t cost) {
  s->about = mgd_about_sum(mgd_max(begin, mgd_clock_ahead_of(s)), cost);
}

int mgd_clock_ahead_end(struct mgd_clock *c, int device, int stream, struct mgd_moment *m) {
  if (!mgd_clock_is_device(c, device, stream)) {
    return MGD_E_NO_DEVICE;
  }
  mgd_clock_enter(c);
  const struct mgd_clock_stream *s = &mgd_clock_place_of(c, device)->streams[stream];
  if (s->last) {
    s->last->references++;
  }
  mgd_clock_queue_drop(m->task);
  *m = (struct mgd_moment){mgd_clock_ahead_of(s), s->last};
  return mgd_clock_leave(c, MGD_OK);
}

static bool is_thread(int thread) { return thread >= 0 && thread < MGD_MAX_STREAMS; }

static int64_t until(const struct mgd_clock *c, int thread, int64_t then) {
  return mgd_max(0, then - mgd_clock_place_of(c, MGD_CLOCK_HOST)->streams[thread].free_at);
}

int mgd_clock_ahead_busy(struct mgd_clock *c, int thread, int device, int stream, int64_t *ns) {
  if (!is_thread(thread) || !mgd_clock_is_device(c, device, stream)) {
    return is_thread(thread) ? MGD_E_NO_DEVICE : MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  *ns = until(c, thread, mgd_clock_ahead_of(&mgd_clock_place_of(c, device)->streams[stream]));
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_ahead_until(struct mgd_clock *c, int thread, const struct mgd_moment *m, int64_t *ns) {
  if (!is_thread(thread)) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  *ns = until(c, thread, m->task && m->task->known ? m->task->end : m->ns);
  return mgd_clock_leave(c, MGD_OK);
}
