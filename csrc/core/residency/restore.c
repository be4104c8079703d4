/* restore.c: how bytes come home again.
 *
 * mgd_restore_begin() plans what has to come home for one operator, and says whether there can be room for it.
 * mgd_restore_end() files a storage when the move has ended, with success or without. Which storages leave to make that
 * room is not decided here: the thread that carries the plan out calls evict.c. Nothing is copied here.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* ---- what it costs */

/* What one operator needs, by device. */
struct need {
  int64_t missing[MGD_MAX_DEVICES]; /* bytes that are to come home */
  mgd_wide own[MGD_MAX_DEVICES];    /* bytes of its operands that are there: they cannot leave to make the room */
};

static void count_need(struct need *need, const struct mgd_handle *h) {
  if (h->state == MGD_SPILLED) {
    need->missing[h->home] = mgd_about_sum(need->missing[h->home], h->bytes);
  }
  if (mgd_residency_is_victim(h)) {
    need->own[h->home] += h->bytes;
  }
  if (mgd_residency_is_guest(h)) {
    need->own[h->away] += h->bytes;
  }
}

/* Sums up the needs of the handles. A handle is marked as counted, so that one that is named twice counts once; the
 * caller clears the marks. WAIT: another thread is moving one of them. */
static int count_needs(struct mgd_handle *const *handles, size_t n, struct need *need) {
  int code = MGD_OK;
  for (size_t i = 0; i < n; i++) {
    struct mgd_handle *h = handles[i];
    code = mgd_residency_is_moving(h) ? MGD_E_WAIT : code;
    if (!h->counted) {
      count_need(need, h);
    }
    h->counted = true;
  }
  return code;
}

static int64_t idle_bytes(const struct mgd_machine *m, const struct mgd_handle *h) {
  return mgd_residency_must_stay_locked(m, h) ? 0 : h->bytes;
}

/* Whether kept copies, guests and storages that may leave now have so many bytes. It looks at no more than MGD_LOOKS
 * handles, from the front of their lists; *all: it has looked at all. */
static bool finds_idle(const struct mgd_machine *m, int device, int64_t bytes, bool *all) {
  const struct mgd_storages *s = &m->devices[device].storages;
  int64_t idle = m->devices[device].by_owner[MGD_REPLICA];
  int32_t looks = MGD_LOOKS, i = 0, n = s->ordered + s->parked;
  const struct mgd_handle *h = s->guests.oldest;
  for (; h && idle < bytes && looks > 0; h = h->younger, looks--) {
    idle = mgd_about_sum(idle, idle_bytes(m, h));
  }
  for (; i < n && idle < bytes && looks > 0; i++, looks--) {
    idle = mgd_about_sum(idle, idle_bytes(m, s->order[i].handle));
  }
  *all = !h && i == n;
  return idle >= bytes;
}

/* OK: so many bytes can leave the device. BUSY: they can when other operators have ended and owners have let go.
 * NO_ROOM: they cannot.
 * If there are too many storages to look at each, the answer assumes that few of them are in use. If that is wrong,
 * evict.c finds no victim, and the operands stay where they are. */
static int check_room(const struct mgd_machine *m, int device, int64_t bytes, mgd_wide own) {
  const struct mgd_storages *s = &m->devices[device].storages;
  bool all;
  if (finds_idle(m, device, bytes, &all)) {
    return MGD_OK;
  }
  mgd_wide there = s->ordered_bytes + s->guest_bytes + m->devices[device].by_owner[MGD_REPLICA] - own;
  if (!all && bytes <= there) {
    return MGD_OK;
  }
  return bytes <= there + s->moving_bytes + s->departing ? MGD_E_BUSY : MGD_E_NO_ROOM;
}

/* ---- the plan */

/* Plans the room that is missing on each device. On failure, *device is the device that cannot have it. */
static int plan_room(struct mgd_machine *m, const struct need *need, const int64_t *room, struct mgd_action *actions,
                     size_t *made, int *device) {
  for (int d = 1; d < m->count; d++) {
    int64_t bytes = need->missing[d] > 0 ? mgd_about_difference(need->missing[d], room[d]) : 0;
    if (bytes <= 0) {
      continue;
    }
    int code = check_room(m, d, bytes, need->own[d]);
    if (code != MGD_OK) {
      *device = d;
      return code;
    }
    actions[(*made)++] = (struct mgd_action){.kind = MGD_DO_MAKE_ROOM, .from = d, .to = -1, .bytes = bytes};
  }
  return MGD_OK;
}

/* Plans that h comes home, or that the caller joins a copy that has begun. Only one thread joins a copy: the state
 * RESTORING makes all other threads wait until it has. */
static void plan_restore(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a) {
  const bool joins = h->state == MGD_ARRIVING;
  mgd_residency_unfile_locked(m, h);
  __atomic_store_n(&h->state, MGD_RESTORING, __ATOMIC_SEQ_CST);
  mgd_residency_begin_move_locked(m, h);
  *a = (struct mgd_action){.kind = joins ? MGD_DO_JOIN : MGD_DO_RESTORE,
                           .from = joins ? h->home : h->away,
                           .to = h->home,
                           .bytes = h->bytes,
                           .handle = h,
                           .memory = h->memory};
}

static int acquire(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room,
                   struct mgd_action *actions, size_t *n_actions, int *device) {
  struct need need = {.missing = {0}};
  int code = count_needs(handles, n, &need);
  size_t made = 0;
  if (code == MGD_OK) {
    code = plan_room(m, &need, room, actions, &made, device);
  }
  for (size_t i = 0; i < n; i++) {
    handles[i]->counted = false;
    if (code == MGD_OK && (handles[i]->state == MGD_SPILLED || handles[i]->state == MGD_ARRIVING)) {
      plan_restore(m, handles[i], &actions[made++]);
    }
  }
  if (code == MGD_OK) {
    *n_actions = made;
  }
  return code;
}

bool mgd_restore_fetch_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *a) {
  if (h->state != MGD_SPILLED) {
    return false;
  }
  __atomic_fetch_add(&h->in_use, 1, __ATOMIC_SEQ_CST);
  plan_restore(m, h, a);
  return true;
}

int mgd_restore_begin(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room,
                      struct mgd_action *actions, size_t *n_actions, int *device) {
  if (*n_actions < n + MGD_MAX_DEVICES) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, acquire(m, handles, n, room, actions, n_actions, device));
}

/* ---- the end */

/* Sets the state, and returns memory that the caller frees, or NULL. The host's copy is kept as a spare while the host
 * has room: bytes that are not written can leave again without being copied. */
static void *end_restore(struct mgd_machine *m, struct mgd_handle *h, enum mgd_residency state) {
  void *left = NULL;
  if (state != MGD_SPILLED) {
    h->advice &= (uint8_t)~MGD_ADVICE_NEXT;
  }
  if (state != MGD_SPILLED && h->away >= 0) {
    struct mgd_storages *there = &m->devices[h->away].storages;
    /* The peer kept a guest until it was wanted again, so it is worth giving it guests: its back-off falls by one
     * (refuses_guest(), evict.c). */
    there->guest_backoff -= h->away != MGD_HOST && there->guest_backoff > 0;
    h->away = -1;
    m->devices[h->home].storages.copied += h->bytes;
    left = m->host.used > m->host.limit && !h->mapped ? mgd_residency_take_memory_locked(m, h) : NULL;
  }
  __atomic_store_n(&h->state, (uint32_t)state, __ATOMIC_SEQ_CST);
  return left;
}

/* Whether a restore may end in `state`. Bytes of a joined copy are at home already, so it cannot end as SPILLED. */
static bool may_end_as(const struct mgd_handle *h, enum mgd_residency state) {
  return state == MGD_RESIDENT || state == MGD_ARRIVING || (state == MGD_SPILLED && h->away >= 0);
}

int mgd_restore_end(struct mgd_machine *m, struct mgd_handle *h, enum mgd_residency state, void **memory) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (h->state == MGD_RESTORING && may_end_as(h, state)) {
    mgd_residency_end_move_locked(m, h);
    *memory = end_restore(m, h, state);
    mgd_residency_arrive_locked(m, h, memory);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
