/* evict.c: who leaves a device when room is short, and where to.
 *
 * It asks storages in their order, takes those that may leave in one transition, and
 * files them when they have gone; it copies nothing. The order itself is order.c's, what
 * a policy thinks policy.c's. Room goes, in this order, to what costs
 * the owners least: guests of other devices, then by the policy.
 */
#include "arithmetic.h"
#include "internal_machine.h"
#include "testing.h"

int mgd_evict_veto(struct mgd_machine *m, mgd_may_leave_fn fn) {
  mgd_state_enter(m);
  m->may_leave = fn;
  return mgd_state_leave(m, MGD_OK);
}

/* ---- taking the bytes */

#define MOST_SENT_ON 10 /* times that count */

/* What a plan is written into. */
struct plan {
  struct mgd_machine *m;
  struct mgd_action *actions;
  size_t n, size;
  int32_t refused;               /* that may not leave, since others were let in */
  int64_t room[MGD_MAX_DEVICES]; /* of peers, less what goes there */
};

/* Afterwards the bytes are the caller's to move, and count one use; or somebody else uses them, and nothing was changed.
 * *clean: the host's copy is good. A mark made after the state is set may be of a write to come as well as of one before: it counts
 * as both, and costs at most a copy too many. */
static bool take_bytes(struct plan *p, struct mgd_handle *h, bool *clean) {
  uint32_t uses = MGD_ALIVE, before = h->state;
  mgd_residency_unfile_locked(p->m, h);
  __atomic_store_n(&h->state, MGD_SPILLING, __ATOMIC_SEQ_CST);
  bool dirty = __atomic_exchange_n(&h->dirty, 0, __ATOMIC_RELAXED);
  bool taken = __atomic_compare_exchange_n(&h->in_use, &uses, MGD_ALIVE + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  if (taken) {
    mgd_residency_begin_move_locked(p->m, h);
    *clean = !dirty && h->memory && !__atomic_load_n(&h->dirty, __ATOMIC_RELAXED);
    return true;
  }
  if (dirty) {
    mgd_handle_write(h);
  }
  __atomic_store_n(&h->state, before, __ATOMIC_SEQ_CST);
  mgd_residency_file_locked(p->m, h);
  return false;
}

/* The storage is as one that never left, and worth what that is. It may be out of the order while others are asked. */
static void forget_spare(struct plan *p, struct mgd_handle *h) {
  p->actions[p->n++] = (struct mgd_action){.kind = MGD_DO_FORGET, .from = MGD_HOST, .to = -1, .bytes = h->bytes, .memory = h->memory};
  mgd_residency_list_remove(&p->m->host.spares, h);
  p->m->host.spare_bytes -= h->bytes;
  h->memory = NULL;
  mgd_host_count_locked(p->m, h, false);
  mgd_handle_write(h);
  if (h->position >= 0) {
    mgd_order_look_again_locked(p->m, h);
  }
}

/* Spares go, oldest first, until the host has room for `bytes` more, but none where all of them are not enough. False also when
 * the plan is full before. */
static bool make_host_room(struct plan *p, int64_t bytes) {
  struct mgd_host_room *host = &p->m->host;
  if (bytes > host->limit - (host->used - host->spare_bytes)) {
    return false;
  }
  while (bytes > host->limit - host->used && p->n + 1 < p->size) {
    forget_spare(p, host->spares.oldest);
  }
  return bytes <= host->limit - host->used;
}

/* A peer that had to send guests on needs its room itself: for as many victims as this it is left alone, for twice as many each
 * time. Over a link that is no slower than the host's a guess that fails costs little, so there it is always asked. */
static bool is_left_alone(struct mgd_storages *s) {
  bool left_alone = s->refusals > 0;
  s->refusals -= left_alone;
  return left_alone;
}

/* The nearest peer with room whose link takes at most twice the host's time, or the host, or any peer with room, or -1. From the
 * host bytes come back with a copy left there, and leave again for nothing until they are written: so what came back from a
 * peer and was not written since goes to one again only if there and back take no longer than back from the host. */
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
    bool takes = cost <= limit && (cost <= host || !is_left_alone(&p->m->devices[d].storages));
    if (takes && (best < 0 || cost < least)) {
      best = d;
      least = cost;
    }
  }
  return best >= 0 ? best : make_host_room(p, h->bytes) ? MGD_HOST : nearest;
}

/* Plans that h leaves `from`, which the plan has room for; false when it may not, or there is no room for it anywhere. Nobody
 * else's spare is given up for one that cannot leave anyway. */
static bool plan_departure(struct plan *p, struct mgd_handle *h, int from) {
  bool clean, used = __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) != MGD_ALIVE;
  if (used || (p->m->may_leave && !p->m->may_leave(h))) {
    return false;
  }
  int to = h->memory ? MGD_HOST : choose_target(p, h, from);
  if (to < 0 || !take_bytes(p, h, &clean)) {
    return false;
  }
  if (to == MGD_HOST) {
    mgd_host_count_locked(p->m, h, true);
  } else {
    p->room[to] -= h->bytes;
  }
  p->actions[p->n++] = (struct mgd_action){
      .kind = clean ? MGD_DO_DROP : MGD_DO_SPILL, .from = from, .to = to, .bytes = h->bytes, .handle = h, .memory = h->memory};
  return true;
}

/* ---- who is asked */

/* The first of them have all been asked and stay: they wait behind the others. */
static void move_to_the_end(struct mgd_handle_list *list, struct mgd_handle *next) {
  struct mgd_handle *first = list->oldest, *last = next->elder;
  next->elder = NULL;
  list->oldest = next;
  last->younger = NULL;
  first->elder = list->youngest;
  list->youngest->younger = first;
  list->youngest = last;
}

/* Guests have the host as well; what came first goes first. */
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
    s->sent_on += s->sent_on < MOST_SENT_ON;
    s->refusals = 1 << s->sent_on;
  } else if (h && p->refused >= MGD_LOOKS) {
    move_to_the_end(&s->guests, h);
  }
  return given;
}

/* Those that may not leave now are parked until all have been asked. */
static int64_t evict_victims(struct plan *p, int device, int64_t bytes) {
  struct mgd_storages *s = &p->m->devices[device].storages;
  struct mgd_order_search search = {.values = MGD_LOOKS};
  struct mgd_handle *h;
  int64_t given = 0;
  while (given < bytes && p->n < p->size && p->refused < MGD_LOOKS && (h = mgd_order_first_locked(p->m, s, &search))) {
    double key = s->order[h->position].key;
    if (plan_departure(p, h, device)) {
      given += h->bytes;
      s->age = key > s->age ? key : s->age;
    } else {
      mgd_order_park_locked(p->m, h);
      p->refused++;
    }
  }
  return given;
}

/* What others were doing when somebody began to look for room: when he finds none, it says whether it is worth another try. */
struct others {
  struct mgd_uses uses;
  int32_t departures;
  uint64_t arrivals;
};

static struct others look_at_others(const struct mgd_machine *m, int device) {
  const struct mgd_storages *s = &m->devices[device].storages;
  return (struct others){mgd_user_count_locked(m, device), s->departures, s->arrivals};
}

static bool are_busy(const struct others *o, int64_t mine) { return (int64_t)(o->uses.begun - o->uses.ended) + o->departures > mine; }

/* Also when they have come to an end meanwhile: who was asked before that may leave now. */
static bool others_used(const struct mgd_machine *m, int device, const struct others *before, int64_t mine) {
  const struct others now = look_at_others(m, device);
  bool came = now.uses.begun != before->uses.begun || now.arrivals != before->arrivals;
  return came || are_busy(before, mine) || are_busy(&now, mine);
}

/* Guests are asked first, and some of each in turn. True: nobody leaves yet, but not all have been asked. */
static bool ask_some(struct plan *p, int device, int64_t bytes, int32_t *guests, int32_t *victims) {
  int64_t given = 0;
  p->refused = 0;
  if (*guests > 0) {
    given = send_guests_on(p, device, bytes);
    *guests = p->refused < MGD_LOOKS || p->refused > *guests ? 0 : *guests - p->refused;
  }
  if (given < bytes && *guests <= 0 && p->refused < MGD_LOOKS) {
    int32_t before = p->refused;
    evict_victims(p, device, bytes - given);
    *victims -= p->refused - before;
  }
  return p->n == 0 && p->refused >= MGD_LOOKS && (*guests > 0 || *victims > 0);
}

static void start_plan(struct plan *p, struct mgd_machine *m, const int64_t *room, struct mgd_action *actions, size_t size) {
  *p = (struct plan){.m = m, .actions = actions, .size = size};
  for (int d = 1; room && d < m->count; d++) {
    p->room[d] = room[d];
  }
}

/* In between others are let in, so that the device may be gone. */
static int begin(struct plan *p, int device, int64_t bytes, int64_t mine) {
  struct mgd_machine *m = p->m;
  struct mgd_storages *s = &m->devices[device].storages;
  const struct others before = look_at_others(m, device);
  int32_t guests = s->guest_count, victims = s->ordered + s->parked;
  p->room[device] = 0;
  while (ask_some(p, device, bytes, &guests, &victims)) {
    int code = mgd_state_leave(m, MGD_OK);
    mgd_state_enter(m);
    if (code != MGD_OK || !mgd_state_knows_device_locked(m, device)) {
      return code == MGD_OK ? MGD_E_NO_DEVICE : code;
    }
  }
  mgd_order_unpark_locked(m, s);
  return p->n ? MGD_OK : others_used(m, device, &before, mine) ? MGD_E_BUSY
                                                               : MGD_E_ABSENT;
}

int mgd_evict_begin(struct mgd_machine *m, int device, int64_t bytes, const int64_t *room, int64_t mine, struct mgd_action *actions, size_t *n) {
  if (bytes < 0 || *n < 2) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (device != MGD_HOST && mgd_state_knows_device_locked(m, device)) {
    struct plan p;
    start_plan(&p, m, room, actions, *n);
    code = begin(&p, device, bytes, mine);
    *n = code == MGD_OK || code == MGD_E_BUSY || code == MGD_E_ABSENT ? p.n : *n;
  }
  return mgd_state_leave(m, code);
}

/* ---- by chance */

/* Knuth's MMIX generator; the upper half is the good one. */
static uint32_t draw(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33);
}

int mgd_evict_random(struct mgd_machine *m, int device, uint32_t odds, uint64_t *seed, struct mgd_action *actions, size_t *n) {
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

/* ---- gone */

/* A copy in the host's memory is the one that the plan named, if it did; one elsewhere has none. */
static bool may_end_at(const struct mgd_machine *m, const struct mgd_handle *h, int to, const void *memory) {
  if (to == MGD_HOST) {
    return memory && (!h->memory || h->memory == memory);
  }
  return to < 0 || (!memory && to != h->home && mgd_state_knows_device_locked(m, to));
}

static void set_state(struct mgd_handle *h, enum mgd_residency state) { __atomic_store_n(&h->state, (uint32_t)state, __ATOMIC_SEQ_CST); }

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
