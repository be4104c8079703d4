/* clock_wiring.c: the speeds of a clock's devices, and how they are connected.
 *
 * Numbers are checked and kept here; no virtual time passes. clock.c and clock_flow.c compute how long operations take.
 */
#include "clock/internal_clock.h"

static bool is_link(struct mgd_link l) { return l.latency_ns >= 0 && mgd_is_amount(l.bytes_per_ns); }

int mgd_clock_wiring_set_speed(struct mgd_clock *c, int device, struct mgd_speed speed) {
  if (!mgd_clock_is_place(c, device)) {
    return MGD_E_NO_DEVICE;
  }
  if (!mgd_clock_is_speed(&speed)) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  mgd_clock_place_of(c, device)->speed = speed;
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_wiring_check_ends(const struct mgd_clock *c, int from, int to) {
  if (!mgd_clock_is_place(c, from) || !mgd_clock_is_place(c, to)) {
    return MGD_E_NO_DEVICE;
  }
  return from == to ? MGD_E_INVALID : MGD_OK;
}

int mgd_clock_wiring_set_link(struct mgd_clock *c, int from, int to, struct mgd_link link) {
  const int code = mgd_clock_wiring_check_ends(c, from, to);
  if (code != MGD_OK || !is_link(link)) {
    return code != MGD_OK ? code : MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  mgd_clock_link_of(c, from, to)->cost = link;
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_wiring_get_link(struct mgd_clock *c, int from, int to, struct mgd_link *out) {
  const int code = mgd_clock_wiring_check_ends(c, from, to);
  if (code == MGD_OK) {
    mgd_clock_enter(c);
    *out = mgd_clock_link_of(c, from, to)->cost;
    return mgd_clock_leave(c, MGD_OK);
  }
  return code;
}

int mgd_clock_wiring_set_bus(struct mgd_clock *c, int bus, double bytes_per_ns) {
  if (bus < 0 || bus >= MGD_MAX_BUSES || !mgd_is_amount(bytes_per_ns)) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  c->buses[bus] = bytes_per_ns;
  return mgd_clock_leave(c, MGD_OK);
}

int mgd_clock_wiring_join_bus(struct mgd_clock *c, int from, int to, int bus) {
  const int code = mgd_clock_wiring_check_ends(c, from, to);
  if (code != MGD_OK || bus < 0 || bus >= MGD_MAX_BUSES) {
    return code != MGD_OK ? code : MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  mgd_clock_link_of(c, from, to)->buses |= (uint64_t)1 << bus;
  return mgd_clock_leave(c, MGD_OK);
}
