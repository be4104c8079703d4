/* testing.h: what only managed's own tests and benchmarks call: copies that
 * vanish, wrong plans, a policy to compare with.
 *
 * As in core.h, each function is listed under the name of the file that defines
 * it. MANAGED_TEST_HOOKS is 0 in packages (tools/ninja_build.py sets it): then
 * the functions are not defined. It may change no struct, since only files that
 * name it are compiled twice. mgd_config.fail_allocation makes a machine's own
 * allocations fail.
 */
#ifndef MGD_TESTING_H
#define MGD_TESTING_H

#include "core/core.h"

#ifndef MANAGED_TEST_HOOKS
#define MANAGED_TEST_HOOKS 1
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- replica.c */
/* From now on each find dooms the replica that it found with probability 1/4. `seed` starts the random numbers; 0 stops
 * this. */
int mgd_replica_shake(struct mgd_machine *m, uint64_t seed);

/* ---- policy.c */
double mgd_policy_clean_first(void *unused,
                              const struct mgd_victim *victim); /* least recently used, all clean ones first */

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
