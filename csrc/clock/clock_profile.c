/* clock_profile.c: begins and ends a log of a clock.
 *
 * At the end everything is settled, and bytes that are still in use are logged as well.
 */
#include "clock/internal_clock.h"

int mgd_clock_profile_start(struct mgd_clock *c) {
  mgd_clock_enter(c);
  const int code = c->log ? MGD_E_INVALID : mgd_clock_log_begin(c) ? MGD_OK : MGD_E_NOMEM;
  return mgd_clock_leave(c, code);
}

static int stop(struct mgd_clock *c, struct mgd_span **spans, size_t *n) {
  mgd_clock_flow_settle_all(c);
  for (int d = 0; d < c->devices; d++) {
    mgd_clock_hold_log_all(c, d);
  }
  return mgd_clock_log_end(c, spans, n);
}

int mgd_clock_profile_stop(struct mgd_clock *c, struct mgd_span **spans, size_t *n) {
  mgd_clock_enter(c);
  return mgd_clock_leave(c, c->log ? stop(c, spans, n) : MGD_E_INVALID);
}

void mgd_clock_profile_free(struct mgd_span *spans) { mgd_alloc_free(spans); }
