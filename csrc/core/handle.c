/* handle.c: the directory of storages: each is opened, resized, pinned and closed here.
 *
 * evict.c decides which storages leave, restore.c what comes home. residency.c has the lists and sums that a handle is
 * filed in: every function here takes the handle out of them, changes its fields and files it again. No bytes are
 * copied, allocated or freed here: the caller does that.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

_Static_assert(sizeof(struct mgd_handle) == offsetof(struct mgd_handle, memory) + 8 * MGD_HANDLE_REST,
               "MGD_HANDLE_REST (handle.h) says how much of a handle only the core sees");

/* ---- open and close */

/* Inserting into the order of victims must never fail, so the array grows with the number of handles. */
static bool grow_order(struct mgd_machine *m, struct mgd_storages *s) {
  if (s->open < s->size) {
    return true;
  }
  int32_t size = s->size ? s->size * 2 : 64;
  struct mgd_order_entry *order = mgd_alloc_resize(&m->alloc, s->order, (size_t)size, sizeof *order);
  if (!order) {
    return false;
  }
  s->order = order;
  s->size = size;
  return true;
}

static struct mgd_storages *home_of(struct mgd_machine *m, const struct mgd_handle *h) {
  return &m->devices[h->home].storages;
}

static int open_at(struct mgd_machine *m, struct mgd_handle *h, int home, int64_t bytes) {
  if (!mgd_state_knows_device_locked(m, home)) {
    return MGD_E_NO_DEVICE;
  }
  struct mgd_storages *s = &m->devices[home].storages;
  if (!grow_order(m, s)) {
    return MGD_E_NOMEM;
  }
  *h = (struct mgd_handle){.in_use = MGD_ALIVE,
                           .dirty = 1,
                           .stamp = h->stamp,
                           .bytes = bytes,
                           .position = -1,
                           .seen = -1,
                           .role = {-1, -1, -1, -1},
                           .home = (int16_t)home,
                           .away = -1};
  h->next = s->first;
  if (h->next) {
    h->next->previous = h;
  }
  s->first = h;
  s->open++;
  mgd_residency_file_locked(m, h);
  mgd_step_made_locked(m, h);
  return MGD_OK;
}

int mgd_handle_open(struct mgd_machine *m, struct mgd_handle *h, int home, int64_t bytes) {
  if (bytes < 0 || home == MGD_HOST) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, open_at(m, h, home, bytes));
}

int mgd_handle_arrive(struct mgd_machine *m, struct mgd_handle *h) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (h->state == MGD_RESIDENT && __atomic_load_n(&h->in_use, __ATOMIC_SEQ_CST) == MGD_ALIVE) {
    mgd_residency_unfile_locked(m, h);
    __atomic_store_n(&h->state, MGD_ARRIVING, __ATOMIC_SEQ_CST);
    mgd_residency_file_locked(m, h);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_handle_map(struct mgd_machine *m, struct mgd_handle *h, void *memory) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (mgd_residency_is_home(h) && !h->memory && memory) {
    mgd_residency_unfile_locked(m, h);
    h->memory = memory;
    h->mapped = true;
    __atomic_store_n(&h->dirty, 0, __ATOMIC_RELAXED);
    mgd_residency_file_locked(m, h);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

/* A storage that dies while a mover has its bytes cannot be freed yet. Its handle becomes an orphan: it is moved from
 * the list of its home to the list of orphans, until the mover ends the move and frees everything. */
int mgd_handle_close(struct mgd_machine *m, struct mgd_handle *h, bool *moving, void **memory) {
  mgd_state_enter(m);
  struct mgd_storages *s = home_of(m, h);
  *moving = mgd_residency_is_moving(h);
  mgd_residency_unfile_locked(m, h);
  if (*moving) { mgd_residency_list_add(&m->orphans, h); }
  *memory = *moving ? NULL : mgd_residency_take_memory_locked(m, h);
  *(h->previous ? &h->previous->next : &s->first) = h->next;
  if (h->next) {
    h->next->previous = h->previous;
  }
  h->next = h->previous = NULL;
  s->open--;
  h->closed = true;
  mgd_step_died_locked(m, h);
  return mgd_state_leave(m, MGD_OK);
}

/* The storage has new bytes, so a copy on the host is useless and the caller frees it. */
int mgd_handle_resize(struct mgd_machine *m, struct mgd_handle *h, int64_t bytes, void **memory) {
  if (bytes < 0) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (h->state == MGD_RESIDENT) {
    mgd_residency_unfile_locked(m, h);
    *memory = mgd_residency_take_memory_locked(m, h);
    h->bytes = bytes;
    mgd_handle_write(h);
    mgd_residency_file_locked(m, h);
    mgd_step_resized_locked(m, h);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

/* A pin takes the storage out of the order of victims. Bytes that are away come home at their next use, and then stay
 * at home. */
int mgd_handle_pin(struct mgd_machine *m, struct mgd_handle *h, enum mgd_pin kind, bool pin) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (pin || h->pins_by[kind] > 0) {
    mgd_residency_unfile_locked(m, h);
    h->pins += pin ? 1 : -1;
    h->pins_by[kind] += pin ? 1 : -1;
    mgd_residency_file_locked(m, h);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

bool mgd_handle_is_pinned(struct mgd_machine *m, const struct mgd_handle *h) {
  mgd_state_enter(m);
  const bool pinned = h->pins > 0;
  (void)mgd_state_leave(m, MGD_OK);
  return pinned;
}

/* Plans were made for storages that may leave. If the advice changes whether the storage leaves last, the steps that
 * have it are forgotten. */
int mgd_handle_advise(struct mgd_machine *m, struct mgd_handle *h, uint32_t advice) {
  const uint32_t both = MGD_ADVICE_LAST | MGD_ADVICE_FIRST;
  if (advice > (both | MGD_ADVICE_NEXT | MGD_ADVICE_READ | MGD_ADVICE_HOST) || (advice & both) == both) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  const bool last = mgd_handle_leaves_last(h);
  mgd_residency_unfile_locked(m, h);
  h->advice = (uint8_t)advice;
  mgd_residency_file_locked(m, h);
  if (last != mgd_handle_leaves_last(h)) {
    mgd_step_stays_locked(m, h);
  }
  return mgd_state_leave(m, MGD_OK);
}

void mgd_handle_forget_uses(struct mgd_machine *m, struct mgd_user *user) {
  mgd_state_enter(m);
  mgd_user_forget_locked(m, user);
  for (int id = 1; id < m->count; id++) {
    for (struct mgd_handle *h = m->devices[id].storages.first; h; h = h->next) {
      if (!mgd_residency_is_moving(h)) {
        __atomic_store_n(&h->in_use, MGD_ALIVE, __ATOMIC_SEQ_CST);
      }
    }
  }
  (void)mgd_state_leave(m, MGD_OK);
}
