/* clock_testing.h: what tests ask of the clock, as testing.h does of the core: allocations that fail, and an audit of
 * the bytes that are held.
 */
#ifndef MGD_CLOCK_TESTING_H
#define MGD_CLOCK_TESTING_H

#include "clock/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- clock.c */
/* As mgd_clock_create(); its n-th allocation fails, 0 = none. */
int mgd_clock_create_failing(int devices, int64_t fail_allocation, struct mgd_clock **out);

/* ---- clock_audit.c */
/* From now on the clock remembers when bytes were held, and check() looks whether they ever were more than the
 * capacity: BROKEN if so. *most: the most at one time. What is over is then forgotten. INVALID: it was not started. */
int mgd_clock_audit_start(struct mgd_clock *c);
int mgd_clock_audit_check(struct mgd_clock *c, int device, int64_t *most);

#ifdef __cplusplus
}
#endif
#endif
