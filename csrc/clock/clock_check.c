/* clock_check.c: checks the invariants of the clock; MGD_DEBUG builds call it after each transition. */
#include "clock/internal_clock.h"

/* The queue of a stream begins with a task that cannot end yet, and its count is right. */
static bool is_queue_sound(const struct mgd_clock_stream *s) {
  int queued = 0;
  const struct mgd_task *last = NULL;
  for (const struct mgd_task *t = s->first; t; t = t->next[t->streams[1] == s]) {
    if (t->known || t->references < 1 || (t->streams[0] != s && t->streams[1] != s)) { return false; }
    queued++;
    last = t;
  }
  const bool uncertain = !s->first || s->first->kind == MGD_TASK_COPY || s->first->kind == MGD_TASK_WAIT;
  return uncertain && queued == s->queued && last == s->last;
}

/* Adds the bytes that wait for the stream to *leaving. */
static bool is_stream_sound(const struct mgd_clock *c, int device, const struct mgd_clock_stream *s, int64_t *leaving) {
  int64_t own = 0;
  int count = 0;
  bool parts = true;
  for (const struct mgd_hold *h = s->leaving; h; h = h->next) {
    parts = parts && h->merged >= 0 && h->merged <= h->bytes;
    own += h->shared ? 0 : h->bytes;
    *leaving += h->bytes;
    count++;
  }
  return parts && s->free_at >= 0 && s->free_at <= c->latest && own == s->leaving_bytes && count == s->leaving_count &&
      is_queue_sound(s) && (device != MGD_CLOCK_HOST || (!s->first && !count));
}

static bool is_place_sound(const struct mgd_clock *c, int device) {
  const struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  int64_t leaving = 0, held = 0;
  bool sound = mgd_clock_is_speed(&place->speed);
  for (int i = 0; i < MGD_MAX_STREAMS; i++) {
    sound = sound && is_stream_sound(c, device, &place->streams[i], &leaving);
  }
  for (const struct mgd_hold *h = place->living; h; h = h->next) { held += h->bytes; }
  return sound && place->issued >= 0 && place->issued <= c->latest && place->busy >= 0 && leaving == place->leaving &&
      held == place->held;
}

static bool is_clock_link_sound(const struct mgd_clock *c, int from, int to) {
  const struct mgd_clock_link *link = mgd_clock_link_of(c, from, to);
  int queued = 0, active = 0;
  for (const struct mgd_task *t = c->ties; t; t = t->tie_after) {
    if (t->kind == MGD_TASK_COPY && t->link == link) {
      queued++;
      active += t->phase != MGD_COPY_QUEUED;
    }
  }
  return link->cost.latency_ns >= 0 && mgd_is_amount(link->cost.bytes_per_ns) && link->free_at >= 0 &&
      link->free_at <= c->latest && link->busy <= link->free_at && queued == link->queued &&
      active == (link->active ? 1 : 0) && (from != to || (!link->free_at && !queued));
}

/* The fronts are the ties that are first of their streams, in the same order. */
static bool are_fronts_sound(const struct mgd_clock *c) {
  const struct mgd_task *front = c->fronts, *last = NULL;
  for (const struct mgd_task *t = c->ties; t; t = t->tie_after) {
    const bool is_first = mgd_clock_queue_is_first(t);
    if (is_first != t->is_front || (is_first && (t != front || t->front_before != last))) { return false; }
    last = is_first ? t : last;
    front = is_first ? t->front_after : front;
  }
  return !front && last == c->fronts_last;
}

static bool is_lock_sound(const struct mgd_clock_lock *l) {
  bool sound = l->first <= l->last && l->last <= l->room && l->last - l->first <= MGD_CLOCK_TURNS;
  for (size_t i = l->first; sound && i < l->last; i++) {
    sound = l->turns[i].begin < l->turns[i].end && (i == l->first || l->turns[i - 1].end < l->turns[i].begin);
  }
  return sound;
}

int mgd_clock_check(const struct mgd_clock *c) {
  bool sound = true;
  for (int from = MGD_CLOCK_HOST; from < c->devices; from++) {
    sound = sound && is_place_sound(c, from);
    for (int to = MGD_CLOCK_HOST; to < c->devices; to++) { sound = sound && is_clock_link_sound(c, from, to); }
  }
  sound = sound && are_fronts_sound(c) && is_lock_sound(&c->lock);
  return sound ? MGD_OK : MGD_E_BROKEN;
}
