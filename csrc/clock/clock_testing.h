/* clock_testing.h: the clock's functions for tests, like testing.h for the core: allocations that fail, and an audit of
 * the bytes that are held.
 */
#ifndef MGD_CLOCK_TESTING_H
#define MGD_CLOCK_TESTING_H

#include "clock/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- clock.c */
/* Works like mgd_clock_create(), but the n-th allocation fails, 0 = none. */
int mgd_clock_create_failing(int devices, int64_t fail_allocation, struct mgd_clock **out);

/* ---- clock_audit.c */
/* From now on the clock remembers when bytes were held, and check() tests whether they ever exceeded the capacity:
 * BROKEN if so. *most: the most at one time. Holds that are over are then forgotten. INVALID: it was not started. */
int mgd_clock_audit_start(struct mgd_clock *c);
int mgd_clock_audit_check(struct mgd_clock *c, int device, int64_t *most);

#ifdef __cplusplus
}
#endif
#endif
