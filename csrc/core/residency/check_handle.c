/* check_handle.c: the invariants that handle.h and internal_handle.h state.
 *
 * Each function verifies the invariants of one struct, in the words of its comment; it reads and never repairs. Every
 * sum is counted again, over all open handles and over the closed ones that are still moving, so the cost is bounded
 * by the number of handles.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* The sums over all handles, with which the fields of the machine must agree. */
struct tally {
  int64_t on_host, spare_bytes, departing[MGD_MAX_DEVICES];
  int32_t spares, guests[MGD_MAX_DEVICES], departures[MGD_MAX_DEVICES];
  mgd_wide waiting, fresh[2], ordered[MGD_MAX_DEVICES], last[MGD_MAX_DEVICES], moving[MGD_MAX_DEVICES],
      guest[MGD_MAX_DEVICES];
};

static bool is_away(const struct mgd_machine *m, const struct mgd_handle *h) {
  bool is_there = mgd_state_knows_device_locked(m, h->away) && h->away != h->home;
  return is_there && (h->memory != NULL) == (h->away == MGD_HOST) && h->on_host == mgd_handle_fills_host(h);
}

static bool is_here(const struct mgd_handle *h) { return h->away == -1 && h->on_host == mgd_handle_fills_host(h); }

/* Whether the other fields agree with the state. */
static bool is_state_sound(const struct mgd_machine *m, const struct mgd_handle *h) {
  switch (h->state) {
    case MGD_RESIDENT:
    case MGD_ARRIVING:
      return is_here(h);
    case MGD_SPILLING:
      return (h->away == -1 ||
              (h->away != MGD_HOST && h->away != h->home && mgd_state_knows_device_locked(m, h->away) && !h->memory)) &&
          (!mgd_handle_fills_host(h) || h->on_host);
    case MGD_SPILLED:
      return is_away(m, h);
    case MGD_RESTORING:
      return is_away(m, h) || is_here(h);
    default:
      return false;
  }
}

static bool is_use_sound(const struct mgd_handle *h) {
  uint32_t in_use = __atomic_load_n(&h->in_use, __ATOMIC_RELAXED);
  return (h->closed || in_use >= MGD_ALIVE) && (!mgd_residency_is_moving(h) || (in_use & (MGD_ALIVE - 1)) > 0);
}

/* A handle has a place in the order of its home if and only if it may leave. */
static bool is_position_sound(const struct mgd_machine *m, const struct mgd_handle *h) {
  const struct mgd_storages *s = &m->devices[h->home].storages;
  if (h->closed || !mgd_residency_is_victim(h)) {
    return h->position == -1;
  }
  return h->position >= 0 && h->position < s->ordered + s->parked && s->order[h->position].handle == h;
}

static bool are_pins_sound(const struct mgd_handle *h) {
  int32_t pins = 0;
  bool sound = true;
  for (int kind = 0; kind < MGD_PIN_KINDS; kind++) {
    sound = sound && h->pins_by[kind] >= 0;
    pins += h->pins_by[kind];
  }
  return sound && h->pins == pins;
}

static bool is_handle_sound(const struct mgd_machine *m, const struct mgd_handle *h) {
  bool placed = h->home > MGD_HOST && mgd_state_knows_device_locked(m, h->home) && h->bytes >= 0 && are_pins_sound(h) &&
      !h->counted && (h->memory || !h->mapped);
  return placed && is_state_sound(m, h) && is_use_sound(h) && is_position_sound(m, h);
}

static void count_open(const struct mgd_machine *m, struct tally *t, const struct mgd_handle *h) {
  const int64_t waits = h->state == MGD_SPILLED && h->away == MGD_HOST && !h->mapped ? h->bytes : 0;
  t->waiting += waits;
  t->fresh[h->left % 2] += m->host.growth.calls - h->left < 2 ? waits : 0;
  bool is_spare = mgd_residency_is_home(h) && mgd_handle_fills_host(h);
  t->spares += is_spare;
  t->spare_bytes += is_spare ? h->bytes : 0;
  t->ordered[h->home] += mgd_residency_is_victim(h) ? h->bytes : 0;
  t->last[h->home] += mgd_residency_is_victim(h) && mgd_handle_leaves_last(h) ? h->bytes : 0;
  t->moving[h->home] += h->state == MGD_SPILLING || (h->state == MGD_RESTORING && h->pins == 0) ? h->bytes : 0;
  if (mgd_residency_is_guest(h)) {
    t->guests[h->away]++;
    t->guest[h->away] += h->bytes;
  }
}

static void tally_handle(const struct mgd_machine *m, struct tally *t, const struct mgd_handle *h) {
  t->on_host += h->on_host ? h->bytes : 0;
  if (mgd_residency_is_moving(h) && h->away > MGD_HOST) {
    t->departures[h->away]++;
    t->departing[h->away] += h->bytes;
  } else if (h->state == MGD_SPILLING) {
    t->departures[h->home]++;
  }
  if (!h->closed) { count_open(m, t, h); }
}

/* Checks the heap by (key, stamp) and the entries behind it; is_position_sound() checks that each handle knows its
 * place. */
static bool is_order_sound(const struct mgd_storages *s, int32_t victims) {
  bool sound = s->ordered + s->parked == victims && s->parked >= 0 && s->sorted >= 0 && s->sorted <= s->ordered &&
      s->open <= s->size && s->age == s->age;
  for (int32_t i = 0; sound && i < victims; i++) {
    bool placed = i == 0 || i >= s->sorted || !mgd_order_before(&s->order[i], &s->order[mgd_order_parent(i)]);
    sound = placed && s->order[i].key == s->order[i].key;
  }
  return sound;
}

/* Checks all open storages of a device. A list with a cycle fails: a second visit has another predecessor. */
static bool are_open_sound(const struct mgd_machine *m, int id, struct tally *t) {
  const struct mgd_storages *s = &m->devices[id].storages;
  const struct mgd_handle *previous = NULL;
  int32_t open = 0, victims = 0;
  for (const struct mgd_handle *h = s->first; h; h = h->next) {
    if (h->previous != previous || h->home != id || h->closed || !is_handle_sound(m, h)) {
      return false;
    }
    tally_handle(m, t, h);
    open++;
    victims += mgd_residency_is_victim(h);
    previous = h;
  }
  return open == s->open && is_order_sound(s, victims);
}

/* Returns the length of a list if the links of each handle are right, else -1. */
static int32_t handles_in(const struct mgd_handle_list *list) {
  const struct mgd_handle *elder = NULL;
  int32_t length = 0;
  for (const struct mgd_handle *h = list->oldest; h; h = h->younger) {
    if (h->elder != elder) {
      return -1;
    }
    length++;
    elder = h;
  }
  return list->youngest == elder ? length : -1;
}

static bool are_orphans_sound(const struct mgd_machine *m, struct tally *t) {
  if (handles_in(&m->orphans) < 0) { return false; }
  for (const struct mgd_handle *h = m->orphans.oldest; h; h = h->younger) {
    if (!h->closed || !mgd_residency_is_moving(h) || h->next || h->previous || !is_handle_sound(m, h)) {
      return false;
    }
    tally_handle(m, t, h);
  }
  return true;
}

/* The list has as many spares as were counted, and each of them is one. */
static bool are_spares_sound(const struct mgd_host_room *host, const struct tally *t) {
  if (handles_in(&host->spares) != t->spares) {
    return false;
  }
  bool sound =
      host->used == t->on_host && host->peak >= host->used && host->spare_bytes == t->spare_bytes && host->limit >= 0;
  for (const struct mgd_handle *h = host->spares.oldest; h; h = h->younger) {
    sound = sound && !h->closed && mgd_residency_is_home(h) && mgd_handle_fills_host(h);
  }
  return sound;
}

/* Returns how many guests a device has, or -1 if its list is broken. */
static int32_t guests_of(const struct mgd_machine *m, int id) {
  int32_t length = handles_in(&m->devices[id].storages.guests);
  for (const struct mgd_handle *h = length < 0 ? NULL : m->devices[id].storages.guests.oldest; h; h = h->younger) {
    if (h->closed || !mgd_residency_is_guest(h) || h->away != id) {
      return -1;
    }
  }
  return length;
}

static bool are_sums_sound(const struct mgd_machine *m, const struct tally *t) {
  const struct mgd_growth *g = &m->host.growth;
  bool sound = g->waiting == t->waiting && g->fresh[0] == t->fresh[0] && g->fresh[1] == t->fresh[1];
  for (int id = 0; sound && id < m->count; id++) {
    const struct mgd_storages *s = &m->devices[id].storages;
    sound = guests_of(m, id) == t->guests[id] && s->guest_count == t->guests[id] && s->guest_bytes == t->guest[id];
    sound = sound && s->departures == t->departures[id] && s->departing == t->departing[id];
    sound = sound && s->ordered_bytes == t->ordered[id] && s->last_bytes == t->last[id];
    sound = sound && s->moving_bytes == t->moving[id];
  }
  return sound;
}

bool mgd_check_handle_all_locked(const struct mgd_machine *m) {
  struct tally t = {0};
  bool sound = m->victim && are_orphans_sound(m, &t);
  for (int id = 0; sound && id < m->count; id++) {
    sound = are_open_sound(m, id, &t);
  }
  return sound && are_spares_sound(&m->host, &t) && are_sums_sound(m, &t);
}
