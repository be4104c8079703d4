/* handle.c: the directory of storages: where each one's bytes are.
 *
 * It holds the one place each where a storage may change its state: opened,
 * closed, taken away, brought home. Who leaves is decided in evict.c; nothing is
 * copied, allocated for a storage or freed here: that is the caller's, who says when it is done.
 */
#include "arithmetic.h"
#include "internal_machine.h"

/* ---- lists, oldest first */

void mgd_handle_list_add(struct mgd_handle_list *list, struct mgd_handle *h) {
  h->elder = list->youngest;
  h->younger = NULL;
  *(list->youngest ? &list->youngest->younger : &list->oldest) = h;
  list->youngest = h;
}

void mgd_handle_list_remove(struct mgd_handle_list *list, struct mgd_handle *h) {
  *(h->elder ? &h->elder->younger : &list->oldest) = h->younger;
  *(h->younger ? &h->younger->elder : &list->youngest) = h->elder;
  h->younger = h->elder = NULL;
}

/* ---- where a handle is filed */

static struct mgd_storages *home_of(struct mgd_machine *m, const struct mgd_handle *h) { return &m->devices[h->home].storages; }

static void set_state(struct mgd_handle *h, enum mgd_residency state) { __atomic_store_n(&h->state, (uint32_t)state, __ATOMIC_SEQ_CST); }

void mgd_host_count_locked(struct mgd_machine *m, struct mgd_handle *h, bool on_host) {
  if (h->on_host == on_host) {
    return;
  }
  h->on_host = on_host;
  m->host.used += on_host ? h->bytes : -h->bytes;
  m->host.peak = mgd_max(m->host.peak, m->host.used);
}

static bool is_guest(const struct mgd_handle *h) { return h->state == MGD_SPILLED && h->away != MGD_HOST; }

void mgd_handle_settle_locked(struct mgd_machine *m, struct mgd_handle *h) {
  if (h->state == MGD_RESIDENT && h->pins == 0) {
    mgd_order_insert_locked(m, h);
  }
  if (h->state == MGD_RESIDENT && h->memory) {
    mgd_handle_list_add(&m->host.spares, h);
  }
  if (is_guest(h)) {
    mgd_handle_list_add(&m->devices[h->away].storages.guests, h);
  }
}

void mgd_handle_unsettle_locked(struct mgd_machine *m, struct mgd_handle *h) {
  if (h->position >= 0) {
    mgd_order_remove_locked(m, h);
  }
  if (h->state == MGD_RESIDENT && h->memory) {
    mgd_handle_list_remove(&m->host.spares, h);
  }
  if (is_guest(h)) {
    mgd_handle_list_remove(&m->devices[h->away].storages.guests, h);
  }
}

/* Hands out the copy on the host, which then counts no more. */
static void *take_memory(struct mgd_machine *m, struct mgd_handle *h) {
  void *memory = h->memory;
  h->memory = NULL;
  mgd_host_count_locked(m, h, false);
  return memory;
}

/* ---- birth and death */

/* The order of victims must never fail to take somebody, so it grows with the number of handles. */
static bool grow(struct mgd_machine *m, struct mgd_storages *s) {
  if (s->open < s->size) {
    return true;
  }
  int32_t size = s->size ? s->size * 2 : 64;
  struct mgd_handle **order = mgd_alloc_resize(&m->alloc, s->order, (size_t)size, sizeof *order);
  if (!order) {
    return false;
  }
  s->order = order;
  s->size = size;
  return true;
}

static int open_at(struct mgd_machine *m, struct mgd_handle *h, int home, int64_t bytes) {
  if (!mgd_device_known_locked(m, home)) {
    return MGD_E_NO_DEVICE;
  }
  struct mgd_storages *s = &m->devices[home].storages;
  if (!grow(m, s)) {
    return MGD_E_NOMEM;
  }
  *h = (struct mgd_handle){.in_use = MGD_ALIVE, .dirty = 1, .stamp = h->stamp, .bytes = bytes, .position = -1, .home = (int16_t)home, .away = -1};
  h->next = s->first;
  if (h->next) {
    h->next->previous = h;
  }
  s->first = h;
  s->open++;
  mgd_handle_settle_locked(m, h);
  return MGD_OK;
}

int mgd_handle_open(struct mgd_machine *m, struct mgd_handle *h, int home, int64_t bytes) {
  if (bytes < 0 || home == MGD_HOST) {
    return MGD_E_INVALID;
  }
  mgd_machine_enter(m);
  return mgd_machine_leave(m, open_at(m, h, home, bytes));
}

int mgd_handle_close(struct mgd_machine *m, struct mgd_handle *h, bool *moving, void **memory) {
  mgd_machine_enter(m);
  struct mgd_storages *s = home_of(m, h);
  *moving = h->state == MGD_SPILLING || h->state == MGD_RESTORING;
  *memory = NULL;
  mgd_handle_unsettle_locked(m, h);
  if (!*moving) {
    *memory = take_memory(m, h);
  }
  *(h->previous ? &h->previous->next : &s->first) = h->next;
  if (h->next) {
    h->next->previous = h->previous;
  }
  h->next = h->previous = NULL;
  s->open--;
  h->closed = true;
  return mgd_machine_leave(m, MGD_OK);
}

int mgd_handle_resize(struct mgd_machine *m, struct mgd_handle *h, int64_t bytes, void **memory) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (h->state == MGD_RESIDENT) {
    mgd_handle_unsettle_locked(m, h);
    *memory = take_memory(m, h);
    h->bytes = bytes;
    h->dirty = 1;
    mgd_handle_settle_locked(m, h);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

int mgd_handle_pin(struct mgd_machine *m, struct mgd_handle *h, bool pin) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (pin || h->pins > 0) {
    mgd_handle_unsettle_locked(m, h);
    h->pins += pin ? 1 : -1;
    mgd_handle_settle_locked(m, h);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

/* ---- home again */

/* Bytes of one operator's storages on each device, each counted once. */
struct demand {
  int64_t missing[MGD_MAX_DEVICES], there[MGD_MAX_DEVICES];
};

static int count_one(struct mgd_handle *h, struct demand *d) {
  if (h->state == MGD_SPILLING || h->state == MGD_RESTORING) {
    return MGD_E_WAIT; /* on its way in other hands */
  }
  int64_t *sum = h->state == MGD_SPILLED ? &d->missing[h->home] : &d->there[h->home];
  bool seen = h->passed == h;
  h->passed = h;
  return seen || mgd_add(*sum, h->bytes, sum) ? MGD_OK : MGD_E_OVERFLOW;
}

static int count_demand(struct mgd_handle *const *handles, size_t n, struct demand *d) {
  int code = MGD_OK;
  size_t counted = 0;
  while (counted < n && code == MGD_OK) {
    code = count_one(handles[counted++], d);
  }
  for (size_t i = 0; i < counted; i++) {
    handles[i]->passed = NULL;
  }
  return code;
}

/* What could come free on a device: what nobody uses, and what somebody does, the caller among them. */
static void count_leavable(const struct mgd_machine *m, int device, int64_t *idle, int64_t *busy) {
  *idle = m->devices[device].by_owner[MGD_REPLICA];
  *busy = 0;
  for (const struct mgd_handle *h = m->devices[device].storages.first; h; h = h->next) {
    if (h->pins == 0 && h->state != MGD_SPILLED) {
      *(h->state == MGD_RESIDENT && __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) == MGD_ALIVE ? idle : busy) += h->bytes;
    }
  }
  for (const struct mgd_handle *h = m->devices[device].storages.guests.oldest; h; h = h->younger) {
    *idle += h->bytes;
  }
}

static int check_room(const struct mgd_machine *m, int device, int64_t missing, int64_t mine, int64_t room) {
  if (missing <= room) {
    return MGD_OK;
  }
  int64_t idle, busy;
  count_leavable(m, device, &idle, &busy);
  if (missing - room <= idle) {
    return MGD_OK;
  }
  return missing - room - idle <= busy - mine ? MGD_E_BUSY : MGD_E_NO_ROOM;
}

static void plan_restore(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a) {
  mgd_handle_unsettle_locked(m, h);
  set_state(h, MGD_RESTORING);
  *a = (struct mgd_action){.kind = MGD_DO_RESTORE, .from = h->away, .to = h->home, .bytes = h->bytes, .handle = h, .memory = h->memory};
}

static int acquire(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room, struct mgd_action *actions, size_t *n_actions,
                   int *device) {
  struct demand demand = {0};
  const int64_t *missing = demand.missing;
  int code = count_demand(handles, n, &demand);
  size_t made = 0;
  for (int d = 0; d < m->count && code == MGD_OK; d++) {
    code = check_room(m, d, missing[d], demand.there[d], room[d]);
    *device = d;
    if (missing[d] > room[d]) {
      actions[made++] = (struct mgd_action){.kind = MGD_DO_MAKE_ROOM, .from = d, .to = -1, .bytes = missing[d] - room[d]};
    }
  }
  for (size_t i = 0; i < n && code == MGD_OK; i++) {
    if (handles[i]->state == MGD_SPILLED) {
      plan_restore(m, handles[i], &actions[made++]);
    }
  }
  *n_actions = made;
  return code;
}

int mgd_acquire_begin(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room, struct mgd_action *actions, size_t *n_actions,
                      int *device) {
  if (*n_actions < n + MGD_MAX_DEVICES) {
    return MGD_E_INVALID;
  }
  mgd_machine_enter(m);
  return mgd_machine_leave(m, acquire(m, handles, n, room, actions, n_actions, device));
}

/* The host's copy stays as a spare while there is room for it: then leaving again costs nothing. */
static void *end_restore(struct mgd_machine *m, struct mgd_handle *h, bool done) {
  void *left = NULL;
  if (done) {
    h->away = -1;
    if (h->memory && m->host.used > m->host.limit) {
      left = take_memory(m, h);
    }
    h->dirty = h->memory == NULL;
  }
  set_state(h, done ? MGD_RESIDENT : MGD_SPILLED);
  return left;
}

int mgd_restore_end(struct mgd_machine *m, struct mgd_handle *h, bool done, void **memory) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (h->state == MGD_RESTORING) {
    *memory = end_restore(m, h, done);
    if (!h->closed) {
      mgd_handle_settle_locked(m, h);
    } else if (!*memory) {
      *memory = take_memory(m, h);
    }
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

/* ---- gone */

static void *end_spill(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory) {
  void *left = NULL;
  if (to < 0) {
    mgd_host_count_locked(m, h, h->memory != NULL);
    set_state(h, h->away < 0 ? MGD_RESIDENT : MGD_SPILLED);
    return NULL;
  }
  if (memory != h->memory) {
    left = h->memory;
  }
  h->memory = memory;
  h->away = (int16_t)to;
  mgd_host_count_locked(m, h, to == MGD_HOST);
  set_state(h, MGD_SPILLED);
  return left;
}

int mgd_spill_end(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory, void **memory_left) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (h->state == MGD_SPILLING && (to < 0 || (to != h->home && mgd_device_known_locked(m, to)))) {
    *memory_left = end_spill(m, h, to, memory);
    if (!h->closed) {
      mgd_handle_settle_locked(m, h);
    } else if (!*memory_left) {
      *memory_left = take_memory(m, h);
    }
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

/* ---- what there is */

bool mgd_handle_busy_locked(const struct mgd_machine *m, int above) {
  for (int id = above + 1; id < m->count; id++) {
    if (m->devices[id].storages.open || m->devices[id].storages.guests.oldest) {
      return true;
    }
  }
  return false;
}

int mgd_host_limit(struct mgd_machine *m, int64_t bytes) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_machine_enter(m);
  m->host.limit = bytes;
  return mgd_machine_leave(m, MGD_OK);
}

int mgd_host_usage(struct mgd_machine *m, int64_t *used, int64_t *limit, int64_t *peak) {
  mgd_machine_enter(m);
  *used = m->host.used;
  *limit = m->host.limit;
  *peak = m->host.peak;
  return mgd_machine_leave(m, MGD_OK);
}

static int64_t *kind_of(struct mgd_residency_usage *u, const struct mgd_handle *h) {
  switch (h->state) {
    case MGD_RESIDENT:
      return h->pins ? &u->pinned : __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) == MGD_ALIVE ? &u->idle : &u->in_use;
    case MGD_SPILLED:
      return &u->spilled;
    default:
      return &u->moving;
  }
}

int mgd_residency_read(struct mgd_machine *m, int device, struct mgd_residency_usage *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_machine_enter(m);
  if (mgd_device_known_locked(m, device)) {
    *out = (struct mgd_residency_usage){.storages = m->devices[device].storages.open};
    for (const struct mgd_handle *h = m->devices[device].storages.first; h; h = h->next) {
      *kind_of(out, h) += h->bytes;
    }
    for (const struct mgd_handle *h = m->devices[device].storages.guests.oldest; h; h = h->younger) {
      out->guests += h->bytes;
    }
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}
