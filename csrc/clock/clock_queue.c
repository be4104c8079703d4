/* clock_queue.c: the streams of a clock and what they hold.
 *
 * The end of an operator is known when it is issued, unless its stream waits for an uncertain one. It is uncertain when
 * a copy gets its link, and so are the ends of all tasks that wait for the copy: they are queued until a caller needs
 * the time. Nothing is decided about copies here; see clock_flow.c.
 */
#include "clock/internal_clock.h"

static int side_of(const struct mgd_task *t, const struct mgd_clock_stream *s) { return t->streams[1] == s ? 1 : 0; }

static bool is_tie(const struct mgd_task *t) { return t->kind == MGD_TASK_COPY || t->kind == MGD_TASK_WAIT; }

struct mgd_task *mgd_clock_queue_new(struct mgd_clock *c, enum mgd_task_kind kind, int device, int stream) {
  struct mgd_task *t = mgd_alloc_new(&c->alloc, 1, sizeof *t);
  if (t) {
    t->kind = kind;
    t->references = 1;
    t->device = t->other = device;
    t->streams[0] = &mgd_clock_place_of(c, device)->streams[stream];
    t->number = ++c->issued;
  }
  return t;
}

void mgd_clock_queue_drop(struct mgd_task *t) {
  if (t && --t->references == 0) {
    mgd_alloc_free(t);
  }
}

static void tie(struct mgd_clock *c, struct mgd_task *t) {
  t->tie_before = c->ties_last;
  *(c->ties_last ? &c->ties_last->tie_after : &c->ties) = t;
  c->ties_last = t;
}

static void untie(struct mgd_clock *c, struct mgd_task *t) {
  *(t->tie_before ? &t->tie_before->tie_after : &c->ties) = t->tie_after;
  *(t->tie_after ? &t->tie_after->tie_before : &c->ties_last) = t->tie_before;
}

bool mgd_clock_queue_is_first(const struct mgd_task *t) {
  return t->streams[0]->first == t && (!t->streams[1] || t->streams[1]->first == t);
}

/* Adds the task to the fronts, if it is one. The search begins at the end, because most tasks belong there. */
static void add_front(struct mgd_clock *c, struct mgd_task *t) {
  if (t->is_front || !is_tie(t) || !mgd_clock_queue_is_first(t)) {
    return;
  }
  struct mgd_task *before = c->fronts_last;
  while (before && before->number > t->number) {
    before = before->front_before;
  }
  t->is_front = true;
  t->front_before = before;
  t->front_after = before ? before->front_after : c->fronts;
  *(before ? &before->front_after : &c->fronts) = t;
  *(t->front_after ? &t->front_after->front_before : &c->fronts_last) = t;
}

/* Removes a task that ends. It is a tie and the first of its streams, so it is a front. */
static void remove_front(struct mgd_clock *c, struct mgd_task *t) {
  *(t->front_before ? &t->front_before->front_after : &c->fronts) = t->front_after;
  *(t->front_after ? &t->front_after->front_before : &c->fronts_last) = t->front_before;
  t->is_front = false;
}

/* Appends the task to its streams, and takes over the reference of its creator. */
void mgd_clock_queue_append(struct mgd_clock *c, struct mgd_task *t) {
  for (int i = 0; i < 2 && t->streams[i]; i++) {
    struct mgd_clock_stream *s = t->streams[i];
    *(s->last ? &s->last->next[side_of(s->last, s)] : &s->first) = t;
    s->last = t;
    s->queued++;
  }
  if (is_tie(t)) {
    tie(c, t);
    add_front(c, t);
  }
}

struct mgd_moment mgd_clock_queue_share(const struct mgd_moment *m) {
  if (m->task) {
    m->task->references++;
  }
  return *m;
}

/* Ends the task, which is the first of its streams. */
void mgd_clock_queue_finish(struct mgd_clock *c, struct mgd_task *t, int64_t end) {
  for (int i = 0; i < 2 && t->streams[i]; i++) {
    struct mgd_clock_stream *s = t->streams[i];
    s->first = t->next[i];
    s->last = s->first ? s->last : NULL;
    s->queued--;
    if (t->kind != MGD_TASK_MARK) {
      s->free_at = end;
    }
  }
  if (is_tie(t)) {
    untie(c, t);
    remove_front(c, t);
  }
  for (int i = 0; i < 2 && t->streams[i]; i++) {
    if (t->streams[i]->first) {
      add_front(c, t->streams[i]->first);
    }
  }
  t->known = true;
  t->end = end;
  mgd_clock_reach(c, end);
  mgd_clock_queue_drop(t);
}

/* Returns when the first task of a stream ends; it waits for no unsettled task. */
static int64_t end_of(struct mgd_clock *c, const struct mgd_clock_stream *s, const struct mgd_task *t) {
  struct mgd_clock_place *place = mgd_clock_place_of(c, t->device);
  const int64_t begin = mgd_max(s->free_at, t->issued);
  const int stream = (int)(s - place->streams);
  if (t->kind == MGD_TASK_WAIT) {
    const int64_t end = t->awaited ? mgd_max(begin, t->awaited->end) : begin;
    mgd_clock_log_wait(c, t->device, stream, s->free_at, end, "event");
    return end;
  }
  const int64_t end = mgd_about_sum(begin, t->cost);
  place->busy += t->cost;
  if (t->kind == MGD_TASK_RUN) {
    mgd_clock_log_add(c, &(struct mgd_span){MGD_SPAN_RUN, t->device, t->device, stream, begin, end, 0, 0, t->name});
  }
  return end;
}

void mgd_clock_queue_advance(struct mgd_clock *c, struct mgd_clock_stream *s) {
  while (s->first && s->first->kind != MGD_TASK_COPY) {
    struct mgd_task *t = s->first, *awaited = t->awaited;
    if (awaited && !awaited->known) {
      return;
    }
    mgd_clock_queue_finish(c, t, end_of(c, s, t));
    mgd_clock_queue_drop(awaited);
  }
}
