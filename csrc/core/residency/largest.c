/* largest.c: which storages of a device are the largest.
 *
 * This file only reads, and keeps nothing between two calls.
 */
#include "core/residency/largest.h"

#include "core/internal_machine.h"

static int first_pin(const struct mgd_handle *h) {
  int kind = 0;
  while (kind < MGD_PIN_KINDS && h->pins_by[kind] == 0) {
    kind++;
  }
  return kind;
}

static struct mgd_large about(const struct mgd_handle *h, mgd_large_identify_fn identify) {
  struct mgd_large l = {.bytes = h->bytes,
                        .away = h->away,
                        .pin = first_pin(h),
                        .in_use = __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) != MGD_ALIVE};
  identify(h, &l.object, &l.number);
  return l;
}

int mgd_largest_read(struct mgd_machine *m, int device, mgd_large_identify_fn identify, struct mgd_large *out,
                     size_t *n) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    const size_t room = *n;
    size_t found = 0;
    for (const struct mgd_handle *h = m->devices[device].storages.first; h; h = h->next) {
      if (room == 0 || (found == room && h->bytes <= out[found - 1].bytes)) {
        continue;
      }
      size_t at = found < room ? found++ : found - 1;
      for (; at > 0 && out[at - 1].bytes < h->bytes; at--) {
        out[at] = out[at - 1];
      }
      out[at] = about(h, identify);
    }
    *n = found;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
