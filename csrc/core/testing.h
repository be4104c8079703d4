/* testing.h: what makes the core behave badly on purpose: copies that vanish,
 * storages that leave without need, memory that runs out.
 *
 * For tests and for managed.debug; nothing else includes it. As in core.h, each
 * function stands under the name of the file that defines it. A machine's own
 * allocations fail by mgd_config.fail_allocation.
 */
#ifndef MGD_TESTING_H
#define MGD_TESTING_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- replica.c */
/* From now on each find dooms the replica that it found with a chance of one in four. `seed`: of the random numbers; 0
 * stops that. */
int mgd_replica_shake(struct mgd_machine *m, uint64_t seed);

/* ---- evict.c */
/* As mgd_evict_begin(), for storages by chance, one in `odds`, as far as they fit into `actions`; *seed goes on. */
int mgd_evict_random(struct mgd_machine *m, int device, uint32_t odds, uint64_t *seed, struct mgd_action *actions,
                     size_t *n);

/* ---- step.c */
/* The device's plan lies from now on: each action is of another storage. ABSENT: it has none. */
int mgd_step_lie(struct mgd_machine *m, int device, uint64_t seed);
/* From now on steps are recorded wrongly: times, and, where a plan is followed, operators that are not seen
 * or are none. 0: as they are. */
int mgd_step_disturb(struct mgd_machine *m, uint64_t seed);

/* Off: plans say what leaves, and nothing comes back before it is needed. */
int mgd_step_fetch_ahead(struct mgd_machine *m, bool on);

#ifdef __cplusplus
}
#endif
#endif
