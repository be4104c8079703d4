/* device.c: which devices there are, how large and how fast they are.
 *
 * Ids are positions: 0 is the host, accelerators follow in the order in which they were added. No device is removed, so
 * an id never changes its meaning. The bytes of a device are counted in ledger.c.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#include <string.h>

/* Returns the id of the device with this name, or -1. */
static int find_name(const struct mgd_machine *m, const char *name) {
  for (int id = 0; id < m->count; id++) {
    if (strcmp(m->devices[id].name, name) == 0) {
      return id;
    }
  }
  return -1;
}

static bool is_good_name(const char *name) { return name && name[0] != '\0' && memchr(name, '\0', MGD_NAME_BYTES); }

static int add_device(struct mgd_machine *m, const char *name, int64_t capacity, int *id) {
  if (find_name(m, name) >= 0) {
    return MGD_E_EXISTS;
  }
  if (m->count == MGD_MAX_DEVICES) {
    return MGD_E_FULL;
  }
  struct mgd_device *d = &m->devices[m->count];
  *d = (struct mgd_device){
      .capacity = capacity, .spills = true, .speed = 1.0, .first_waiter = -1, .last_waiter = -1, .kept = {-1, -1}};
  memcpy(d->name, name, strlen(name) + 1);
  mgd_link_reset_locked(m, m->count);
  *id = m->count++;
  return MGD_OK;
}

int mgd_device_add(struct mgd_machine *m, const char *name, int64_t capacity, int *id) {
  if (!is_good_name(name) || capacity < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, add_device(m, name, capacity, id));
}

int mgd_device_count(struct mgd_machine *m) {
  mgd_state_enter(m);
  return mgd_state_leave(m, m->count);
}

int mgd_device_name(struct mgd_machine *m, int id, char out[32]) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, id)) {
    memcpy(out, m->devices[id].name, MGD_NAME_BYTES);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_device_set_capacity(struct mgd_machine *m, int id, int64_t capacity) {
  if (capacity < 0) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, id)) {
    m->devices[id].capacity = capacity;
    mgd_replica_shrink_locked(m, id);
    mgd_step_forget_locked(m, id);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_device_set_spills(struct mgd_machine *m, int id, bool spills) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, id)) {
    m->devices[id].spills = spills;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_device_set_speed(struct mgd_machine *m, int id, double speed) {
  if (!mgd_is_amount(speed) || speed <= 0.0) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, id)) {
    m->devices[id].speed = speed;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
