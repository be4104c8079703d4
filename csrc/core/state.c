/* state.c: the mutex of a machine.
 *
 * A public function that reads or changes the state calls mgd_state_enter() first and mgd_state_leave() last. In builds
 * with MGD_DEBUG=2 the latter checks all invariants (`m->check`, set by machine.c). This file also handles fork().
 */
#include "core/internal_machine.h"

void mgd_state_enter(struct mgd_machine *m) { (void)pthread_mutex_lock(&m->mutex); }

int mgd_state_leave(struct mgd_machine *m, int code) {
#if MGD_DEBUG >= 2
  if (m->check(m) != MGD_OK) {
    code = MGD_E_BROKEN;
  }
#endif
  (void)pthread_mutex_unlock(&m->mutex);
  return code;
}

void mgd_state_before_fork(struct mgd_machine *m) { mgd_state_enter(m); }

void mgd_state_after_fork(struct mgd_machine *m) { (void)pthread_mutex_unlock(&m->mutex); }

bool mgd_state_knows_device_locked(const struct mgd_machine *m, int id) { return id >= 0 && id < m->count; }
