/* random_handle.h: the model of test_random_handle.c: storages as an array with
 * the times at which they were opened, used and filed. No heap, no lists:
 * whoever is wanted is searched for, by the rules as they are written. Bytes
 * are a version number, so that a copy that is not good is found out. */
#ifndef RANDOM_HANDLE_H
#define RANDOM_HANDLE_H

#include "expect.h"

#define DEVICES 4 /* the host included */
#define SLOTS 14
#define MOST 24 /* actions of a plan, at most */

struct storage {
  struct mgd_handle h;
  bool open, closed; /* closed: not yet deleted */
  enum mgd_residency state;
  int home, away, to, pins, advice; /* advice: of leaving first or last */
  int64_t bytes, uses; /* the mover's included */
  bool promised, marked, dropped, stays; /* stays: its mover makes a copy on the host */
  uintptr_t copy;                     /* on the host, 0 for none */
  uint64_t opened, used, filed;       /* ticks */
  uint64_t version, away_version, copy_version;
};

struct model {
  struct mgd_machine *m;
  uint64_t random, tick;
  struct storage s[SLOTS];
  int64_t limit, peak, latency[DEVICES][DEVICES];
  int guest_backoff[DEVICES], guests_to_refuse[DEVICES]; /* by peers that needed their room themselves */
  bool largest_first, veto, draining, has_order[DEVICES];
  uintptr_t copies;
  int64_t answers[5], kinds[7], kept, closed_moving, failed, lost_memory, refused_guests; /* what has happened, so that a test that tests nothing is seen */
};

static inline int64_t roll(struct model *x, int64_t limit) { return pick(&x->random, limit); }

static inline bool moves(const struct storage *s) { return s->state == MGD_SPILLING || s->state == MGD_RESTORING; }

static inline bool is_guest_on(const struct storage *s, int d) { return s->open && s->state == MGD_SPILLED && s->away == d && d != MGD_HOST; }

static inline bool departs_from(const struct storage *s, int d) { return (s->open || s->closed) && moves(s) && s->away == d && d != MGD_HOST; }

static inline bool is_home(const struct storage *s) { return s->state == MGD_RESIDENT || s->state == MGD_ARRIVING; }

static inline bool is_spare(const struct storage *s) { return s->open && is_home(s) && s->copy; }

static inline bool is_victim_of(const struct storage *s, int d) {
  return s->open && s->home == d && is_home(s) && s->pins == 0 && s->bytes > 0;
}

static inline bool on_host(const struct storage *s) { return (s->open || (s->closed && moves(s))) && (s->copy || s->promised); }

static inline int64_t host_bytes(const struct model *x) {
  int64_t bytes = 0;
  for (int i = 0; i < SLOTS; i++) {
    bytes += on_host(&x->s[i]) ? x->s[i].bytes : 0;
  }
  return bytes;
}

static inline void note_peak(struct model *x) { x->peak = host_bytes(x) > x->peak ? host_bytes(x) : x->peak; }

/* ---- who leaves */

struct expected {
  struct mgd_action actions[MOST];
  size_t n, size;
  int64_t room[DEVICES];
  bool no_target; /* there is no place for one that could leave */
};

static inline int rank_of(const struct storage *s) { return s->advice == MGD_ADVICE_FIRST ? -1 : s->advice == MGD_ADVICE_LAST; }

static inline bool is_better(const struct model *x, const struct storage *a, const struct storage *b) {
  if (a->advice != b->advice) {
    return rank_of(a) < rank_of(b);
  }
  if (a->advice == 0 && x->largest_first && a->bytes != b->bytes) {
    return a->bytes > b->bytes;
  }
  return a->used < b->used;
}

/* The next guest (by arrival) or victim (by the policy) of a device that was not asked. */
static inline struct storage *next_to_ask(struct model *x, int d, bool guests, const bool asked[SLOTS]) {
  struct storage *next = NULL;
  for (int i = 0; i < SLOTS; i++) {
    struct storage *s = &x->s[i];
    bool counts = !asked[i] && (guests ? is_guest_on(s, d) : is_victim_of(s, d));
    if (counts && (!next || (guests ? s->filed < next->filed : is_better(x, s, next)))) {
      next = s;
    }
  }
  return next;
}

static inline bool expect_host_room(struct model *x, struct expected *e, int64_t bytes) {
  int64_t spare = 0;
  for (int i = 0; i < SLOTS; i++) {
    spare += is_spare(&x->s[i]) ? x->s[i].bytes : 0;
  }
  if (host_bytes(x) - spare + bytes > x->limit) {
    return false;
  }
  while (host_bytes(x) + bytes > x->limit && e->n + 1 < e->size) {
    struct storage *oldest = NULL;
    for (int i = 0; i < SLOTS; i++) {
      struct storage *s = &x->s[i];
      oldest = is_spare(s) && (!oldest || s->filed < oldest->filed) ? s : oldest;
    }
    e->actions[e->n++] = (struct mgd_action){.kind = MGD_DO_FORGET, .from = MGD_HOST, .to = -1, .bytes = oldest->bytes, .memory = (void *)oldest->copy};
    oldest->copy = 0;
  }
  return host_bytes(x) + bytes <= x->limit;
}

static inline int expect_target(struct model *x, struct expected *e, const struct storage *s, int from) {
  int best = -1, nearest = -1;
  int64_t host = x->latency[from][MGD_HOST];
  for (int d = DEVICES - 1; d > 0; d--) {
    int64_t ns = x->latency[from][d];
    bool fits = d != s->home && from == s->home && e->room[d] >= s->bytes;
    bool near = s->marked ? ns <= 2 * host : 2 * ns <= host;
    bool refuses = fits && near && ns > host && x->guests_to_refuse[d] > 0;
    x->guests_to_refuse[d] -= refuses;
    x->refused_guests += refuses;
    nearest = fits && (nearest < 0 || ns <= x->latency[from][nearest]) ? d : nearest;
    best = fits && near && !refuses && (best < 0 || ns <= x->latency[from][best]) ? d : best;
  }
  return best > 0 ? best : expect_host_room(x, e, s->bytes) ? MGD_HOST : nearest;
}

static inline bool refuses(const struct model *x, const struct mgd_handle *h) { return x->veto && h->bytes % 5 == 0; }

static inline int64_t expect_leaving(struct model *x, struct expected *e, struct storage *s, int from) {
  if (s->uses > 0 || refuses(x, &s->h)) {
    return 0;
  }
  int to = s->copy ? MGD_HOST : expect_target(x, e, s, from);
  if (to < 0) {
    e->no_target = true;
    return 0;
  }
  bool clean = s->copy && !s->marked;
  EXPECT(!clean || s->copy_version == s->version);
  e->room[to] -= to == MGD_HOST ? 0 : s->bytes;
  e->actions[e->n++] = (struct mgd_action){
      .kind = clean ? MGD_DO_DROP : MGD_DO_SPILL, .from = from, .to = to, .bytes = s->bytes, .handle = &s->h, .memory = (void *)s->copy};
  s->state = MGD_SPILLING;
  s->to = to;
  s->uses++;
  s->marked = false;
  s->dropped = clean;
  s->promised = to == MGD_HOST;
  note_peak(x);
  return s->bytes;
}

static inline void expect_eviction(struct model *x, struct expected *e, int d, int64_t bytes) {
  for (int guests = 1; guests >= 0; guests--) {
    bool asked[SLOTS] = {false};
    struct storage *s;
    bool any = false;
    while (bytes > 0 && e->n < e->size && (s = next_to_ask(x, d, guests, asked)) != NULL) {
      asked[s - x->s] = true;
      int64_t given = expect_leaving(x, e, s, d);
      bytes -= given;
      any = any || given > 0;
    }
    if (guests && any) {
      x->guest_backoff[d] += x->guest_backoff[d] < 10;
      x->guests_to_refuse[d] = 1 << x->guest_backoff[d];
    }
  }
}

/* Uses of what has its home there, and what is being brought away from there. */
static inline int64_t expect_uses(const struct model *x, int d) {
  int64_t uses = 0;
  for (int i = 0; i < SLOTS; i++) {
    const struct storage *s = &x->s[i];
    bool there = s->open || s->closed, leaves = there && s->state == MGD_SPILLING;
    uses += departs_from(s, d) || (leaves && s->away < 0 && s->home == d);
    uses += there && s->home == d ? s->uses - leaves : 0;
  }
  return uses;
}

/* ---- what comes home */

/* The code for a set of storages, and what is missing where. */
static inline int expect_acquire(const struct model *x, const bool asked[SLOTS], const int64_t *room, int64_t *missing, int *device) {
  int64_t idle[DEVICES] = {0}, hope[DEVICES] = {0};
  for (int i = 0; i < SLOTS; i++) {
    const struct storage *s = &x->s[i];
    if (asked[i] && moves(s)) {
      return MGD_E_WAIT;
    }
    for (int d = 1; d < DEVICES; d++) {
      bool leaves_home = s->open && s->home == d && !asked[i] && (s->state == MGD_SPILLING || (s->state != MGD_SPILLED && s->pins == 0));
      missing[d] += asked[i] && s->state == MGD_SPILLED && s->home == d ? s->bytes : 0;
      idle[d] += s->uses == 0 && !refuses(x, &s->h) && (is_victim_of(s, d) || is_guest_on(s, d)) ? s->bytes : 0;
      hope[d] += leaves_home || departs_from(s, d) || (is_guest_on(s, d) && !asked[i]) ? s->bytes : 0;
    }
  }
  for (int d = 1; d < DEVICES; d++) {
    int64_t more = missing[d] ? missing[d] - room[d] : 0;
    if (more > 0 && more > idle[d]) {
      *device = d;
      return more <= hope[d] ? MGD_E_BUSY : MGD_E_NO_ROOM;
    }
    missing[d] = more;
  }
  return MGD_OK;
}

/* ---- whether the machine agrees */

static inline void expect_storage(const struct model *x, const struct storage *s) {
  if (!s->open && !s->closed) {
    return;
  }
  EXPECT_INT(s->h.in_use, s->uses + (s->open ? MGD_ALIVE : 0));
  if (s->closed && !moves(s)) {
    return;
  }
  EXPECT_INT(s->h.state, s->state);
  EXPECT_INT(s->h.away, s->away);
  EXPECT_INT(s->h.bytes, s->bytes);
  EXPECT_INT(s->h.pins, s->pins);
  EXPECT_INT((uintptr_t)s->h.memory, s->copy);
  EXPECT_INT(s->h.on_host, on_host(s));
  EXPECT_INT(s->h.position >= 0, is_victim_of(s, s->home));
  (void)x;
}

static inline void expect_residency(struct model *x, int d) {
  struct mgd_residency_usage u, sum = {0};
  EXPECT_OK(mgd_residency_read(x->m, d, &u));
  for (int i = 0; i < SLOTS; i++) {
    const struct storage *s = &x->s[i];
    sum.guests += is_guest_on(s, d) || departs_from(s, d) ? s->bytes : 0;
    if (s->open && s->home == d) {
      sum.storages++;
      sum.on_host += on_host(s) ? s->bytes : 0;
      *(moves(s) ? &sum.moving : s->state == MGD_SPILLED ? &sum.spilled
            : s->pins                                    ? &sum.pinned[MGD_PIN_ASKED]
            : s->uses                                    ? &sum.in_use
            : refuses(x, &s->h)                          ? &sum.held
                                                         : &sum.idle) += s->bytes;
    }
  }
  EXPECT(memcmp(&u, &sum, sizeof u) == 0);
}

static inline void expect_all(struct model *x) {
  int64_t used, limit, peak;
  for (int i = 0; i < SLOTS; i++) {
    expect_storage(x, &x->s[i]);
  }
  EXPECT_OK(mgd_host_usage(x->m, &used, &limit, &peak));
  EXPECT_INT(used, host_bytes(x));
  EXPECT_INT(limit, x->limit);
  EXPECT_INT(peak, x->peak);
}

#endif
