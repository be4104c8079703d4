/* evict.c: who leaves a device when room is short.
 *
 * It keeps the order of victims, asks the policy for their worth, and takes those
 * that leave in one transition; it copies nothing. Room goes, in this order, to
 * what costs the owners least: guests of other devices, then by the policy.
 */
#include "arithmetic.h"
#include "internal_machine.h"

/* ---- policies: one function each */

double mgd_victim_lru(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp;
}

double mgd_victim_clean_first(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp + (victim->clean ? 0.0 : 0x1p52); /* more than there are ticks */
}

double mgd_victim_greedy_dual(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  double bytes = victim->bytes > 0 ? (double)victim->bytes : 1.0;
  return victim->age + (victim->leave_ns + victim->return_ns) / bytes;
}

int mgd_evict_policy(struct mgd_machine *m, mgd_victim_fn fn, void *context) {
  mgd_machine_enter(m);
  m->victim = fn ? fn : mgd_victim_greedy_dual;
  m->victim_context = context;
  for (int id = 0; id < m->count; id++) {
    struct mgd_storages *s = &m->devices[id].storages;
    int32_t n = s->ordered;
    s->age = 0.0;
    s->ordered = s->sorted = 0;
    for (int32_t i = 0; i < n; i++) {
      mgd_order_insert_locked(m, s->order[i]); /* to one of the places up to i */
    }
  }
  return mgd_machine_leave(m, MGD_OK);
}

int mgd_evict_veto(struct mgd_machine *m, mgd_may_leave_fn fn) {
  mgd_machine_enter(m);
  m->may_leave = fn;
  return mgd_machine_leave(m, MGD_OK);
}

/* ---- the order of victims: a binary heap, smallest key first, and behind it those that came since somebody asked for a victim
 *
 * While there is room storages come and go and nobody asks, so it is only noted what they were when they came: to value and sort
 * them reads links and others' handles, which are in no cache. Operators stamp a handle without a lock, so a key may be out of date; it is looked
 * at again when the handle comes to the top. Keys grow with use, so what is further down is no better. */

bool mgd_order_before(const struct mgd_handle *a, const struct mgd_handle *b) {
  return a->key < b->key || (a->key == b->key && a->seen < b->seen); /* keys come from a policy, equal ones are the common case */
}

static void put(struct mgd_storages *s, int32_t i, struct mgd_handle *h) {
  s->order[i] = h;
  h->position = i;
}

static void sift_up(struct mgd_storages *s, int32_t i, struct mgd_handle *h) {
  for (; i > 0 && mgd_order_before(h, s->order[(i - 1) / 2]); i = (i - 1) / 2) {
    put(s, i, s->order[(i - 1) / 2]);
  }
  put(s, i, h);
}

static void sift_down(struct mgd_storages *s, int32_t i, struct mgd_handle *h) {
  for (;;) {
    int32_t child = 2 * i + 1;
    if (child + 1 < s->sorted && mgd_order_before(s->order[child + 1], s->order[child])) {
      child++;
    }
    if (child >= s->sorted || !mgd_order_before(s->order[child], h)) {
      break;
    }
    put(s, i, s->order[child]);
    i = child;
  }
  put(s, i, h);
}

static bool is_clean(const struct mgd_handle *h) { return h->memory && !__atomic_load_n(&h->dirty, __ATOMIC_RELAXED); }

/* All that its worth depends on and that changes. */
static void note(const struct mgd_machine *m, struct mgd_handle *h) {
  h->seen = __atomic_load_n(&h->stamp, __ATOMIC_RELAXED);
  h->seen_clean = is_clean(h);
  h->key = m->devices[h->home].storages.age; /* until there is one */
}

static void value(const struct mgd_machine *m, struct mgd_handle *h) {
  const struct mgd_link *out = &m->links[h->home][MGD_HOST], *back = &m->links[MGD_HOST][h->home];
  struct mgd_victim v = {.bytes = h->bytes, .clean = h->seen_clean, .age = h->key, .stamp = h->seen};
  v.leave_ns = v.clean ? 0.0 : mgd_link_estimate(out, 1, h->bytes);
  v.return_ns = mgd_link_estimate(back, 1, h->bytes);
  double key = m->victim(m->victim_context, &v);
  h->key = isnan(key) ? 0.0 : key; /* what compares with nothing would break the order */
}

void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  note(m, h);
  put(s, s->ordered++, h);
}

void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  int32_t hole = h->position;
  h->position = -1;
  if (hole < s->sorted) {
    struct mgd_handle *end = s->order[--s->sorted];
    if (end != h && mgd_order_before(end, h)) {
      sift_up(s, hole, end);
    } else if (end != h) {
      sift_down(s, hole, end);
    }
    hole = s->sorted;
  }
  if (hole < --s->ordered) {
    put(s, hole, s->order[s->ordered]);
  }
}

static void sort(const struct mgd_machine *m, struct mgd_storages *s) {
  for (; s->sorted < s->ordered; s->sorted++) {
    struct mgd_handle *h = s->order[s->sorted];
    value(m, h);
    sift_up(s, s->sorted, h);
  }
}

/* What came home was clean when that was noted, and is often written right after: to leave then costs more than its key says. */
static bool is_noted(const struct mgd_handle *h) {
  return h->seen == __atomic_load_n(&h->stamp, __ATOMIC_RELAXED) && h->seen_clean == is_clean(h);
}

/* The victim with an up-to-date key, or NULL. Somebody else may go on using them all, so it looks again a bounded number of times. */
static struct mgd_handle *first_victim(struct mgd_machine *m, struct mgd_storages *s) {
  sort(m, s);
  for (int32_t looks = 2 * s->ordered; s->ordered; looks--) {
    struct mgd_handle *h = s->order[0];
    if (looks <= 0 || is_noted(h)) {
      return h;
    }
    note(m, h);
    value(m, h);
    sift_down(s, 0, h);
  }
  return NULL;
}

/* ---- taking the bytes */

#define MOST_SENT_ON 10 /* times that count */

/* What a plan is written into. */
struct plan {
  struct mgd_machine *m;
  struct mgd_action *actions;
  size_t n, size;
  int64_t uses;                  /* of storages that could not leave for them */
  int64_t room[MGD_MAX_DEVICES]; /* of peers, less what goes there */
};

/* Afterwards the bytes are the caller's to move, and count one use; or somebody else uses them, and nothing was changed.
 * *clean: the host's copy is good. A mark made after the state is set may be of a write to come as well as of one before: it counts
 * as both, and costs at most a copy too many. */
static bool take(struct plan *p, struct mgd_handle *h, bool *clean) {
  uint32_t uses = MGD_ALIVE, before = h->state;
  mgd_handle_unsettle_locked(p->m, h);
  __atomic_store_n(&h->state, MGD_SPILLING, __ATOMIC_SEQ_CST);
  bool dirty = __atomic_exchange_n(&h->dirty, 0, __ATOMIC_RELAXED);
  bool taken = __atomic_compare_exchange_n(&h->in_use, &uses, MGD_ALIVE + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  if (taken) {
    mgd_handle_count_move_locked(p->m, h, 1);
    *clean = !dirty && is_clean(h);
    return true;
  }
  if (dirty) {
    mgd_handle_write(h);
  }
  p->uses += uses - MGD_ALIVE;
  __atomic_store_n(&h->state, before, __ATOMIC_SEQ_CST);
  mgd_handle_settle_locked(p->m, h);
  return false;
}

/* The storage is as one that never left, and worth what that is. It may be out of the order while others are asked. */
static void forget_spare(struct plan *p, struct mgd_handle *h) {
  bool is_ordered = h->position >= 0;
  p->actions[p->n++] = (struct mgd_action){.kind = MGD_DO_FORGET, .from = MGD_HOST, .to = -1, .bytes = h->bytes, .memory = h->memory};
  mgd_handle_list_remove(&p->m->host.spares, h);
  p->m->host.spare_bytes -= h->bytes;
  h->memory = NULL;
  mgd_host_count_locked(p->m, h, false);
  mgd_handle_write(h);
  if (is_ordered) {
    mgd_order_remove_locked(p->m, h);
    mgd_order_insert_locked(p->m, h);
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

static int64_t uses_of(const struct mgd_handle *h) { return __atomic_load_n(&h->in_use, __ATOMIC_RELAXED) & (MGD_ALIVE - 1); }

/* Plans that h leaves `from`, which the plan has room for; false when it may not, or there is no room for it anywhere. Nobody
 * else's spare is given up for one that cannot leave anyway. */
static bool leave(struct plan *p, struct mgd_handle *h, int from) {
  int64_t uses = uses_of(h);
  bool clean;
  if (uses > 0 || (p->m->may_leave && !p->m->may_leave(h))) {
    p->uses += uses;
    return false;
  }
  int to = h->memory ? MGD_HOST : choose_target(p, h, from);
  if (to < 0 || !take(p, h, &clean)) {
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

/* Guests have the host as well; what came first goes first. */
static int64_t send_guests_on(struct plan *p, int device, int64_t bytes) {
  int64_t given = 0;
  struct mgd_handle *next;
  for (struct mgd_handle *h = p->m->devices[device].storages.guests.oldest; h && given < bytes && p->n < p->size; h = next) {
    next = h->younger;
    given += leave(p, h, device) ? h->bytes : 0;
  }
  if (given > 0) {
    struct mgd_storages *s = &p->m->devices[device].storages;
    s->sent_on += s->sent_on < MOST_SENT_ON;
    s->refusals = 1 << s->sent_on;
  }
  return given;
}

/* Those that may not leave now wait outside the order until all have been asked. */
static int64_t evict_victims(struct plan *p, int device, int64_t bytes) {
  struct mgd_storages *s = &p->m->devices[device].storages;
  struct mgd_handle *passed = NULL, *h;
  int64_t given = 0;
  while (given < bytes && p->n < p->size && (h = first_victim(p->m, s))) {
    double key = h->key;
    if (leave(p, h, device)) {
      given += h->bytes;
      s->age = key > s->age ? key : s->age;
      continue;
    }
    mgd_order_remove_locked(p->m, h);
    h->passed = passed;
    passed = h;
  }
  for (; passed; passed = h) {
    h = passed->passed;
    mgd_order_insert_locked(p->m, passed);
  }
  return given;
}

/* Whether others than the caller use or move storages there. Where all that may leave were asked, they were counted as they were
 * then: what came free since is somebody's who used it. */
static bool others_use(const struct plan *p, int device, int64_t mine, bool asked) {
  const struct mgd_storages *s = &p->m->devices[device].storages;
  int64_t uses = p->uses + s->departures;
  for (const struct mgd_handle *h = s->first; h; h = h->next) {
    uses += (h->position < 0 || !asked) && h->state != MGD_SPILLED ? uses_of(h) : 0;
  }
  return uses > mine;
}

static void start_plan(struct plan *p, struct mgd_machine *m, const int64_t *room, struct mgd_action *actions, size_t size) {
  *p = (struct plan){.m = m, .actions = actions, .size = size};
  for (int d = 1; room && d < m->count; d++) {
    p->room[d] = room[d];
  }
}

int mgd_evict_begin(struct mgd_machine *m, int device, int64_t bytes, const int64_t *room, int64_t mine, struct mgd_action *actions, size_t *n) {
  if (bytes < 0 || *n < 2) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_machine_enter(m);
  if (device != MGD_HOST && mgd_device_known_locked(m, device)) {
    struct plan p;
    start_plan(&p, m, room, actions, *n);
    p.room[device] = 0;
    int64_t given = send_guests_on(&p, device, bytes);
    bool asked = given < bytes;
    if (asked) {
      evict_victims(&p, device, bytes - given);
    }
    *n = p.n;
    code = p.n ? MGD_OK : others_use(&p, device, mine, asked) ? MGD_E_BUSY
                                                              : MGD_E_ABSENT;
  }
  return mgd_machine_leave(m, code);
}

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
  mgd_machine_enter(m);
  if (mgd_device_known_locked(m, device)) {
    struct plan p;
    start_plan(&p, m, NULL, actions, *n);
    for (struct mgd_handle *h = m->devices[device].storages.first; h && p.n + 1 < p.size; h = h->next) {
      if (h->position >= 0 && draw(seed) % odds == 0) {
        leave(&p, h, device);
      }
    }
    *n = p.n;
    code = p.n ? MGD_OK : MGD_E_ABSENT;
  }
  return mgd_machine_leave(m, code);
}
