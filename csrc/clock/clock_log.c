/* clock_log.c: the log of a clock's operations, for a profile.
 *
 * The log is a list of spans that grows while a profile is taken. A span is added when its end is known, so the spans
 * are not ordered by time. Nothing is decided here.
 */
#include "clock/internal_clock.h"

struct mgd_log {
  struct mgd_span *spans;
  size_t count, room;
  bool lost; /* there was no memory for a span */
};

static void add(struct mgd_clock *c, struct mgd_log *log, const struct mgd_span *span) {
  if (log->count == log->room) {
    const size_t room = log->room ? 2 * log->room : 1024;
    struct mgd_span *more = mgd_alloc_resize(&c->alloc, log->spans, room, sizeof *more);
    if (!more) {
      log->lost = true;
      return;
    }
    log->spans = more;
    log->room = room;
  }
  log->spans[log->count++] = *span;
}

void mgd_clock_log_add(struct mgd_clock *c, const struct mgd_span *span) {
  if (c->log) {
    add(c, c->log, span);
  }
}

void mgd_clock_log_wait(struct mgd_clock *c, int device, int stream, int64_t begin, int64_t end, const char *name) {
  if (c->log && begin < end) {
    const enum mgd_span_kind kind = device == MGD_CLOCK_HOST ? MGD_SPAN_WAIT : MGD_SPAN_STALL;
    add(c, c->log, &(struct mgd_span){kind, device, device, stream, begin, end, 0, 0, name});
  }
}

void mgd_clock_log_copy(struct mgd_clock *c, const struct mgd_clock_link *link, const struct mgd_span *span) {
  if (c->log) {
    const int places = c->devices + 1, index = (int)(link - c->links);
    struct mgd_span copy = *span;
    copy.kind = MGD_SPAN_COPY;
    copy.device = index / places - 1;
    copy.other = index % places - 1;
    add(c, c->log, &copy);
  }
}

bool mgd_clock_log_begin(struct mgd_clock *c) {
  c->log = mgd_alloc_new(&c->alloc, 1, sizeof *c->log);
  return c->log;
}

void mgd_clock_log_discard(struct mgd_clock *c) {
  if (c->log) {
    mgd_alloc_free(c->log->spans);
    mgd_alloc_free(c->log);
    c->log = NULL;
  }
}

int mgd_clock_log_end(struct mgd_clock *c, struct mgd_span **spans, size_t *n) {
  struct mgd_log *log = c->log;
  const int code = log->lost ? MGD_E_NOMEM : MGD_OK;
  if (code == MGD_OK) {
    *spans = log->spans;
    *n = log->count;
    log->spans = NULL;
  }
  mgd_clock_log_discard(c);
  return code;
}
