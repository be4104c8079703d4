/* evict.c: which storages leave a device when room is short, and where to.
 *
 * mgd_evict_begin() looks at storages in their order and plans the departure of those that may leave: guests
 * of other devices first, then the device's own storages by the policy. mgd_evict_end() files a storage when the move
 * has ended, with success or without. Nothing is copied here. order.c keeps the order, policy.c computes the worth of
 * one storage.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

int mgd_evict_veto(struct mgd_machine *m, mgd_may_leave_fn fn) {
  mgd_state_enter(m);
  m->may_leave = fn;
  return mgd_state_leave(m, MGD_OK);
}

/* ---- taking the bytes */

#define MOST_BACKOFF 10 /* the back-off grows no further */

/* A plan while it is made. */
struct plan {
  struct mgd_machine *m;
  struct mgd_action *actions;
  size_t n, size;
  int32_t refused;               /* storages of this slice of the search that may not leave */
  bool no_target;                /* some storage could leave, and there is no room for it anywhere */
  int64_t room[MGD_MAX_DEVICES]; /* free bytes of each peer, less what this plan sends there */
};

/* Takes the bytes for a mover, which counts as one use of them. False: an operator uses them, and nothing was changed.
 *
 * Operators take no lock, so the order of the steps matters. First the state says SPILLING: an operator that begins
 * from now on finds the bytes not at home and waits. Then the number of uses is compared: an operator that began before
 * is counted there, and the step fails. mgd_handle_use() does the same two accesses in the other order, so one of the
 * two sides always sees the other.
 *
 * *clean: the host's copy is as good as the bytes, so they need not be copied. The mark `dirty` is cleared before the
 * uses are compared, and read again afterwards. An operator that sets it in between may have written before the bytes
 * were taken, or may be waiting to write them when they are back; the two cannot be told apart, so the bytes count as
 * written.
 *
 * `mine`: the caller's own read-only uses, of bytes that stay where they are. A storage whose copy lies in a file is
 * taken only if that copy is good, since no bytes can be copied there.
 */
static bool take_bytes(struct plan *p, struct mgd_handle *h, uint32_t mine, bool *clean) {
  uint32_t uses = MGD_ALIVE + mine, before = h->state;
  mgd_residency_unfile_locked(p->m, h);
  __atomic_store_n(&h->state, MGD_SPILLING, __ATOMIC_SEQ_CST);
  bool dirty = __atomic_exchange_n(&h->dirty, 0, __ATOMIC_RELAXED);
  bool taken = __atomic_compare_exchange_n(&h->in_use, &uses, uses + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  *clean = !dirty && mgd_handle_is_clean(h);
  if (taken && (*clean || !h->mapped)) {
    mgd_residency_begin_move_locked(p->m, h);
    return true;
  }
  if (taken) { (void)mgd_handle_put(h, 1); /* the storage lives, so other uses are left */ }
  if (dirty) {
    mgd_handle_distrust(h);
  }
  __atomic_store_n(&h->state, before, __ATOMIC_SEQ_CST);
  mgd_residency_file_locked(p->m, h);
  return false;
}

/* Gives up the host's copy of a storage that is at home. From then on the policy values the storage as one without such
 * a copy. The bytes are not marked as written: the copy may still be under way, and mgd_handle_write() tells the next
 * writer so. */
static void forget_copy(struct plan *p, struct mgd_handle *h) {
  if (mgd_handle_fills_host(h)) {
    mgd_residency_list_remove(&p->m->host.spares, h);
    p->m->host.spare_bytes -= h->bytes;
  }
  p->actions[p->n++] = (struct mgd_action){.kind = MGD_DO_FORGET,
                                           .from = MGD_HOST,
                                           .to = -1,
                                           .bytes = h->bytes,
                                           .memory = mgd_residency_take_memory_locked(p->m, h)};
  if (h->position >= 0) {
    mgd_order_look_again_locked(p->m, h);
  }
}

/* Gives up a copy that lies in a file if the bytes have been written since. Afterwards the plan has room for one more
 * action, as before. False: it has no room for both. */
static bool forget_bad_map(struct plan *p, struct mgd_handle *h) {
  if (!h->mapped || mgd_handle_is_clean(h)) { return true; }
  if (p->n + 1 >= p->size) { return false; }
  forget_copy(p, h);
  return true;
}

/* Gives up copies of storages that are at home, oldest first, until the host has room for `bytes` more. If all of them
 * are not enough, none is given up. Afterwards the plan has room for one more action, as before. False: there is no
 * room, or the plan was full but for that action before there was. */
static bool make_host_room(struct plan *p, int64_t bytes) {
  struct mgd_host_room *host = &p->m->host;
  if (bytes > mgd_host_room_locked(p->m)) { return false; }
  while (bytes > host->limit - host->used && p->n + 1 < p->size) { forget_copy(p, host->spares.oldest); }
  return bytes <= host->limit - host->used;
}

/* Whether a peer gets no guest this time. A peer that had to send guests on to the host needed its room itself. It then
 * gets none for a number of victims that doubles each time, at most 2 to the power of MOST_BACKOFF. choose_target()
 * skips this check for a peer whose link is at least as fast as the host's: a guest that is sent on costs little more
 * than one that goes to the host at once. */
static bool refuses_guest(struct mgd_storages *s) {
  bool refuses = s->guests_to_refuse > 0;
  s->guests_to_refuse -= refuses;
  return refuses;
}

/* Where the bytes go: the peer with room whose link takes the least time, if that is at most twice the host's; else the
 * host; else, if the host has no room, the nearest peer with room; else -1.
 *
 * Bytes that were not written since they came home are a special case. Had they come from the host, their copy would
 * still be there and they would leave for nothing, unless it was given up. They came from a peer, which keeps no copy.
 * Going to a peer again costs two trips over its link; going to the host costs one trip and the way back, and nothing
 * the next time. So their limit is half the host's time. */
static int choose_target(struct plan *p, const struct mgd_handle *h, int from) {
  double host = mgd_link_estimate(&p->m->links[from][MGD_HOST], 1, h->bytes), least = 0.0, least_of_all = 0.0;
  double limit = __atomic_load_n(&h->dirty, __ATOMIC_RELAXED) ? 2.0 * host : 0.5 * host;
  int best = -1, nearest = -1;
  for (int d = 1; d < p->m->count && from == h->home; d++) {
    double cost = mgd_link_estimate(&p->m->links[from][d], 1, h->bytes);
    if (d == h->home || h->bytes > p->room[d]) {
      continue;
    }
    if (nearest < 0 || cost < least_of_all) {
      nearest = d;
      least_of_all = cost;
    }
    bool takes = cost <= limit && (cost <= host || !refuses_guest(&p->m->devices[d].storages));
    if (takes && (best < 0 || cost < least)) {
      best = d;
      least = cost;
    }
  }
  return best >= 0 ? best : make_host_room(p, h->bytes) ? MGD_HOST : nearest;
}

/* Plans that h leaves `from`. False: it is in use, its owner does not let it leave, or there is no room for it
 * anywhere. The first two are checked first, so that no copy on the host is given up for a storage that stays. The
 * caller has checked that the plan has room for one more action. */
static bool plan_departure(struct plan *p, struct mgd_handle *h, int from) {
  bool clean;
  if (mgd_residency_must_stay_locked(p->m, h) || !forget_bad_map(p, h)) { return false; }
  int to = h->memory ? MGD_HOST : choose_target(p, h, from);
  p->no_target |= to < 0 && __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) == MGD_ALIVE;
  if (to < 0 || !take_bytes(p, h, 0, &clean)) {
    return false;
  }
  if (to == MGD_HOST) {
    mgd_host_count_locked(p->m, h, !h->mapped);
  } else {
    p->room[to] -= h->bytes;
  }
  p->m->devices[h->home].storages.copied += clean ? 0 : h->bytes;
  p->actions[p->n++] = (struct mgd_action){.kind = clean ? MGD_DO_DROP : MGD_DO_SPILL,
                                           .from = from,
                                           .to = to,
                                           .bytes = h->bytes,
                                           .handle = h,
                                           .memory = h->memory};
  return true;
}

/* ---- the search for victims */

/* Moves the handles before `next` to the end of the list: the search has refused them. */
static void move_to_the_end(struct mgd_handle_list *list, struct mgd_handle *next) {
  struct mgd_handle *first = list->oldest, *last = next->elder;
  next->elder = NULL;
  list->oldest = next;
  last->younger = NULL;
  first->elder = list->youngest;
  list->youngest->younger = first;
  list->youngest = last;
}

/* Sends guests of other devices on to the host, in order of arrival. Returns how many bytes that frees. */
static int64_t send_guests_on(struct plan *p, int device, int64_t bytes) {
  struct mgd_storages *s = &p->m->devices[device].storages;
  int64_t given = 0;
  struct mgd_handle *h = s->guests.oldest, *next;
  for (; h && given < bytes && p->n < p->size && p->refused < MGD_LOOKS; h = next) {
    next = h->younger;
    bool leaves = plan_departure(p, h, device);
    given += leaves ? h->bytes : 0;
    p->refused += !leaves;
  }
  if (given > 0) {
    s->guest_backoff += s->guest_backoff < MOST_BACKOFF;
    s->guests_to_refuse = 1 << s->guest_backoff; /* the device needs its room itself: see refuses_guest() */
  } else if (h && p->refused >= MGD_LOOKS) {
    move_to_the_end(&s->guests, h);
  }
  return given;
}

/* Plans that the device's own storages leave, in their order. A storage that may not leave now is parked, out of the
 * order, until the search has ended. Returns how many bytes that frees. */
static int64_t evict_victims(struct plan *p, int device, int64_t bytes) {
  struct mgd_storages *s = &p->m->devices[device].storages;
  struct mgd_order_search search = {.new_keys = MGD_LOOKS};
  struct mgd_handle *h;
  int64_t given = 0;
  while (given < bytes && p->n < p->size && p->refused < MGD_LOOKS && (h = mgd_order_first_locked(p->m, s, &search))) {
    double key = s->order[h->position].key;
    if (plan_departure(p, h, device)) {
      given += h->bytes;
      s->pressed += h->bytes;
      s->age = key > s->age && key < INFINITY ? key : s->age;
    } else {
      mgd_order_park_locked(p->m, h);
      p->refused++;
    }
  }
  return given;
}

/* What other threads were doing when a search for room began. A search without a victim is worth another try if they
 * used or moved anything. */
struct others {
  struct mgd_uses uses;
  int32_t departures;
  uint64_t arrivals;
};

static struct others look_at_others(const struct mgd_machine *m, int device) {
  const struct mgd_storages *s = &m->devices[device].storages;
  return (struct others){mgd_user_count_locked(m, device), s->departures, s->arrivals};
}

/* Whether threads other than the caller use storages of the device or move bytes away from it. `mine`: the caller's own
 * uses among those counted. */
static bool are_busy(const struct others *o, int64_t mine) {
  return (int64_t)(o->uses.begun - o->uses.ended) + o->departures > mine;
}

/* Whether other threads used storages during the search. It is true also if those uses have ended: a storage that was
 * refused because it was in use may leave now. */
static bool others_used(const struct mgd_machine *m, int device, const struct others *before, int64_t mine) {
  const struct others now = look_at_others(m, device);
  bool came = now.uses.begun != before->uses.begun || now.arrivals != before->arrivals;
  return came || are_busy(before, mine) || are_busy(&now, mine);
}

/* Looks at storages until MGD_LOOKS of them are refused, guests first; *guests and *victims are how many are left to
 * look at. True: the plan is still empty and some are left, so the caller calls it again. */
static bool ask_some(struct plan *p, int device, int64_t bytes, int32_t *guests, int32_t *victims) {
  int64_t given = 0;
  p->refused = 0;
  if (*guests > 0) {
    given = send_guests_on(p, device, bytes);
    /* Fewer than MGD_LOOKS refused: no guest is left to look at, or the plan needs no more. Otherwise send_guests_on()
     * has moved those that were refused to the end of the list, and the rest are left to look at. */
    *guests = p->refused < MGD_LOOKS || p->refused > *guests ? 0 : *guests - p->refused;
  }
  if (given < bytes && *guests <= 0 && p->refused < MGD_LOOKS) {
    int32_t before = p->refused;
    evict_victims(p, device, bytes - given);
    *victims -= p->refused - before;
  }
  return p->n == 0 && p->refused >= MGD_LOOKS && (*guests > 0 || *victims > 0);
}

static void start_plan(struct plan *p, struct mgd_machine *m, const int64_t *room, struct mgd_action *actions,
                       size_t size) {
  *p = (struct plan){.m = m, .actions = actions, .size = size};
  for (int d = 1; room && d < m->count; d++) {
    p->room[d] = mgd_max(room[d], 0) - m->devices[d].by_owner[MGD_RESERVED]; /* promised to claims */
  }
}

/* Makes the plan. Releases the mutex after every MGD_LOOKS refused storages. The device stays: none is ever removed. */
static int begin(struct plan *p, int device, int64_t bytes, int64_t mine) {
  struct mgd_machine *m = p->m;
  struct mgd_storages *s = &m->devices[device].storages;
  const struct others before = look_at_others(m, device);
  int32_t guests = s->guest_count, victims = s->ordered + s->parked;
  p->room[device] = 0;
  while (ask_some(p, device, bytes, &guests, &victims)) {
    const int code = mgd_state_leave(m, MGD_OK);
    mgd_state_enter(m);
    if (code != MGD_OK) { return code; }
  }
  mgd_order_unpark_locked(m, s);
  if (p->n) { return MGD_OK; }
  return others_used(m, device, &before, mine) ? MGD_E_BUSY : p->no_target ? MGD_E_NO_ROOM : MGD_E_ABSENT;
}

#define COPIES_TO_COME 3

/* `bytes`, and room for copies of operands to come: for a few as large as the one that was used last. A device that
 * keeps such copies will get more of them. A copy whose room is free overlaps with running work; a copy that waits for
 * an eviction begins only when all work issued before it has ended. */
static int64_t and_room_for_copies(const struct mgd_machine *m, int device, int64_t bytes) {
  const struct mgd_device *d = &m->devices[device];
  const int64_t most = (int64_t)(MGD_KEPT_FREE * (double)d->capacity);
  const int64_t one = d->kept.last >= 0 ? m->replicas.slots[d->kept.last].bytes : 0;
  int64_t sum;
  return mgd_add(bytes, one < most / COPIES_TO_COME ? one * COPIES_TO_COME : most, &sum) ? sum : bytes;
}

int mgd_evict_begin(struct mgd_machine *m, int device, int64_t bytes, const int64_t *room, int64_t mine,
                    struct mgd_action *actions, size_t *n) {
  if (bytes < 0 || *n < 2) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (device != MGD_HOST && mgd_state_knows_device_locked(m, device)) {
    struct plan p;
    start_plan(&p, m, room, actions, *n);
    code = begin(&p, device, and_room_for_copies(m, device, bytes), mine);
    *n = p.n;
  }
  return mgd_state_leave(m, code);
}

/* ---- one storage, ahead of need */

bool mgd_evict_leave_locked(struct mgd_machine *m, struct mgd_handle *h, struct mgd_action *actions, size_t *n,
                            size_t size) {
  struct plan p;
  start_plan(&p, m, NULL, actions + *n, size - *n);
  const bool leaves = mgd_residency_is_victim(h) && p.size >= 2 && plan_departure(&p, h, h->home);
  *n += p.n;
  return leaves;
}

/* Plans a copy to the host of bytes that stay at home; otherwise it is like plan_departure(). */
bool mgd_evict_spare_locked(struct mgd_machine *m, struct mgd_handle *h, uint32_t mine, struct mgd_action *actions,
                            size_t *n, size_t size) {
  struct plan p;
  bool clean;
  start_plan(&p, m, NULL, actions + *n, size - *n);
  const bool idle = __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) == MGD_ALIVE + mine; /* or the take fails */
  const bool fits = idle && mgd_residency_is_home(h) && h->bytes > 0 && !mgd_handle_is_clean(h) && p.size >= 2 &&
      !mgd_residency_is_refused_locked(m, h) && forget_bad_map(&p, h) && (h->memory || make_host_room(&p, h->bytes));
  const bool taken = fits && take_bytes(&p, h, mine, &clean);
  if (taken) {
    mgd_host_count_locked(m, h, true);
    m->devices[h->home].storages.copied += h->bytes;
    p.actions[p.n++] = (struct mgd_action){
        .kind = MGD_DO_SPARE, .from = h->home, .to = MGD_HOST, .bytes = h->bytes, .handle = h, .memory = h->memory};
  }
  *n += p.n;
  return taken;
}

/* ---- at random, for tests */

/* Knuth's MMIX generator; the upper half is the good one. */
static uint32_t draw(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33);
}

int mgd_evict_random(struct mgd_machine *m, int device, uint32_t odds, uint64_t *seed, struct mgd_action *actions,
                     size_t *n) {
  if (odds == 0 || *n < 2) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    struct plan p;
    start_plan(&p, m, NULL, actions, *n);
    for (struct mgd_handle *h = m->devices[device].storages.first; h && p.n + 1 < p.size; h = h->next) {
      if (h->position >= 0 && draw(seed) % odds == 0) {
        plan_departure(&p, h, device);
      }
    }
    *n = p.n;
    code = p.n ? MGD_OK : MGD_E_ABSENT;
  }
  return mgd_state_leave(m, code);
}

/* ---- the end of a move */

/* Whether the arguments of mgd_evict_end() fit the plan: a copy on the host is in the memory that the plan named, if it
 * named any; a copy elsewhere has no `memory`. */
static bool may_end_at(const struct mgd_machine *m, const struct mgd_handle *h, int to, const void *memory) {
  if (to == MGD_HOST || (to == h->home && h->away < 0)) {
    return memory && (!h->memory || h->memory == memory);
  }
  return to < 0 || (!memory && to != h->home && mgd_state_knows_device_locked(m, to));
}

static void set_state(struct mgd_handle *h, enum mgd_residency state) {
  __atomic_store_n(&h->state, (uint32_t)state, __ATOMIC_SEQ_CST);
}

static void *end_spill(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory) {
  if (to < 0) {
    mgd_handle_distrust(h); /* half a copy may be there */
    mgd_host_count_locked(m, h, mgd_handle_fills_host(h));
    set_state(h, h->away < 0 ? MGD_RESIDENT : MGD_SPILLED);
    return NULL;
  }
  if (to == h->home) { /* a spare; an operator may have marked the bytes as written meanwhile, so `dirty` stays */
    h->memory = memory;
    mgd_host_count_locked(m, h, true);
    set_state(h, MGD_RESIDENT);
    return NULL;
  }
  void *left = to == MGD_HOST ? NULL : h->memory;
  h->memory = memory;
  h->away = (int16_t)to;
  mgd_host_count_locked(m, h, mgd_handle_fills_host(h));
  set_state(h, MGD_SPILLED);
  return left;
}

int mgd_evict_end(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory, void **memory_left) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (h->state == MGD_SPILLING && may_end_at(m, h, to, memory)) {
    mgd_residency_end_move_locked(m, h);
    *memory_left = end_spill(m, h, to, memory);
    mgd_residency_arrive_locked(m, h, memory_left);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
