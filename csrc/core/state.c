/* state.c: the door to a machine's state, which every other file uses.
 *
 * Here is the one mutex, and what each transition begins and ends with. It knows what
 * a machine is made of and calls nobody: what debug builds check at the end
 * of a transition hangs on a pointer that machine.c sets. No device, byte or storage is decided about here.
 */
#include "internal_machine.h"

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
