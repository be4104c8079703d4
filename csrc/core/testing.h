/* testing.h: fault injection: copies that vanish, storages that leave without
 * need, wrong plans.
 *
 * Only tests and managed.debug include it. As in core.h, each function is listed
 * under the name of the file that defines it. mgd_config.fail_allocation makes a
 * machine's own allocations fail.
 */
#ifndef MGD_TESTING_H
#define MGD_TESTING_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- replica.c */
/* From now on each find dooms the replica that it found with probability 1/4. `seed` starts the random numbers; 0 stops
 * this. */
int mgd_replica_shake(struct mgd_machine *m, uint64_t seed);

/* ---- evict.c */
/* Works like mgd_evict_begin(), but each storage leaves with probability 1 / `odds`, as long as `actions` has room.
 * *seed is advanced. */
int mgd_evict_random(struct mgd_machine *m, int device, uint32_t odds, uint64_t *seed, struct mgd_action *actions,
                     size_t *n);

/* ---- step.c */
/* Falsifies the device's plan: each action gets a random storage. ABSENT: the device has no plan. */
int mgd_step_lie(struct mgd_machine *m, int device, uint64_t seed);
/* From now on steps are recorded wrongly: times are distorted, and while a plan is followed, operators are missed or
 * invented. 0: they are recorded as they are. */
int mgd_step_disturb(struct mgd_machine *m, uint64_t seed);

/* Off: plans still make bytes leave, but bytes come back only when they are needed. */
int mgd_step_fetch_ahead(struct mgd_machine *m, bool on);

#ifdef __cplusplus
}
#endif
#endif
