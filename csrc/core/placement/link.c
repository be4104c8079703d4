/* link.c: the cost of a copy from one device to another.
 *
 * A link is directed and costs latency + bytes / bandwidth. Costs are
 * predictions used to compare places; the time of simulated copies is kept by
 * clock.c. Nothing here measures.
 *
 * Defaults are assumptions, for machines without a description: 12 bytes/ns is what pinned copies reach over
 * PCIe 3.0 x16 (of 15.75 nominal), 25 bytes/ns is one direction of one NVLink 2 brick or of PCIe 4.0 x16 in practice,
 * and 10 us is the lower end of what StarPU's calibrated machines report for a one-byte copy
 * (tools/perfmodels/sampling: 10 to 24 us).
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

static const struct mgd_link host_link = {.latency_ns = 10000, .bytes_per_ns = 12.0};
static const struct mgd_link peer_link = {.latency_ns = 10000, .bytes_per_ns = 25.0};
static const struct mgd_link self_link = {.latency_ns = 0, .bytes_per_ns = 0.0};

void mgd_link_reset_locked(struct mgd_machine *m, int id) {
  for (int other = 0; other < MGD_MAX_DEVICES; other++) {
    struct mgd_link link = id == MGD_HOST || other == MGD_HOST ? host_link : peer_link;
    m->links[id][other] = m->links[other][id] = link;
  }
  m->links[id][id] = self_link;
}

double mgd_link_estimate(const struct mgd_link *link, int64_t copies, int64_t bytes) {
  return (double)copies * (double)link->latency_ns + mgd_duration((double)bytes, link->bytes_per_ns);
}

int mgd_link_set(struct mgd_machine *m, int from, int to, struct mgd_link link) {
  if (link.latency_ns < 0 || !mgd_is_amount(link.bytes_per_ns) || from == to) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, from) && mgd_state_knows_device_locked(m, to)) {
    m->links[from][to] = link;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_link_share(struct mgd_machine *m, mgd_mask devices, double bytes_per_ns) {
  if (!mgd_is_amount(bytes_per_ns) || bytes_per_ns <= 0 || devices == 0) { return MGD_E_INVALID; }
  int code = MGD_E_NOMEM;
  mgd_state_enter(m);
  struct mgd_buses *b = &m->buses;
  if (b->count < MGD_MAX_DEVICES) {
    b->devices[b->count] = devices;
    b->bytes_per_ns[b->count++] = bytes_per_ns;
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_link_get(struct mgd_machine *m, int from, int to, struct mgd_link *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, from) && mgd_state_knows_device_locked(m, to)) {
    *out = m->links[from][to];
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
