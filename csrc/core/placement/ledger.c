/* ledger.c: bytes per device by owner.
 *
 * The ledger records; it refuses nothing for lack of room, because the bytes exist when they are reported. RESERVED is
 * written by admission alone and REPLICA by the directory of replicas: a caller that could change them would break
 * granted reservations.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#include <string.h>

int64_t mgd_ledger_used_locked(const struct mgd_machine *m, int id) {
  int64_t used = 0;
  for (int owner = 0; owner < MGD_OWNERS; owner++) {
    used += m->devices[id].by_owner[owner]; /* the sum is an int64_t by invariant */
  }
  return used;
}

int64_t mgd_ledger_limit_locked(const struct mgd_machine *m, int id, double reserved) {
  int64_t capacity = m->devices[id].capacity;
  /* reserved < 1, so that the product stays below 2**63 even for INT64_MAX. */
  return capacity - (int64_t)(reserved * (double)capacity);
}

int64_t mgd_ledger_room_locked(const struct mgd_machine *m, int id, double reserved) {
  int64_t limit = mgd_ledger_limit_locked(m, id, reserved);
  int64_t used = mgd_ledger_used_locked(m, id) - m->devices[id].by_owner[MGD_REPLICA];
  return mgd_max(limit - used, 0);
}

void mgd_ledger_move_locked(struct mgd_machine *m, int id, enum mgd_owner owner, int64_t bytes) {
  struct mgd_device *d = &m->devices[id];
  d->by_owner[owner] += bytes;
  d->peak = mgd_max(d->peak, mgd_ledger_used_locked(m, id));
}

static int observe(struct mgd_machine *m, int id, int64_t allocated, int64_t foreign) {
  if (!mgd_state_knows_device_locked(m, id)) {
    return MGD_E_NO_DEVICE;
  }
  struct mgd_device *d = &m->devices[id];
  int64_t managed = mgd_max(allocated - d->by_owner[MGD_REPLICA], 0);
  int64_t used = mgd_ledger_used_locked(m, id) - d->by_owner[MGD_MANAGED] - d->by_owner[MGD_FOREIGN];
  if (!mgd_add(used, managed, &used) || !mgd_add(used, foreign, &used)) {
    return MGD_E_OVERFLOW;
  }
  d->by_owner[MGD_MANAGED] = managed;
  d->by_owner[MGD_FOREIGN] = foreign;
  d->peak = mgd_max(d->peak, used);
  return MGD_OK;
}

int mgd_ledger_observe(struct mgd_machine *m, int device, int64_t allocated, int64_t foreign) {
  if (allocated < 0 || foreign < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, observe(m, device, allocated, foreign));
}

int mgd_ledger_usage(struct mgd_machine *m, int device, struct mgd_usage *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    const struct mgd_device *d = &m->devices[device];
    out->capacity = d->capacity;
    out->spills = d->spills;
    memcpy(out->by_owner, d->by_owner, sizeof out->by_owner);
    out->used = mgd_ledger_used_locked(m, device);
    out->free = mgd_ledger_room_locked(m, device, 0.0);
    out->peak = d->peak;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_ledger_reset_peak(struct mgd_machine *m, int device) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    m->devices[device].peak = mgd_ledger_used_locked(m, device);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
