/* A million random transitions of the directory of storages against a model that
 * is as simple as possible; moves fail by chance, and so do allocations.
 *
 * Usage: test_random_handle [seed] [steps]
 */
#include "core/internal_machine.h"
#include "random_handle.h"

static struct model *model; /* for the veto, which has no context */

static bool may_leave(const struct mgd_handle *h) { return !refuses(model, h); }

static double largest(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return -(double)victim->bytes;
}

static struct storage *any(struct model *x) { return &x->s[roll(x, SLOTS)]; }

static int64_t some_bytes(struct model *x) { return roll(x, 12) ? 1 + roll(x, 60) : 0; }

static void set_link(struct model *x, int from, int to, int64_t ns) {
  const struct mgd_link link = {.latency_ns = ns};
  if (from != to) {
    EXPECT_OK(mgd_link_set(x->m, from, to, link));
    x->latency[from][to] = ns;
  }
}

/* The storage itself goes with its last use. */
static void forget(struct storage *s, bool last) {
  EXPECT(last == (!s->open && s->uses == 0));
  s->closed = s->closed && !last;
}

static void put(struct storage *s) {
  s->uses--;
  forget(s, mgd_handle_unuse(&s->h, me, 1));
}

/* ---- birth and death */

static void step_open(struct model *x) {
  struct storage *s = any(x);
  if (s->open || s->closed) {
    return;
  }
  int home = 1 + (int)(roll(x, DEVICES - 1) * roll(x, DEVICES - 1) / 2);
  bool no_memory = roll(x, 3) == 0;
  *s = (struct storage){.home = home, .away = -1, .bytes = some_bytes(x), .marked = true, .version = 1, .opened = ++x->tick};
  s->h.stamp = s->used = x->tick;
  x->m->alloc.fail_at = no_memory ? atomic_load(&x->m->alloc.made) + 1 : 0;
  int expected = no_memory && !x->has_order[home] ? MGD_E_NOMEM : MGD_OK;
  EXPECT_CODE(mgd_handle_open(x->m, &s->h, home, s->bytes), expected);
  x->m->alloc.fail_at = 0;
  x->lost_memory += expected != MGD_OK;
  s->open = expected == MGD_OK;
  x->has_order[home] |= s->open;
}

static void step_arrive(struct model *x) {
  struct storage *s = any(x);
  const bool can = s->open && s->state == MGD_RESIDENT && s->uses == 0;
  if (s->open) {
    EXPECT_CODE(mgd_handle_arrive(x->m, &s->h), can ? MGD_OK : MGD_E_INVALID);
  }
  if (can) {
    s->state = MGD_ARRIVING;
    s->filed = ++x->tick;
  }
}

static void step_close(struct model *x) {
  struct storage *s = any(x);
  if (!s->open) {
    return;
  }
  bool moving = !moves(s);
  void *memory = &moving;
  EXPECT_OK(mgd_handle_close(x->m, &s->h, &moving, &memory));
  EXPECT_INT(moving, moves(s));
  EXPECT_INT((uintptr_t)memory, moving ? 0 : s->copy);
  x->closed_moving += moving;
  s->open = false;
  s->closed = true;
  forget(s, mgd_handle_put(&s->h, MGD_ALIVE));
}

/* ---- use */

static void step_use(struct model *x) {
  struct storage *s = any(x);
  if (s->open) {
    s->used = ++x->tick;
    s->uses++;
    EXPECT(i_use(&s->h, x->tick) == (s->state == MGD_RESIDENT));
  }
}

static void step_put(struct model *x) {
  struct storage *s = any(x);
  if ((s->open || s->closed) && s->uses > moves(s)) {
    put(s);
  }
}

/* By somebody who uses it, and who writes once it is home. */
static void step_write(struct model *x) {
  struct storage *s = any(x);
  if (s->open && s->uses > (s->state == MGD_SPILLING)) {
    mgd_handle_write(&s->h);
    s->marked = true;
    s->version += s->state == MGD_RESIDENT;
  }
}

static void step_resize(struct model *x) {
  struct storage *s = any(x);
  if (!s->open) {
    return;
  }
  void *memory = x;
  int64_t bytes = some_bytes(x);
  EXPECT_CODE(mgd_handle_resize(x->m, &s->h, bytes, &memory), s->state == MGD_RESIDENT ? MGD_OK : MGD_E_INVALID);
  if (s->state == MGD_RESIDENT) {
    EXPECT_INT((uintptr_t)memory, s->copy);
    s->copy = 0;
    s->bytes = bytes;
    s->version++;
    s->marked = true;
  }
}

static void step_pin(struct model *x) {
  struct storage *s = any(x);
  bool pin = roll(x, 3) == 0;
  if (s->open) {
    EXPECT_CODE(mgd_handle_pin(x->m, &s->h, MGD_PIN_ASKED, pin), pin || s->pins ? MGD_OK : MGD_E_INVALID);
    s->filed = pin || s->pins ? ++x->tick : s->filed;
    s->pins += pin ? 1 : -(s->pins > 0);
  }
}

static void step_advise(struct model *x) {
  struct storage *s = any(x);
  if (s->open) {
    s->advice = (int)roll(x, 3); /* none, MGD_ADVICE_LAST, MGD_ADVICE_FIRST */
    s->filed = ++x->tick;
    EXPECT_OK(mgd_handle_advise(x->m, &s->h, (uint32_t)s->advice | (roll(x, 2) ? MGD_ADVICE_READ : 0)));
  }
}

/* ---- moves */

static void expect_plan(struct model *x, const struct expected *e, const struct mgd_action *actions, size_t n) {
  EXPECT_INT(n, e->n);
  for (size_t i = 0; i < n; i++) {
    const struct mgd_action *a = &actions[i], *b = &e->actions[i];
    x->kinds[a->kind]++;
    EXPECT_INT(a->kind, b->kind);
    EXPECT_INT(a->from, b->from);
    EXPECT_INT(a->to, b->to);
    EXPECT_INT(a->bytes, b->bytes);
    EXPECT(a->handle == b->handle && a->memory == b->memory);
  }
}

static void count_answer(struct model *x, int code) {
  const int codes[] = {MGD_OK, MGD_E_WAIT, MGD_E_BUSY, MGD_E_NO_ROOM, MGD_E_ABSENT};
  for (int i = 0; i < 5; i++) {
    x->answers[i] += codes[i] == code;
  }
}

static void step_evict(struct model *x) {
  struct mgd_action actions[MOST];
  struct expected e = {.size = (size_t)(2 + roll(x, MOST - 2))};
  int64_t room[DEVICES], bytes = 1 + roll(x, 119), mine = roll(x, 3);
  int d = 1 + (int)roll(x, DEVICES - 1);
  bool peers = roll(x, 2);
  size_t n = e.size;
  for (int i = 0; i < DEVICES; i++) {
    room[i] = roll(x, 80);
    e.room[i] = peers && i != d ? room[i] : 0;
  }
  expect_eviction(x, &e, d, bytes);
  bool others = expect_uses(x, d) > mine;
  int expected = e.n ? MGD_OK : others ? MGD_E_BUSY : e.no_target ? MGD_E_NO_ROOM : MGD_E_ABSENT;
  if (e.n == 0) {
    EXPECT_CODE(mgd_user_others(x->m, d, mine), others ? MGD_E_BUSY : MGD_OK);
  }
  EXPECT_CODE(mgd_evict_begin(x->m, d, bytes, peers ? room : NULL, mine, actions, &n), expected);
  expect_plan(x, &e, actions, n);
  count_answer(x, expected);
}

static void step_evict_one(struct model *x) {
  struct mgd_action actions[MOST];
  struct expected e = {.size = (size_t)(2 + roll(x, MOST - 2))};
  struct storage *s = any(x);
  size_t n = 0;
  if (s->open) {
    const bool leaves = is_victim_of(s, s->home) && expect_leaving(x, &e, s, s->home) > 0;
    mgd_state_enter(x->m);
    EXPECT_INT(mgd_evict_leave_locked(x->m, &s->h, actions, &n, e.size), leaves);
    EXPECT_OK(mgd_state_leave(x->m, MGD_OK));
    expect_plan(x, &e, actions, n);
  }
}

static void step_spare(struct model *x) {
  struct mgd_action actions[MOST];
  struct expected e = {.size = (size_t)(2 + roll(x, MOST - 2))};
  struct storage *s = any(x);
  const uint32_t mine = (uint32_t)roll(x, 2);
  size_t n = 0;
  if (!s->open) {
    return;
  }
  const bool asked = s->uses == (int64_t)mine && is_home(s) && s->bytes > 0 && !(s->copy && !s->marked) && !refuses(x, &s->h);
  const bool room = asked && (s->copy || expect_host_room(x, &e, s->bytes));
  const bool spares = room && e.n < e.size;
  if (spares) {
    e.actions[e.n++] = (struct mgd_action){
        .kind = MGD_DO_SPARE, .from = s->home, .to = MGD_HOST, .bytes = s->bytes, .handle = &s->h, .memory = (void *)s->copy};
    s->state = MGD_SPILLING;
    s->to = MGD_HOST;
    s->uses++;
    s->marked = s->dropped = false;
    s->promised = s->stays = true;
    note_peak(x);
  }
  mgd_state_enter(x->m);
  EXPECT_INT(mgd_evict_spare_locked(x->m, &s->h, mine, actions, &n, e.size), spares);
  EXPECT_OK(mgd_state_leave(x->m, MGD_OK));
  expect_plan(x, &e, actions, n);
}

static void step_evict_random(struct model *x) {
  struct mgd_action actions[MOST];
  struct expected e = {.size = (size_t)(2 + roll(x, MOST - 2))};
  uint32_t odds = 1 + (uint32_t)roll(x, 4);
  uint64_t seed = next_random(&x->random), own = seed, before = UINT64_MAX;
  int d = 1 + (int)roll(x, DEVICES - 1);
  size_t n = e.size;
  for (struct storage *s = &x->s[0]; s && e.n + 1 < e.size;) {
    s = NULL;
    for (int i = 0; i < SLOTS; i++) { /* the newest first */
      struct storage *t = &x->s[i];
      s = t->open && t->home == d && t->opened < before && (!s || t->opened > s->opened) ? t : s;
    }
    if (s && is_victim_of(s, d)) {
      own = own * 6364136223846793005u + 1442695040888963407u;
      (void)((uint32_t)(own >> 33) % odds == 0 ? expect_leaving(x, &e, s, d) : 0);
    }
    before = s ? s->opened : 0;
  }
  EXPECT_CODE(mgd_evict_random(x->m, d, odds, &seed, actions, &n), e.n ? MGD_OK : MGD_E_ABSENT);
  EXPECT(seed == own);
  expect_plan(x, &e, actions, n);
}

static void expect_restores(struct expected *e, struct mgd_handle *const *h, size_t n, const int64_t *missing) {
  for (int d = 1; d < DEVICES; d++) {
    if (missing[d] > 0) {
      e->actions[e->n++] = (struct mgd_action){.kind = MGD_DO_MAKE_ROOM, .from = d, .to = -1, .bytes = missing[d]};
    }
  }
  for (size_t i = 0; i < n; i++) {
    struct storage *s = (struct storage *)(void *)h[i];
    if (s->state == MGD_SPILLED || s->state == MGD_ARRIVING) {
      const bool joins = s->state == MGD_ARRIVING;
      e->actions[e->n++] = (struct mgd_action){.kind = joins ? MGD_DO_JOIN : MGD_DO_RESTORE, .from = joins ? s->home : s->away,
                                               .to = s->home, .bytes = s->bytes, .handle = &s->h, .memory = (void *)s->copy};
      s->state = MGD_RESTORING;
      s->uses++; /* kept until the end */
      (void)i_use(&s->h, s->used);
    }
  }
}

static void step_acquire(struct model *x) {
  struct mgd_action actions[5 + MGD_MAX_DEVICES];
  struct mgd_handle *h[5];
  struct expected e = {0};
  bool asked[SLOTS] = {false};
  int64_t missing[DEVICES] = {0}, room[MGD_MAX_DEVICES];
  size_t n = 0, made = 5 + MGD_MAX_DEVICES;
  int device = -1, where = -1;
  for (int64_t left = 1 + roll(x, 5); left > 0; left--) {
    struct storage *s = any(x);
    if (s->open) {
      asked[s - x->s] = true;
      h[n++] = &s->h;
      s->uses++;
      s->used = ++x->tick;
      EXPECT(i_use(&s->h, x->tick) == (s->state == MGD_RESIDENT));
    }
  }
  for (int i = 0; i < MGD_MAX_DEVICES; i++) {
    room[i] = roll(x, 90) - 10;
  }
  int expected = expect_acquire(x, asked, room, missing, &where);
  EXPECT_CODE(mgd_restore_begin(x->m, h, n, room, actions, &made, &device), expected);
  EXPECT_INT(device, where);
  EXPECT_INT(made <= 5 + DEVICES, expected == MGD_OK);
  if (expected == MGD_OK) {
    expect_restores(&e, h, n, missing);
    expect_plan(x, &e, actions, made);
  }
  count_answer(x, expected);
  for (size_t i = 0; i < n; i++) {
    put((struct storage *)(void *)h[i]);
  }
}

/* What is no longer of use; of one that is closed, all there is. */
static void expect_left(struct storage *s, const void *left, uintptr_t expected) {
  EXPECT_INT((uintptr_t)left, s->closed && !expected ? s->copy : expected);
  s->copy = s->closed ? 0 : s->copy;
}

/* The bytes stay, and the host has a copy that is good unless somebody has said meanwhile that he writes them. */
static void end_with_spare(struct model *x, struct storage *s) {
  uintptr_t memory = s->copy ? s->copy : ++x->copies;
  void *left = x;
  EXPECT_OK(mgd_evict_end(x->m, &s->h, s->home, (void *)memory, &left));
  s->promised = false;
  s->copy = memory;
  s->copy_version = s->dropped ? s->copy_version : s->version;
  s->version += s->marked;
  s->state = MGD_RESIDENT;
  x->kept++;
  x->peak = s->closed && host_bytes(x) + s->bytes > x->peak ? host_bytes(x) + s->bytes : x->peak; /* until it is freed */
  note_peak(x);
  expect_left(s, left, 0);
}

static void end_spill(struct model *x, struct storage *s) {
  const bool stays = s->stays;
  s->stays = false;
  if (s->away < 0 && s->to == MGD_HOST && roll(x, 4) < (stays ? 3 : 1)) {
    end_with_spare(x, s);
    return;
  }
  bool done = roll(x, 4), elsewhere = roll(x, 6) == 0;
  int from = s->away, to = !done ? -1 : elsewhere ? (int)roll(x, DEVICES)
                                                  : s->to;
  to = to == s->home ? MGD_HOST : to;
  uintptr_t memory = to != MGD_HOST ? 0 : s->copy ? s->copy
                                                  : ++x->copies,
            expected = 0;
  void *left = x;
  EXPECT_OK(mgd_evict_end(x->m, &s->h, to, (void *)memory, &left));
  s->promised = false;
  if (!done) {
    s->state = from < 0 ? MGD_RESIDENT : MGD_SPILLED;
    s->marked = true;
    s->copy_version = 0; /* nobody knows what it is */
  } else {
    expected = to == MGD_HOST ? 0 : s->copy;
    s->copy = memory;
    s->copy_version = s->dropped ? s->copy_version : s->version;
    s->away_version = to == MGD_HOST ? s->copy_version : s->version;
    s->state = MGD_SPILLED;
    s->away = to;
  }
  x->peak = s->closed && to == MGD_HOST && host_bytes(x) + s->bytes > x->peak ? host_bytes(x) + s->bytes : x->peak; /* until it is freed */
  note_peak(x);
  x->failed += !done;
  expect_left(s, left, expected);
}

static void end_restore(struct model *x, struct storage *s) {
  bool done = roll(x, 4), over = host_bytes(x) > x->limit, joins = s->away < 0, later = done ? roll(x, 3) == 0 : joins;
  enum mgd_residency state = later ? MGD_ARRIVING : done ? MGD_RESIDENT : MGD_SPILLED;
  uintptr_t expected = done && over && !joins ? s->copy : 0;
  void *left = x;
  if (joins) {
    EXPECT_CODE(mgd_restore_end(x->m, &s->h, MGD_SPILLED, &left), MGD_E_INVALID);
  }
  EXPECT_CODE(mgd_restore_end(x->m, &s->h, MGD_SPILLING, &left), MGD_E_INVALID);
  EXPECT_OK(mgd_restore_end(x->m, &s->h, state, &left));
  if (done && !joins) {
    EXPECT(s->away_version == s->version);
    x->guest_backoff[s->away] -= s->away != MGD_HOST && x->guest_backoff[s->away] > 0;
    s->away = -1;
    s->copy = over ? 0 : s->copy;
  }
  s->version += state == MGD_RESIDENT && s->marked; /* whoever announced a write writes now */
  s->state = state;
  x->failed += !done;
  expect_left(s, left, expected);
}

/* Who restores is a user, too. */
static void end_move(struct model *x, struct storage *s) {
  bool leaves = s->state == MGD_SPILLING;
  (leaves ? end_spill : end_restore)(x, s);
  if (leaves) {
    s->uses--;
    forget(s, mgd_handle_put(&s->h, 1));
  } else {
    put(s);
  }
}

static void step_end(struct model *x) {
  struct storage *s = any(x);
  void *left = x;
  if (!(s->open || (s->closed && moves(s)))) {
    return;
  }
  if (s->state != MGD_SPILLING) {
    EXPECT_CODE(mgd_evict_end(x->m, &s->h, -1, NULL, &left), MGD_E_INVALID);
  }
  if (s->state != MGD_RESTORING) {
    EXPECT_CODE(mgd_restore_end(x->m, &s->h, MGD_RESIDENT, &left), MGD_E_INVALID);
  }
  if (moves(s)) {
    end_move(x, s);
    s->filed = ++x->tick;
  }
}

/* ---- settings */

static void step_settings(struct model *x) {
  set_link(x, (int)roll(x, DEVICES), (int)roll(x, DEVICES), roll(x, 4));
  x->limit = roll(x, 8) ? roll(x, 120) : INT64_MAX / 2;
  EXPECT_OK(mgd_host_set_limit(x->m, x->limit));
  x->draining = roll(x, 3) == 0;
  x->veto = roll(x, 3) == 0;
  EXPECT_OK(mgd_evict_veto(x->m, x->veto ? may_leave : NULL));
  x->largest_first = roll(x, 2);
  EXPECT_OK(mgd_order_set_policy(x->m, x->largest_first ? largest : mgd_policy_lru, NULL));
}

static void step(struct model *x) {
  static void (*const steps[])(struct model *) = {step_open, step_open, step_open, step_close, step_use, step_put, step_put, step_put, step_write, step_resize, step_end,
                                                  step_pin, step_evict, step_evict_one, step_spare, step_evict, step_acquire, step_acquire, step_acquire, step_end, step_end, step_end, step_end};
  int64_t which = roll(x, 23 * 50);
  if (which < 20) {
    (which < 2 ? step_evict_random : which < 8 ? step_settings : step_advise)(x);
  } else if (which < 30) {
    step_arrive(x);
  }
  bool is_opening = which % 23 < 3;
  (x->draining && is_opening ? step_close : steps[which % 23])(x); /* now and then devices get empty */
}

static void finish(struct model *x) {
  for (int i = 0; i < SLOTS; i++) {
    struct storage *s = &x->s[i];
    while ((s->open || s->closed) && moves(s)) {
      end_move(x, s);
    }
    if (s->open) {
      bool moving;
      void *memory;
      EXPECT_OK(mgd_handle_close(x->m, &s->h, &moving, &memory));
    }
    s->open = s->closed = false;
  }
  EXPECT_INT(host_bytes(x), 0);
  expect_all(x);
  EXPECT(is_empty(x->m));
}

/* Each answer and action, and each unlucky case, has been met. */
static void everything_happened(const struct model *x, int64_t steps) {
  printf("  answers:");
  for (int i = 0; i < 5; i++) {
    printf(" %" PRId64, x->answers[i]);
    EXPECT(steps < 100000 || x->answers[i] > steps / 1000);
  }
  printf("; actions:");
  for (int i = 0; i < 7; i++) {
    printf(" %" PRId64, x->kinds[i]);
    EXPECT(steps < 100000 || x->kinds[i] > steps / 2000);
  }
  printf("; closed on the way %" PRId64 ", failed moves %" PRId64 ", no memory %" PRId64 ", peers left alone %" PRId64 ", spares made %" PRId64 "\n", x->closed_moving, x->failed,
         x->lost_memory, x->refused_guests, x->kept);
  EXPECT(
      steps < 100000 ||
      (x->closed_moving > steps / 1000 && x->failed > steps / 1000 && x->refused_guests > 0 && x->kept > steps / 1000));
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_random_handle: seed %" PRIu64 ", %" PRId64 " steps\n", seed, steps);
  (void)fflush(stdout);
  struct model x = {.m = new_machine(DEVICES - 1, 100), .random = seed};
  model = &x;
  for (int i = 0; i < DEVICES * DEVICES; i++) {
    set_link(&x, i / DEVICES, i % DEVICES, 3);
  }
  step_settings(&x);
  for (int64_t i = 0; i < steps; i++) {
    step(&x);
    expect_all(&x);
    expect_residency(&x, (int)(i % DEVICES));
  }
  everything_happened(&x, steps);
  finish(&x);
  mgd_machine_destroy(x.m);
  return 0;
}
