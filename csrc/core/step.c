/* step.c: a device's operators are logged until they repeat, and then the plan for them is followed.
 *
 * Says which of both is done, and plans. When a plan is lost the log begins anew; the steps that were learned are kept,
 * some of them, and taken up where the program comes back to one. Which bytes leave for want of room is evict.c's, with
 * a plan and without: a plan does before need what would otherwise be done at need.
 */
#include "arithmetic.h"
#include "internal_step.h"
#include "testing.h"

#include <math.h>

#define MARGIN 1024 /* the part of the room that a plan leaves free at first */
#define TAKEN 128   /* and that is taken more where it was not enough */
#define LEAP 16     /* the same where there are pieces and no room has proved to be enough */
#define CHANGED 32 /* the part of the room by which it must have changed to plan again */
#define QUIET 4096 /* operators without anything leaving, before a device logs no more */
#define QUIET_LOADED (16 * QUIET) /* the same while a step from a file was not met yet */

void mgd_step_free(struct mgd_step *s) {
  if (s) {
    mgd_step_log_free(&s->log);
    for (int i = 0; i < MGD_STEP_PLANS; i++) {
      s->known[i].roles = 0; /* their handles may be gone */
      mgd_step_learn_forget_locked(&s->known[i]);
    }
    mgd_alloc_free(s);
  }
}

static void forget_step(struct mgd_device *d) {
  if (d->step && !d->step->planning) {
    mgd_step_log_clear_locked(&d->step->log);
    for (int i = 0; i < MGD_STEP_PLANS; i++) {
      mgd_step_learn_forget_locked(&d->step->known[i]);
    }
    mgd_step_free(d->step);
    d->step = NULL;
  }
}

/* Other room asks for another plan, if for any. */
void mgd_step_room_changed_locked(struct mgd_machine *m, int device) { forget_step(&m->devices[device]); }

/* Who asks takes no lock. */
static void tell_whether_it_logs(struct mgd_machine *m, int device) {
  const struct mgd_step *s = m->devices[device].step;
  const uint64_t bit = UINT64_C(1) << device;
  __atomic_store_n(&m->logging, s && !s->follows ? m->logging | bit : m->logging & ~bit, __ATOMIC_RELAXED);
}

bool mgd_step_logs(const struct mgd_machine *m, int device) {
  return __atomic_load_n(&m->logging, __ATOMIC_RELAXED) >> device & 1;
}

static void begin_anew(struct mgd_step *s) {
  mgd_step_log_clear_locked(&s->log);
  s->generation++;
  s->plan_at = 0;
  s->hopeless = false;
}

int mgd_step_learn(struct mgd_machine *m, bool on) {
  mgd_state_enter(m);
  m->learns = on;
  for (int id = 1; id < m->count && !on; id++) {
    forget_step(&m->devices[id]);
  }
  return mgd_state_leave(m, MGD_OK);
}

int mgd_step_begin(struct mgd_machine *m, int device) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (device != MGD_HOST && mgd_state_knows_device_locked(m, device)) {
    struct mgd_step **s = &m->devices[device].step;
    if (!*s && m->learns) {
      *s = mgd_alloc_new(&m->alloc, 1, sizeof **s);
    }
    code = *s || !m->learns ? MGD_OK : MGD_E_NOMEM;
    tell_whether_it_logs(m, device);
  }
  return mgd_state_leave(m, code);
}

/* ---- what the storages of a device tell */

static struct mgd_step *step_of(const struct mgd_machine *m, const struct mgd_handle *h) {
  return m->devices[h->home].step;
}

void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s && s->follows) {
    mgd_step_follow_result_locked(s, h);
  } else if (s) {
    mgd_step_log_made_locked(m, &s->log, h);
  }
}

void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s) {
    mgd_step_log_died_locked(&s->log, h);
    mgd_step_follow_leave_locked(s, h);
  }
}

/* Only where a learned step has it as a storage that lives on: what is made anew in each step has no advice then. */
void mgd_step_stays_locked(struct mgd_machine *m, const struct mgd_handle *h) {
  const struct mgd_step *s = step_of(m, h);
  bool planned = false;
  for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
    planned = planned || (h->role[i] >= 0 && s->known[i].role[h->role[i]].lasting);
  }
  if (planned) {
    mgd_step_room_changed_locked(m, h->home);
  }
}

void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h) {
  if (step_of(m, h)) {
    mgd_step_log_resized_locked(&step_of(m, h)->log, h);
  }
}

/* ---- what operator it is */

/* Of the text, so that it is the same in another process. */
static uint64_t hash_of_name(struct mgd_step *s, const char *name) {
  struct mgd_step_name *n = &s->names[((uintptr_t)name >> 4) % MGD_STEP_NAMES];
  if (n->name != name) {
    *n = (struct mgd_step_name){name, 0};
    for (const char *c = name; *c; c++) {
      n->hash = mgd_step_mix(n->hash, (unsigned char)*c);
    }
  }
  return n->hash;
}

static uint64_t kind_of_call(struct mgd_step *s, const struct mgd_step_call *call) {
  uint64_t kind = mgd_step_mix(call->n, call->name ? hash_of_name(s, call->name) : 0);
  for (size_t i = 0; i < call->n; i++) {
    kind = mgd_step_mix(kind, (uint64_t)call->uses[i].handle->bytes * 2 + call->uses[i].written);
  }
  return kind;
}

static void remember(struct mgd_step *s, uint64_t kind) {
  uint64_t *oldest = &s->recent[s->calls++ % MGD_STEP_WINDOW];
  s->window = mgd_step_roll(s->window, kind, *oldest);
  *oldest = kind;
}

/* ---- logging */

static void lose(struct mgd_step *s) {
  if (s->known[s->which].loaded) {
    mgd_step_follow_unbind_locked(&s->known[s->which]); /* it may have been the wrong place */
  }
  s->follows = false;
  s->ahead.operators = 0;
  s->lost++;
  s->strange = 0;
  begin_anew(s);
}

/* True: a period has been found, and is to be planned. */
static bool note(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind,
                 int64_t pressed) {
  if (mgd_step_follow_from_here_locked(s, call, kind)) {
    s->pressed = pressed;
    begin_anew(s);
    return false;
  }
  if (!mgd_step_log_add_locked(m, s, call, kind)) {
    begin_anew(s);
    return false;
  }
  return mgd_step_log_repeats_locked(&s->log) && s->log.count >= s->plan_at && !s->hopeless && !s->planning;
}

/* Nothing had to leave for long, and no plan sees to that. */
static bool is_quiet(struct mgd_step *s, int64_t pressed) {
  s->quiet = s->follows || pressed != s->pressed_before ? 0 : s->quiet + 1;
  s->pressed_before = pressed;
  bool loaded = false;
  for (int i = 0; s->quiet > QUIET && i < MGD_STEP_PLANS; i++) {
    loaded = loaded || s->known[i].loaded;
  }
  return s->quiet > (loaded ? QUIET_LOADED : QUIET);
}

/* True: a plan is to be made. */
static bool follow_or_note(struct mgd_machine *m, int device, struct mgd_step *s, const struct mgd_step_call *call,
                           struct mgd_action *actions, size_t *n, size_t size) {
  const uint64_t kind = kind_of_call(s, call);
  const int64_t pressed = m->devices[device].storages.pressed;
  bool plans = false;
  remember(s, kind);
  if (!s->follows) {
    plans = note(m, s, call, kind, pressed);
  } else if (!mgd_step_follow_call_locked(m, s, call, kind, pressed, actions, n, size, &plans)) {
    lose(s);
  }
  return plans;
}

/* For tests: what was recorded is wrong. Times are from half to twice what they were, with a fifth of noise. Where a
 * plan is followed, one operator in 200 is not seen, and as often one is seen that is none. False: this one is not. */
static bool disturb(struct mgd_machine *m, int device, struct mgd_step *s, struct mgd_step_call *call, bool *plans) {
  const uint64_t random = mgd_step_mix(m->disturbed + (uint64_t)device, s->calls + (uint64_t)s->disturbed_calls++);
  const int64_t took = call->worked - s->worked;
  const double noise = 0.8 + (double)(random >> 21 & 1023) / 2557.5;
  const double factor = noise * exp2((double)(random >> 11 & 1023) / 511.5 - 1);
  s->worked = call->worked;
  s->disturbed_worked += (int64_t)((double)took * factor);
  call->worked = s->disturbed_worked;
  if (!s->follows || random % 200 > 1) {
    return true;
  }
  if (random % 200 == 1) {
    const struct mgd_step_call none = {.name = "none", .worked = call->worked};
    size_t n = 0;
    *plans = follow_or_note(m, device, s, &none, NULL, &n, 0);
  }
  return random % 200 != 0;
}

int mgd_step_operator(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                      size_t *n, bool *plans) {
  if (*n < MGD_STEP_ACTIONS) {
    return MGD_E_INVALID;
  }
  const size_t size = *n;
  struct mgd_step_call seen = *call;
  *n = 0;
  *plans = false;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  if (s && m->learns) {
    if (m->disturbed == 0 || disturb(m, device, s, &seen, plans)) {
      *plans = follow_or_note(m, device, s, &seen, actions, n, size) || *plans;
    }
    if (is_quiet(s, m->devices[device].storages.pressed)) {
      forget_step(&m->devices[device]);
    }
    tell_whether_it_logs(m, device);
  }
  return mgd_state_leave(m, s && m->learns ? MGD_OK : MGD_E_ABSENT);
}

int mgd_step_rest(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                  size_t *n) {
  if (*n < MGD_STEP_ACTIONS) {
    return MGD_E_INVALID;
  }
  const size_t size = *n;
  *n = 0;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  if (s && m->learns) {
    mgd_step_follow_ahead_locked(m, s, call, actions, n, size);
  }
  return mgd_state_leave(m, MGD_OK);
}

/* ---- the plan */

static int64_t room_for_plan(const struct mgd_machine *m, int device, int64_t free, int64_t margin) {
  const struct mgd_storages *s = &m->devices[device].storages;
  const mgd_wide room = s->ordered_bytes - s->last_bytes + free - margin;
  return room < 0 ? 0 : room < INT64_MAX ? (int64_t)room : INT64_MAX;
}

int mgd_step_plan_of(const struct mgd_step_learned *l, const struct mgd_plan_machine *machine, struct mgd_plan **plan) {
  const struct mgd_plan_step step = {.operators = l->operators,
                                     .storages = l->roles,
                                     .ns = l->ns,
                                     .first_use = l->plan_first,
                                     .uses = l->plan_uses,
                                     .storage = l->plan_storages};
  const int code = mgd_plan_make(&step, machine, 0, plan);
  if (code == MGD_OK) {
    (void)mgd_plan_early_write(&step, *plan, 0); /* without memory the plan is good as it is */
  }
  return code;
}

/* Without the mutex: what is read stays as it is while `planning` is set. */
static int plan_of(struct mgd_machine *m, int device, struct mgd_step *s, const struct mgd_step_learned *l,
                   int64_t room, struct mgd_plan **plan) {
  const struct mgd_plan_machine machine = {
      .room = room, .in = m->links[MGD_HOST][device], .out = m->links[device][MGD_HOST]};
  s->planning = true;
  int code = mgd_state_leave(m, MGD_OK);
  const int planned = mgd_step_plan_of(l, &machine, plan);
  mgd_state_enter(m);
  s->planning = false;
  return code != MGD_OK ? code : planned;
}

/* An empty place, or that of the step that was taken up longest ago. */
static int32_t choose_slot(const struct mgd_step *s) {
  int32_t oldest = 0;
  for (int32_t i = 0; i < MGD_STEP_PLANS; i++) {
    if (!s->known[i].plan) {
      return i;
    }
    oldest = s->known[i].used < s->known[oldest].used ? i : oldest;
  }
  return oldest;
}

int32_t mgd_step_free_slot_locked(struct mgd_step *s) {
  const int32_t slot = choose_slot(s);
  if (s->follows && slot == s->which) {
    lose(s);
  }
  mgd_step_learn_forget_locked(&s->known[slot]);
  return slot;
}

/* The operator that is under way began the period anew: it is the first one of the plan. */
static void take_over(struct mgd_step *s, struct mgd_step_learned *l, int64_t pressed) {
  s->which = l->slot = choose_slot(s);
  mgd_step_learn_forget_locked(&s->known[s->which]);
  mgd_step_learn_bind_locked(&s->log, l);
  l->used = s->calls;
  s->known[s->which] = *l;
  mgd_step_log_clear_locked(&s->log);
  s->follows = true;
  s->ahead.operators = 0;
  s->at = 1 % l->operators;
  s->results = s->strange = 0;
  s->pressed = pressed;
}

static int64_t changed_by(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

/* The room to plan the same step again with: less where bytes had to leave, or what is there now, if that is another.
 *
 * Pieces are room for blocks that fit into them. How much they are worth depends on the sizes that the step asks for,
 * and is found by trying: half way from a room that was enough to one that was not, or to all of it. */
static int64_t room_again(const struct mgd_machine *m, int device, struct mgd_step_learned *l, int64_t free,
                          int64_t pieces) {
  const int64_t whole = room_for_plan(m, device, free + pieces, 0);
  const bool other = changed_by(whole, l->whole) >= l->whole / CHANGED;
  if (other || (l->tight && pieces == 0)) {
    l->margin += l->tight ? whole / TAKEN : 0;
    l->whole = l->too_much = whole;
    l->enough = 0;
    return room_for_plan(m, device, free, l->margin);
  }
  if (l->tight) {
    const int64_t certain = room_for_plan(m, device, free, l->margin), half = (l->room - certain) / 2;
    l->too_much = l->room;
    return l->enough > 0 ? l->enough : mgd_max(0, l->room - (half > whole / LEAP ? half : whole / LEAP));
  }
  l->enough = l->room;
  const int64_t more = (l->too_much - l->room) / 2;
  return pieces > 0 && more >= whole / CHANGED && l->plans < MGD_STEP_TRIES ? l->room + more : l->room;
}

static int plan_again(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free, int64_t pieces) {
  struct mgd_step_learned *l = &s->known[s->which];
  struct mgd_plan *plan = NULL;
  const int64_t room = room_again(m, device, l, free, pieces);
  l->tight = false;
  if (room == l->room) {
    return MGD_OK;
  }
  const int code = plan_of(m, device, s, l, room, &plan);
  l->plans++;
  if (code == MGD_OK) {
    mgd_plan_free(l->plan);
    l->plan = plan;
    s->ahead.operators = 0;
    l->room = room;
    l->since = 0;
  }
  return code;
}

/* Whether bytes had to leave in the period that was found. */
static bool was_tight(const struct mgd_step *s) {
  return s->pressed_before != s->log.operators[s->log.count - 1 - s->log.period].pressed;
}

static int plan_first(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free,
                      int64_t pieces, const struct mgd_step_clock *clock) {
  struct mgd_step_learned l;
  int code = mgd_step_learn_from_log_locked(m, s, clock, &l);
  if (code != MGD_OK) {
    s->plan_at = s->log.count + s->log.period / 32 + 1; /* now and then only, since it looks at the whole period */
    return code;
  }
  l.whole = l.too_much = room_for_plan(m, device, free + pieces, 0);
  l.seeks = pieces > 0;
  l.margin = l.whole / MARGIN;
  l.room = room_for_plan(m, device, free, l.margin);
  l.plans = 1;
  const uint64_t generation = s->generation;
  const int32_t count = s->log.count;
  code = plan_of(m, device, s, &l, l.room, &l.plan);
  const bool stands = s->generation == generation && s->log.count == count;
  if (code != MGD_OK) {
    s->hopeless = s->hopeless || stands;
  } else if (!stands) {
    code = MGD_E_ABSENT;
  } else if (l.plan->actions == 0 && !was_tight(s)) {
    s->plan_at = count + s->log.period; /* a loop within the step that has room enough, and nothing to plan */
    code = MGD_E_WAIT;
  }
  if (code == MGD_OK) {
    take_over(s, &l, m->devices[device].storages.pressed);
  } else {
    mgd_step_learn_forget_locked(&l);
  }
  return code;
}

int mgd_step_plan(struct mgd_machine *m, int device, int64_t free, int64_t pieces, const struct mgd_step_clock *clock) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  if (s && s->planning) {
    code = MGD_E_ABSENT;
  } else if (s && s->follows) {
    code = plan_again(m, device, s, free, pieces);
  } else if (s && s->log.period > 0 && s->log.count > s->log.period) {
    code = plan_first(m, device, s, free, pieces, clock);
  }
  return mgd_state_leave(m, code);
}

int mgd_step_lie(struct mgd_machine *m, int device, uint64_t seed) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  struct mgd_step_learned *l = s && !s->planning ? &s->known[s->which] : NULL;
  for (int32_t i = 0; l && l->plan && i < l->plan->actions; i++) {
    seed = mgd_step_mix(seed, (uint64_t)i + 1);
    l->plan->action[i].storage = (int32_t)(seed % (uint64_t)l->roles);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_step_disturb(struct mgd_machine *m, uint64_t seed) {
  mgd_state_enter(m);
  m->disturbed = seed;
  return mgd_state_leave(m, MGD_OK);
}

int mgd_step_fetch_ahead(struct mgd_machine *m, bool on) {
  mgd_state_enter(m);
  m->fetches_late = !on;
  return mgd_state_leave(m, MGD_OK);
}

int mgd_step_read(struct mgd_machine *m, int device, struct mgd_step_state *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    static const struct mgd_step_learned none;
    const struct mgd_step *s = m->devices[device].step;
    const struct mgd_step_learned *l = s ? &s->known[s->which] : &none;
    int32_t known = 0;
    for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
      known += s->known[i].plan != NULL;
    }
    *out = (struct mgd_step_state){.logs = s && !s->follows,
                                   .follows = s && s->follows,
                                   .logged = s ? s->log.count : 0,
                                   .known = known,
                                   .operators = l->operators,
                                   .at = s ? s->at : 0,
                                   .plans = l->plans,
                                   .laps = l->laps,
                                   .lost = s ? s->lost : 0,
                                   .room = l->room,
                                   .predicted = l->plan ? l->plan->ns : 0,
                                   .ideal = l->plan ? l->plan->ideal_ns : 0,
                                   .bytes_in = l->plan ? l->plan->bytes_in : 0,
                                   .bytes_out = l->plan ? l->plan->bytes_out : 0};
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
