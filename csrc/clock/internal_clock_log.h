/* internal_clock_log.h: how the files of the clock write to its log. */
#ifndef MGD_INTERNAL_CLOCK_LOG_H
#define MGD_INTERNAL_CLOCK_LOG_H

#include "clock/clock.h"

struct mgd_clock_link;
struct mgd_log;

/* ---- clock_log.c: the first three do nothing without a log */
void mgd_clock_log_add(struct mgd_clock *c, const struct mgd_span *span);
/* Adds the wait of a thread or a stream, if `begin` is before `end`. */
void mgd_clock_log_wait(struct mgd_clock *c, int device, int stream, int64_t begin, int64_t end, const char *name);
void mgd_clock_log_copy(struct mgd_clock *c, const struct mgd_clock_link *link, const struct mgd_span *span);
bool mgd_clock_log_begin(struct mgd_clock *c); /* false: no memory */
void mgd_clock_log_discard(struct mgd_clock *c);
/* Ends the log and frees it in any case. NOMEM: it was incomplete. */
int mgd_clock_log_end(struct mgd_clock *c, struct mgd_span **spans, size_t *n);

/* ---- clock_hold.c */
void mgd_clock_hold_log_all(struct mgd_clock *c, int device); /* adds the holds that are not over */

#endif
