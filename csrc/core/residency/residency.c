/* residency.c: the lists and sums that a handle is filed in, and their update when it moves.
 *
 * Each transition takes a storage out of the lists and sums that its fields name, changes the fields, and files the
 * storage again. So each sum is right after each transition, and no query has to look at all storages. The transitions
 * are in handle.c, evict.c and restore.c; the order in which storages leave is in order.c.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* ---- lists, oldest first */

void mgd_residency_list_add(struct mgd_handle_list *list, struct mgd_handle *h) {
  h->elder = list->youngest;
  h->younger = NULL;
  *(list->youngest ? &list->youngest->younger : &list->oldest) = h;
  list->youngest = h;
}

void mgd_residency_list_remove(struct mgd_handle_list *list, struct mgd_handle *h) {
  *(h->elder ? &h->elder->younger : &list->oldest) = h->younger;
  *(h->younger ? &h->younger->elder : &list->youngest) = h->elder;
  h->younger = h->elder = NULL;
}

/* ---- predicates of a handle */

bool mgd_residency_is_guest(const struct mgd_handle *h) { return h->state == MGD_SPILLED && h->away != MGD_HOST; }

bool mgd_residency_is_moving(const struct mgd_handle *h) {
  return h->state == MGD_SPILLING || h->state == MGD_RESTORING;
}

bool mgd_residency_is_home(const struct mgd_handle *h) { return h->state == MGD_RESIDENT || h->state == MGD_ARRIVING; }

bool mgd_residency_is_victim(const struct mgd_handle *h) {
  return mgd_residency_is_home(h) && h->pins == 0 && h->bytes > 0; /* an empty storage frees no room */
}

bool mgd_residency_is_refused_locked(const struct mgd_machine *m, const struct mgd_handle *h) {
  return !m->devices[h->home].spills || (m->may_leave && !m->may_leave(h));
}

bool mgd_residency_must_stay_locked(const struct mgd_machine *m, const struct mgd_handle *h) {
  return __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) != MGD_ALIVE || mgd_residency_is_refused_locked(m, h);
}

/* Whether the end of the handle's move may free room at home: bytes that leave do, and bytes that come home may leave
 * again, unless they are pinned. */
static bool makes_hope(const struct mgd_handle *h) {
  return h->state == MGD_SPILLING || (h->state == MGD_RESTORING && h->pins == 0);
}

/* ---- filing */

static void count_guest(struct mgd_storages *there, const struct mgd_handle *h, int by) {
  there->guest_count += by;
  there->guest_bytes += by * (mgd_wide)h->bytes;
}

void mgd_residency_file_locked(struct mgd_machine *m, struct mgd_handle *h) {
  if (mgd_residency_is_victim(h)) {
    mgd_order_insert_locked(m, h);
  }
  if (mgd_residency_is_home(h) && mgd_handle_fills_host(h)) {
    mgd_residency_list_add(&m->host.spares, h);
    m->host.spare_bytes += h->bytes;
  }
  if (mgd_residency_is_guest(h)) {
    mgd_residency_list_add(&m->devices[h->away].storages.guests, h);
    count_guest(&m->devices[h->away].storages, h, 1);
  }
  if (makes_hope(h)) {
    m->devices[h->home].storages.moving_bytes += h->bytes;
  }
  mgd_growth_count_locked(m, h, 1);
}

void mgd_residency_unfile_locked(struct mgd_machine *m, struct mgd_handle *h) {
  if (h->position >= 0) {
    mgd_order_remove_locked(m, h);
  }
  if (mgd_residency_is_home(h) && mgd_handle_fills_host(h)) {
    mgd_residency_list_remove(&m->host.spares, h);
    m->host.spare_bytes -= h->bytes;
  }
  if (mgd_residency_is_guest(h)) {
    mgd_residency_list_remove(&m->devices[h->away].storages.guests, h);
    count_guest(&m->devices[h->away].storages, h, -1);
  }
  if (makes_hope(h)) {
    m->devices[h->home].storages.moving_bytes -= h->bytes;
  }
  mgd_growth_count_locked(m, h, -1);
}

static void count_move(struct mgd_machine *m, const struct mgd_handle *h, int by) {
  bool is_guest = h->away > MGD_HOST;
  if (is_guest || h->state == MGD_SPILLING) {
    struct mgd_storages *from = &m->devices[is_guest ? h->away : h->home].storages;
    from->departures += by;
    from->departing += is_guest ? by * h->bytes : 0;
  }
}

void *mgd_residency_take_memory_locked(struct mgd_machine *m, struct mgd_handle *h) {
  void *memory = h->memory;
  h->memory = NULL;
  h->mapped = false;
  mgd_host_count_locked(m, h, false);
  return memory;
}

void mgd_residency_arrive_locked(struct mgd_machine *m, struct mgd_handle *h, void **memory) {
  if (!h->closed) {
    mgd_residency_file_locked(m, h);
    return;
  }
  mgd_residency_list_remove(&m->orphans, h);
  void *own = mgd_residency_take_memory_locked(m, h);
  *memory = own ? own : *memory;
}

void mgd_residency_begin_move_locked(struct mgd_machine *m, struct mgd_handle *h) {
  count_move(m, h, 1);
  mgd_residency_file_locked(m, h);
}

/* A closed handle was taken out of its lists and sums when it was closed. */
void mgd_residency_end_move_locked(struct mgd_machine *m, struct mgd_handle *h) {
  count_move(m, h, -1);
  if (!h->closed) {
    mgd_residency_unfile_locked(m, h);
  }
}

/* ---- usage */

/* A storage that is pinned for several reasons counts under the first of the list (MGD_PINS). */
static int64_t *pinned_as(struct mgd_residency_usage *u, const struct mgd_handle *h) {
  int kind = 0;
  while (kind + 1 < MGD_PIN_KINDS && h->pins_by[kind] == 0) {
    kind++;
  }
  return &u->pinned[kind];
}

static int64_t *kind_of(const struct mgd_machine *m, struct mgd_residency_usage *u, const struct mgd_handle *h) {
  switch (h->state) {
    case MGD_RESIDENT:
    case MGD_ARRIVING:
      if (h->pins) {
        return pinned_as(u, h);
      }
      if (__atomic_load_n(&h->in_use, __ATOMIC_RELAXED) != MGD_ALIVE) {
        return &u->in_use;
      }
      return mgd_residency_is_refused_locked(m, h) ? &u->held : &u->idle;
    case MGD_SPILLED:
      return &u->spilled;
    default:
      return &u->moving;
  }
}

int mgd_residency_read(struct mgd_machine *m, int device, struct mgd_residency_usage *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    const struct mgd_storages *s = &m->devices[device].storages;
    mgd_wide guests = s->guest_bytes + s->departing;
    *out =
        (struct mgd_residency_usage){.storages = s->open, .guests = guests < INT64_MAX ? (int64_t)guests : INT64_MAX};
    for (const struct mgd_handle *h = s->first; h; h = h->next) {
      int64_t *kind = kind_of(m, out, h);
      *kind = mgd_about_sum(*kind, h->bytes);
      out->on_host = mgd_about_sum(out->on_host, h->on_host ? h->bytes : 0);
    }
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
