/* user.c: which threads use storages, and how many uses each has.
 *
 * Whether other threads use storages of a device is answered from the threads' own counts, so the cost grows with the
 * number of threads, not of storages. The uses themselves are counted in handle.h, without a lock.
 */
#include "core/internal_machine.h"

int mgd_user_join(struct mgd_machine *m, struct mgd_user **user) {
  mgd_state_enter(m);
  struct mgd_user *u = m->users;
  while (u && u->taken) {
    u = u->next;
  }
  if (!u && (u = mgd_alloc_new(&m->alloc, 1, sizeof *u)) != NULL) {
    u->next = m->users;
    m->users = u;
  }
  if (u) {
    u->taken = true;
    *user = u;
  }
  return mgd_state_leave(m, u ? MGD_OK : MGD_E_NOMEM);
}

void mgd_user_leave(struct mgd_machine *m, struct mgd_user *user) {
  mgd_state_enter(m);
  user->taken = false;
  (void)mgd_state_leave(m, MGD_OK);
}

/* `ended` is read before `begun`, so a use that begins and ends meanwhile is counted as one too many, never as one too
 * few. */
struct mgd_uses mgd_user_count_locked(const struct mgd_machine *m, int device) {
  struct mgd_uses uses = {0, 0};
  for (const struct mgd_user *u = m->users; u; u = u->next) {
    uses.ended += __atomic_load_n(&u->ended[device], __ATOMIC_ACQUIRE);
    uses.begun += __atomic_load_n(&u->begun[device], __ATOMIC_RELAXED);
  }
  return uses;
}

int mgd_user_others(struct mgd_machine *m, int device, int64_t mine) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    const struct mgd_uses uses = mgd_user_count_locked(m, device);
    code = (int64_t)(uses.begun - uses.ended) + m->devices[device].storages.departures > mine ? MGD_E_BUSY : MGD_OK;
  }
  return mgd_state_leave(m, code);
}

void mgd_user_forget_locked(struct mgd_machine *m, const struct mgd_user *kept) {
  for (struct mgd_user *u = m->users; u; u = u->next) {
    u->taken = u == kept;
    for (int device = 0; device < MGD_MAX_DEVICES; device++) {
      u->ended[device] = u->begun[device];
    }
  }
}

void mgd_user_free(struct mgd_user *users) {
  for (struct mgd_user *next; users; users = next) {
    next = users->next;
    mgd_alloc_free(users);
  }
}
