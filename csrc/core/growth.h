/* growth.h: whether what waits on the host grows step by step, for a warning.
 */
#ifndef MGD_GROWTH_H
#define MGD_GROWTH_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MGD_GROWTH_STEPS 50 /* steps in a row in which it must grow before a warning is due */

/* What ended. A step of a program is what ends with the last of these that the program has: calls of a module alone
 * are steps only as long as no backward pass follows them, and backward passes as long as no optimizer steps. */
enum mgd_growth_end { MGD_GROWTH_CALL, MGD_GROWTH_BACKWARD, MGD_GROWTH_OPTIMIZER, MGD_GROWTH_ENDS };

struct mgd_growth_found {
  int64_t bytes_a_step, waiting; /* waiting: bytes of storages that are on the host and not at home */
  uint32_t site;                 /* the line that made the oldest of them, as far as that was noted; 0: unknown */
};

/* Ends a step. True, once for each machine: what waits has grown in MGD_GROWTH_STEPS steps in a row, and *out is
 * written. For calls of a module, three more conditions hold, so that a long forward pass and a cache do not count: the
 * steps are more than twice as many as ever grew before a backward pass, in each of them bytes came to the host that
 * stayed there during the next one, and a quarter of the host's limit is used. */
bool mgd_growth_end_step(struct mgd_machine *m, enum mgd_growth_end end, struct mgd_growth_found *out);

/* Whether new storages are to get their site (mgd_handle.site), because growth has begun. It takes no lock. */
bool mgd_growth_notes(const struct mgd_machine *m);

#ifdef __cplusplus
}
#endif
#endif
