/* clock_hold.c: the bytes of devices on the virtual clock.
 *
 * A program gives bytes up when it has issued the last operation that uses them, and that may run much later. Within
 * one stream this does not matter: the next user of the bytes runs behind. Another stream could run at the same time;
 * if both sets of bytes do not fit it waits, as one of the streams would have to on CUDA. So a device holds more than
 * its capacity at no virtual time.
 *
 * Proof: among all holds at some time, consider the one that was taken last. When it was taken, every other one was
 * living, or leaving with an end after its begin; the sum of these was checked here.
 */
#include "clock/internal_clock.h"

#define LEAVING 1024 /* leaving holds that a stream keeps one by one */

static struct mgd_clock_stream *stream_of(const struct mgd_clock *c, const struct mgd_hold *h) {
  return &mgd_clock_place_of(c, h->device)->streams[h->stream];
}

static uint64_t other_streams(struct mgd_hold *h) { return atomic_load_explicit(&h->also, memory_order_relaxed); }

int mgd_clock_hold_set_capacity(struct mgd_clock *c, int device, int64_t bytes) {
  if (!mgd_clock_is_device(c, device, 0)) {
    return MGD_E_NO_DEVICE;
  }
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  place->capacity = bytes;
  place->largest = mgd_max(place->largest, bytes);
  return mgd_clock_leave(c, MGD_OK);
}

/* ---- holds that were given up */

/* Returns when the last use of the bytes ends. */
int64_t mgd_clock_hold_end(struct mgd_clock *c, struct mgd_hold *h) {
  int64_t end = mgd_clock_flow_time(c, &h->end);
  for (int i = 0; i < h->ends_count; i++) {
    end = mgd_max(end, mgd_clock_flow_time(c, &h->ends[i]));
  }
  return end;
}

void mgd_clock_hold_free(struct mgd_clock *c, struct mgd_hold *h) {
  (void)mgd_clock_hold_end(c, h);
  (void)mgd_clock_flow_time(c, &h->begin); /* now no moment of it has a task */
  mgd_alloc_free(h->ends);
  mgd_alloc_free(h);
}

static void log_hold(struct mgd_clock *c, struct mgd_hold *h, bool living) {
  const int64_t begin = mgd_clock_flow_time(c, &h->begin), end = living ? INT64_MAX : mgd_clock_hold_end(c, h);
  const int64_t own = h->bytes - h->merged;
  if (own && begin < end) {
    static const char *const owners[MGD_HOLD_OWNERS] = {"other", "managed", "replica", "guest"};
    const char *owner = owners[mgd_clock_hold_owner(h)];
    mgd_clock_log_add(c, &(struct mgd_span){MGD_SPAN_HOLD, h->device, h->device, h->stream, begin, end, own, 0, owner});
  }
}

void mgd_clock_hold_log_all(struct mgd_clock *c, int device) {
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  for (struct mgd_hold *h = place->living; h; h = h->next) {
    log_hold(c, h, true);
  }
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    for (struct mgd_hold *h = place->streams[i].leaving; h; h = h->next) {
      log_hold(c, h, false);
    }
  }
}

static void put_away(struct mgd_clock *c, struct mgd_hold *h) {
  if (c->log) {
    log_hold(c, h, false);
  }
  struct mgd_clock_place *place = mgd_clock_place_of(c, h->device);
  if (c->audited) {
    h->next = place->over;
    place->over = h;
  } else {
    mgd_clock_hold_free(c, h);
  }
}

static void leave_list(struct mgd_clock *c, struct mgd_hold *h) {
  struct mgd_clock_place *place = mgd_clock_place_of(c, h->device);
  struct mgd_clock_stream *s = stream_of(c, h);
  s->leaving = h->next;
  s->leaving_last = s->leaving ? s->leaving_last : NULL;
  s->leaving_count--;
  s->leaving_bytes -= h->shared ? 0 : h->bytes;
  place->leaving -= h->bytes;
  put_away(c, h);
}

static bool is_known(const struct mgd_moment *m) { return !m->task || m->task->known; }

/* Whether the hold is over. No operation that is issued from now on begins before `issued`, so a hold that has ended by
 * then overlaps none of them. */
static bool is_over(struct mgd_clock *c, struct mgd_hold *h) {
  bool known = is_known(&h->end);
  for (int i = 0; i < h->ends_count; i++) {
    known = known && is_known(&h->ends[i]);
  }
  return known && mgd_clock_hold_end(c, h) <= mgd_clock_place_of(c, h->device)->issued;
}

/* Takes out the holds that are over. The holds of a stream end one after the other, so the search stops at the first
 * one that is not. */
static void forget_what_is_over(struct mgd_clock *c, struct mgd_clock_stream *s) {
  while (s->leaving && is_over(c, s->leaving)) {
    leave_list(c, s->leaving);
  }
}

/* ---- take */

/* Returns the bytes that are held on a device at that time. *soonest: the first end after it, when they become less. */
static int64_t held_at(struct mgd_clock *c, struct mgd_clock_place *place, int64_t time, int64_t *soonest) {
  int64_t held = place->held;
  *soonest = INT64_MAX;
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    for (struct mgd_hold *h = place->streams[i].leaving; h; h = h->next) {
      const int64_t end = mgd_clock_hold_end(c, h);
      if (end > time) {
        held += h->bytes;
        *soonest = end < *soonest ? end : *soonest;
      }
    }
  }
  return held;
}

/* Makes the stream wait until the bytes on the device fit. place->held includes the bytes that are being taken. */
static void wait_for_room(struct mgd_clock *c, struct mgd_clock_place *place, struct mgd_clock_stream *s) {
  mgd_clock_flow_settle_stream(c, s);
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    forget_what_is_over(c, &place->streams[i]);
  }
  int64_t begin = mgd_max(s->free_at, place->issued), soonest;
  while (held_at(c, place, begin, &soonest) > place->capacity && soonest < INT64_MAX) {
    begin = soonest;
  }
  if (begin > place->issued) {
    mgd_clock_log_wait(c, (int)(place - c->places) - 1, (int)(s - place->streams), s->free_at, begin, "room");
    s->free_at = begin;
  }
  mgd_clock_reach(c, begin);
}

static void keep_living(struct mgd_clock_place *place, struct mgd_hold *h) {
  h->next = place->living;
  if (h->next) {
    h->next->before = h;
  }
  place->living = h;
  place->held += h->bytes;
}

int mgd_clock_hold_take(struct mgd_clock *c, int device, int stream, int64_t bytes, struct mgd_hold **out) {
  if (!mgd_clock_is_device(c, device, stream)) {
    return MGD_E_NO_DEVICE;
  }
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  struct mgd_clock_stream *s = &place->streams[stream];
  const bool sane = bytes <= INT64_MAX - place->held - place->leaving;
  struct mgd_hold *h = sane ? mgd_alloc_new(&c->alloc, 1, sizeof *h) : NULL;
  if (!h) {
    return mgd_clock_leave(c, MGD_E_NOMEM);
  }
  h->device = device;
  h->stream = stream;
  h->bytes = bytes;
  keep_living(place, h);
  forget_what_is_over(c, s);
  if (bytes && place->held > place->capacity - (place->leaving - s->leaving_bytes)) {
    wait_for_room(c, place, s);
  }
  if (c->audited || c->log) {
    h->begin = mgd_clock_flow_mark(c, device, stream, place->issued);
  }
  *out = h;
  return mgd_clock_leave(c, MGD_OK);
}

void mgd_clock_hold_use(struct mgd_hold *hold, int stream) {
  if (stream != hold->stream) {
    atomic_fetch_or_explicit(&hold->also, (uint64_t)1 << stream, memory_order_relaxed);
  }
}

void mgd_clock_hold_hand_over(struct mgd_clock *c, struct mgd_hold *h, int stream, bool alone) {
  mgd_clock_enter(c);
  h->stream = stream;
  atomic_fetch_and_explicit(&h->also, alone ? 0 : ~((uint64_t)1 << stream), memory_order_relaxed);
  (void)mgd_clock_leave(c, MGD_OK);
}

void mgd_clock_hold_own(struct mgd_hold *hold, enum mgd_hold_owner owner) {
  atomic_store_explicit(&hold->owner, (int)owner, memory_order_relaxed);
}

enum mgd_hold_owner mgd_clock_hold_owner(const struct mgd_hold *hold) {
  return (enum mgd_hold_owner)atomic_load_explicit(&hold->owner, memory_order_relaxed);
}

/* ---- give */

static void add_end(struct mgd_clock *c, struct mgd_hold *h, struct mgd_moment m) {
  if (h->ends) {
    h->ends[h->ends_count++] = m;
  } else {
    const int64_t own = mgd_clock_flow_time(c, &h->end);
    h->end.ns = mgd_max(own, mgd_clock_flow_time(c, &m));
  }
}

/* Marks the present ends of the other streams that use the bytes, and `after`. Without memory these are settled, and
 * `end` becomes the latest of them. */
static void mark_others(struct mgd_clock *c, struct mgd_hold *h, const struct mgd_moment *after) {
  const uint64_t others = other_streams(h);
  const int n = __builtin_popcountll(others) + (after != NULL);
  h->shared = n > 0;
  h->ends = n ? mgd_alloc_new(&c->alloc, (size_t)n, sizeof *h->ends) : NULL;
  for (uint64_t left = others; left; left &= left - 1) {
    add_end(c, h, mgd_clock_flow_mark(c, h->device, __builtin_ctzll(left), 0));
  }
  if (after) {
    add_end(c, h, mgd_clock_queue_share(after));
  }
}

/* Merges the oldest hold into the next one, because there are too many: its bytes now end with those. The log gets its
 * own end. */
static void merge_oldest(struct mgd_clock *c, struct mgd_clock_stream *s) {
  struct mgd_hold *oldest = s->leaving, *next = oldest->next;
  if (oldest->shared || next->shared) {
    return;
  }
  if (c->log) {
    log_hold(c, oldest, false);
  }
  next->bytes += oldest->bytes;
  next->merged += oldest->bytes;
  s->leaving = next;
  s->leaving_count--;
  oldest->bytes = oldest->merged = 0;
  put_away(c, oldest);
}

static void leave_living(struct mgd_clock_place *place, struct mgd_hold *h) {
  *(h->before ? &h->before->next : &place->living) = h->next;
  if (h->next) {
    h->next->before = h->before;
  }
  h->next = h->before = NULL;
  place->held -= h->bytes;
}

void mgd_clock_hold_give(struct mgd_clock *c, struct mgd_hold *h, const struct mgd_moment *after) {
  mgd_clock_enter(c);
  struct mgd_clock_place *place = mgd_clock_place_of(c, h->device);
  struct mgd_clock_stream *s = stream_of(c, h);
  leave_living(place, h);
  h->end = mgd_clock_flow_mark(c, h->device, h->stream, 0);
  mark_others(c, h, after);
  forget_what_is_over(c, s);
  *(s->leaving ? &s->leaving_last->next : &s->leaving) = h;
  s->leaving_last = h;
  s->leaving_count++;
  s->leaving_bytes += h->shared ? 0 : h->bytes;
  place->leaving += h->bytes;
  forget_what_is_over(c, s);
  if (s->leaving_count > LEAVING) {
    merge_oldest(c, s);
  }
  (void)mgd_clock_leave(c, MGD_OK);
}

void mgd_clock_hold_discard_all(struct mgd_clock *c, int device) {
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    while (place->streams[i].leaving) {
      leave_list(c, place->streams[i].leaving);
    }
  }
  while (place->living) {
    struct mgd_hold *h = place->living;
    leave_living(place, h);
    put_away(c, h);
  }
  for (struct mgd_hold *h = place->over, *next; h; h = next) {
    next = h->next;
    mgd_clock_hold_free(c, h);
  }
}
