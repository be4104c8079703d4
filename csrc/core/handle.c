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

static bool is_moving(const struct mgd_handle *h) { return h->state == MGD_SPILLING || h->state == MGD_RESTORING; }

void mgd_handle_settle_locked(struct mgd_machine *m, struct mgd_handle *h) {
  if (h->state == MGD_RESIDENT && h->pins == 0 && h->bytes > 0) { /* an empty one makes no room */
    mgd_order_insert_locked(m, h);
  }
  if (h->state == MGD_RESIDENT && h->memory) {
    mgd_handle_list_add(&m->host.spares, h);
    m->host.spare_bytes += h->bytes;
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
    m->host.spare_bytes -= h->bytes;
  }
  if (is_guest(h)) {
    mgd_handle_list_remove(&m->devices[h->away].storages.guests, h);
  }
}

void mgd_handle_count_move_locked(struct mgd_machine *m, const struct mgd_handle *h, int by) {
  m->moves.count += by;
  if (h->away > MGD_HOST) {
    m->devices[h->away].storages.departures += by;
    m->devices[h->away].storages.departing += by * h->bytes;
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
  *moving = is_moving(h);
  mgd_handle_unsettle_locked(m, h);
  if (*moving) {
    mgd_handle_list_add(&m->moves.orphans, h);
  }
  *memory = *moving ? NULL : take_memory(m, h);
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
    mgd_handle_write(h);
    mgd_handle_settle_locked(m, h);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

int mgd_handle_pin(struct mgd_machine *m, struct mgd_handle *h, enum mgd_pin kind, bool pin) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (pin || h->pins_by[kind] > 0) {
    mgd_handle_unsettle_locked(m, h);
    h->pins += pin ? 1 : -1;
    h->pins_by[kind] += pin ? 1 : -1;
    mgd_handle_settle_locked(m, h);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

void mgd_handle_forget_uses(struct mgd_machine *m) {
  mgd_machine_enter(m);
  for (int id = 1; id < m->count; id++) {
    for (struct mgd_handle *h = m->devices[id].storages.first; h; h = h->next) {
      if (!is_moving(h)) {
        __atomic_store_n(&h->in_use, MGD_ALIVE, __ATOMIC_SEQ_CST);
      }
    }
  }
  (void)mgd_machine_leave(m, MGD_OK);
}

/* ---- home again */

/* What is missing on each device for the handles to come home; marks them as asked, so that one that is named twice counts
 * once. WAIT: one of them is on its way in other hands. */
static int count_missing(struct mgd_handle *const *handles, size_t n, int64_t missing[MGD_MAX_DEVICES]) {
  int code = MGD_OK;
  for (size_t i = 0; i < n; i++) {
    struct mgd_handle *h = handles[i];
    if (is_moving(h)) {
      code = MGD_E_WAIT;
    }
    if (h->state == MGD_SPILLED && !h->asked) {
      missing[h->home] = mgd_about_sum(missing[h->home], h->bytes);
    }
    h->asked = true;
  }
  return code;
}

static bool is_idle(const struct mgd_handle *h) { return __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) == MGD_ALIVE; }

/* Whether `bytes` that nobody uses are on a device. It starts with what is oldest and stops when there are enough, so that it
 * looks at about as many as will leave. */
static bool has_idle(const struct mgd_machine *m, int device, int64_t bytes) {
  const struct mgd_storages *s = &m->devices[device].storages;
  int64_t idle = m->devices[device].by_owner[MGD_REPLICA];
  for (const struct mgd_handle *h = s->guests.oldest; h && idle < bytes; h = h->younger) {
    idle = is_idle(h) ? mgd_about_sum(idle, h->bytes) : idle;
  }
  for (int32_t i = 0; i < s->ordered && idle < bytes; i++) {
    idle = is_idle(s->order[i]) ? mgd_about_sum(idle, s->order[i]->bytes) : idle;
  }
  return idle >= bytes;
}

/* What may come free on a device sooner or later. Uses come and go meanwhile, so it asks for none. The caller's own are no hope:
 * it needs the room beside them. */
static int64_t count_leavable(const struct mgd_machine *m, int device) {
  const struct mgd_storages *s = &m->devices[device].storages;
  int64_t bytes = mgd_about_sum(m->devices[device].by_owner[MGD_REPLICA], s->departing);
  for (const struct mgd_handle *h = s->first; h; h = h->next) {
    bool may_leave = h->state == MGD_SPILLING || (h->state != MGD_SPILLED && h->pins == 0);
    bytes = may_leave && !h->asked ? mgd_about_sum(bytes, h->bytes) : bytes;
  }
  for (const struct mgd_handle *h = s->guests.oldest; h; h = h->younger) {
    bytes = h->asked ? bytes : mgd_about_sum(bytes, h->bytes);
  }
  return bytes;
}

static int check_room(const struct mgd_machine *m, int device, int64_t bytes) {
  return has_idle(m, device, bytes) ? MGD_OK : bytes <= count_leavable(m, device) ? MGD_E_BUSY
                                                                                  : MGD_E_NO_ROOM;
}

/* Plans the room that is missing, and names the device where there can be none. */
static int plan_room(struct mgd_machine *m, const int64_t *missing, const int64_t *room, struct mgd_action *actions, size_t *made, int *device) {
  for (int d = 1; d < m->count; d++) {
    int64_t bytes = missing[d] > 0 ? mgd_about_difference(missing[d], room[d]) : 0;
    if (bytes <= 0) {
      continue;
    }
    int code = check_room(m, d, bytes);
    if (code != MGD_OK) {
      *device = d;
      return code;
    }
    actions[(*made)++] = (struct mgd_action){.kind = MGD_DO_MAKE_ROOM, .from = d, .to = -1, .bytes = bytes};
  }
  return MGD_OK;
}

static void plan_restore(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a) {
  mgd_handle_unsettle_locked(m, h);
  set_state(h, MGD_RESTORING);
  mgd_handle_count_move_locked(m, h, 1);
  *a = (struct mgd_action){.kind = MGD_DO_RESTORE, .from = h->away, .to = h->home, .bytes = h->bytes, .handle = h, .memory = h->memory};
}

static int acquire(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room, struct mgd_action *actions, size_t *n_actions,
                   int *device) {
  int64_t missing[MGD_MAX_DEVICES] = {0};
  int code = count_missing(handles, n, missing);
  size_t made = 0;
  if (code == MGD_OK) {
    code = plan_room(m, missing, room, actions, &made, device);
  }
  for (size_t i = 0; i < n; i++) {
    handles[i]->asked = false;
    if (code == MGD_OK && handles[i]->state == MGD_SPILLED) {
      plan_restore(m, handles[i], &actions[made++]);
    }
  }
  if (code == MGD_OK) {
    *n_actions = made;
  }
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

/* Files it where it has come to; of an orphan nothing stays, its copy is handed out. */
static void arrive(struct mgd_machine *m, struct mgd_handle *h, void **memory) {
  if (!h->closed) {
    mgd_handle_settle_locked(m, h);
    return;
  }
  mgd_handle_list_remove(&m->moves.orphans, h);
  void *own = take_memory(m, h);
  *memory = own ? own : *memory;
}

/* The host's copy stays as a spare while there is room for it: then leaving again costs nothing. */
static void *end_restore(struct mgd_machine *m, struct mgd_handle *h, bool done) {
  void *left = NULL;
  if (done) {
    struct mgd_storages *there = &m->devices[h->away].storages;
    there->sent_on -= h->away != MGD_HOST && there->sent_on > 0;
    h->away = -1;
    left = m->host.used > m->host.limit ? take_memory(m, h) : NULL;
  }
  set_state(h, done ? MGD_RESIDENT : MGD_SPILLED);
  return left;
}

int mgd_restore_end(struct mgd_machine *m, struct mgd_handle *h, bool done, void **memory) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (h->state == MGD_RESTORING) {
    mgd_handle_count_move_locked(m, h, -1);
    *memory = end_restore(m, h, done);
    arrive(m, h, memory);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

/* ---- gone */

/* A copy in the host's memory is the one that the plan named, if it did; one elsewhere has none. */
static bool may_end_at(const struct mgd_machine *m, const struct mgd_handle *h, int to, const void *memory) {
  if (to == MGD_HOST) {
    return memory && (!h->memory || h->memory == memory);
  }
  return to < 0 || (!memory && to != h->home && mgd_device_known_locked(m, to));
}

static void *end_spill(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory) {
  if (to < 0) {
    mgd_handle_write(h); /* half a copy may be there */
    mgd_host_count_locked(m, h, h->memory != NULL);
    set_state(h, h->away < 0 ? MGD_RESIDENT : MGD_SPILLED);
    return NULL;
  }
  void *left = to == MGD_HOST ? NULL : h->memory;
  h->memory = memory;
  h->away = (int16_t)to;
  mgd_host_count_locked(m, h, to == MGD_HOST);
  set_state(h, MGD_SPILLED);
  return left;
}

int mgd_spill_end(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory, void **memory_left) {
  int code = MGD_E_INVALID;
  mgd_machine_enter(m);
  if (h->state == MGD_SPILLING && may_end_at(m, h, to, memory)) {
    mgd_handle_count_move_locked(m, h, -1);
    *memory_left = end_spill(m, h, to, memory);
    arrive(m, h, memory_left);
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}

/* ---- what there is */

bool mgd_handle_busy_locked(const struct mgd_machine *m, int above) {
  bool busy = m->moves.count > 0; /* it may end anywhere */
  for (int id = above + 1; id < m->count; id++) {
    busy = busy || m->devices[id].storages.open || m->devices[id].storages.guests.oldest;
  }
  return busy;
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
      if (h->pins) {
        return pinned_as(u, h);
      }
      if (!is_idle(h)) {
        return &u->in_use;
      }
      return m->may_leave && !m->may_leave(h) ? &u->held : &u->idle;
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
    const struct mgd_storages *s = &m->devices[device].storages;
    *out = (struct mgd_residency_usage){.storages = s->open, .guests = s->departing};
    for (const struct mgd_handle *h = s->first; h; h = h->next) {
      int64_t *kind = kind_of(m, out, h);
      *kind = mgd_about_sum(*kind, h->bytes);
    }
    for (const struct mgd_handle *h = s->guests.oldest; h; h = h->younger) {
      out->guests = mgd_about_sum(out->guests, h->bytes);
    }
    code = MGD_OK;
  }
  return mgd_machine_leave(m, code);
}
