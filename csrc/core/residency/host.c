/* host.c: how much of the host's memory copies of storages take, and how much they may take.
 *
 * This file only counts; evict.c decides which copies are given up when the limit is reached.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host) {
  if (h->on_host == on_host) {
    return;
  }
  h->on_host = on_host;
  m->host.used += on_host ? h->bytes : -h->bytes;
  m->host.peak = mgd_max(m->host.peak, m->host.used);
}

int64_t mgd_host_room_locked(const struct mgd_machine *m) {
  return m->host.limit - (m->host.used - m->host.spare_bytes);
}

int mgd_host_set_limit(struct mgd_machine *m, int64_t bytes) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  m->host.limit = bytes;
  return mgd_state_leave(m, MGD_OK);
}

int mgd_host_usage(struct mgd_machine *m, int64_t *used, int64_t *limit, int64_t *peak) {
  mgd_state_enter(m);
  *used = m->host.used;
  *limit = m->host.limit;
  *peak = m->host.peak;
  return mgd_state_leave(m, MGD_OK);
}
