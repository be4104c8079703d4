/* step.c: a device's operators are logged until they repeat, and then the plan for them is followed.
 *
 * This file decides when operators are logged, when a period is planned and which plan is followed. The log goes on
 * while a plan is followed, until it is full: the plan may be for a part of a longer step, and only the log shows the
 * longer one. When a plan is lost the log stays, and so do the steps that were learned; a plan is taken up again when
 * the program comes back to its step. evict.c decides which bytes leave for want of room, with a plan and without: a
 * plan only moves ahead of need what would otherwise be moved at need.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"
#include "core/testing.h"

#include <math.h>

#define QUIET 4096 /* operators without an eviction, after which a device stops logging */
#define QUIET_LOADED (16 * QUIET) /* the limit while a step from a file has not been followed for two periods yet */

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

/* Publishes whether the device logs; mgd_step_logs() reads it without a lock. */
static void tell_whether_it_logs(struct mgd_machine *m, int device) {
  const struct mgd_step *s = m->devices[device].step;
  const bool logs = s && !s->forgotten && (!s->follows || s->finds);
  const uint64_t bit = UINT64_C(1) << device;
  __atomic_store_n(&m->logging, logs ? m->logging | bit : m->logging & ~bit, __ATOMIC_RELAXED);
}

void mgd_step_forget_locked(struct mgd_machine *m, int device) {
  struct mgd_step *s = m->devices[device].step;
  if (s && s->planning) {
    s->forgotten = true; /* the thread that plans reads it, and forgets it at the end */
  } else if (s) {
    mgd_step_log_clear_locked(&s->log);
    for (int i = 0; i < MGD_STEP_PLANS; i++) { mgd_step_learn_forget_locked(&s->known[i]); }
    mgd_step_free(s);
    m->devices[device].step = NULL;
  }
  tell_whether_it_logs(m, device);
}

/* Returns the step of the device, or NULL: there is none, or it is to be forgotten. No device has one while learning is
 * off. */
struct mgd_step *mgd_step_of_locked(const struct mgd_machine *m, int device) {
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  return s && !s->forgotten ? s : NULL;
}

bool mgd_step_logs(const struct mgd_machine *m, int device) {
  return __atomic_load_n(&m->logging, __ATOMIC_RELAXED) >> device & 1;
}

static void begin_anew(struct mgd_step *s) {
  mgd_step_log_clear_locked(&s->log);
  s->generation++;
  s->plan_at = 0;
}

int mgd_step_learn(struct mgd_machine *m, bool on) {
  mgd_state_enter(m);
  m->learns = on;
  for (int id = 1; id < m->count && !on; id++) { mgd_step_forget_locked(m, id); }
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

/* ---- events of a device's storages */

static struct mgd_step *step_of(const struct mgd_machine *m, const struct mgd_handle *h) {
  return m->devices[h->home].step;
}

void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s && s->follows) { mgd_step_follow_result_locked(s, h); }
  if (s) { mgd_step_log_made_locked(m, &s->log, h); }
}

/* Stops following the plan. The plan is kept; mgd_step_died_locked() forgets it when its last lasting storage dies. */
static void lose(struct mgd_step *s) {
  struct mgd_step_learned *l = &s->known[s->which];
  if (l->loaded) { mgd_step_follow_unbind_locked(l); /* the program may have been at another place */ }
  s->doubts = l->laps > 0 ? 0 : s->doubts < MGD_STEP_DOUBTS ? s->doubts + 1 : s->doubts;
  s->follows = s->sure = false;
  s->ahead.operators = 0;
  s->lost++;
  s->strange = 0;
}

/* A plan that another thread reads is not freed here; choose_slot() treats its place as free all the same. */
void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s) { mgd_step_log_died_locked(&s->log, h); }
  for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
    if (mgd_step_follow_leave_locked(&s->known[i], h) && !s->planning) {
      if (s->follows && i == s->which) { lose(s); }
      mgd_step_learn_forget_locked(&s->known[i]);
    }
  }
}

/* Forgets the steps if one of them has the storage as a lasting one. A storage that is made anew in each step has no
 * advice when it is made, so no plan depends on it. */
void mgd_step_stays_locked(struct mgd_machine *m, const struct mgd_handle *h) {
  const struct mgd_step *s = step_of(m, h);
  bool planned = false;
  for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
    planned = planned || (h->role[i] >= 0 && s->known[i].role[h->role[i]].lasting);
  }
  if (planned) { mgd_step_forget_locked(m, h->home); }
}

void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h) {
  if (step_of(m, h)) {
    mgd_step_log_resized_locked(&step_of(m, h)->log, h);
  }
}

/* ---- kinds of operators */

/* Returns a hash of the text, so that it is the same in another process; it is cached by the pointer. */
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

/* Logs the operator. True: a period has been found that is to be planned. While a plan is followed, only a longer
 * period counts. More operators must repeat if a plan is known, since turns of its step and other steps look like a
 * period sooner; the whole period must repeat while plans are suspended because they were not worth it. */
static bool note(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind,
                 int64_t known_ns) {
  const struct mgd_step_log *log = &s->log;
  const int32_t doubts = s->trial.away > 0 ? MGD_STEP_CERTAIN : s->doubts + mgd_step_is_known(&s->known[s->which]);
  if (!mgd_step_log_add_locked(m, s, call, kind, known_ns)) {
    begin_anew(s);
    s->sure = s->follows;
    return false;
  }
  return mgd_step_log_repeats_locked(&s->log, doubts) && log->count >= s->plan_at && !s->planning &&
      (!s->follows || log->period > s->known[s->which].operators);
}

/* True: nothing had to leave for many operators, and no plan was followed that may have prevented it. */
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
  bool again = false;
  remember(s, kind);
  if (s->sure) {
    s->trial.length = 0; /* the steps are alike: nothing is measured until the plan is lost */
  } else {
    mgd_step_trial_count_locked(s, call, m->devices[device].storages.copied);
  }
  if (s->follows && !mgd_step_follow_call_locked(m, s, call, kind, pressed, actions, n, size, &again)) { lose(s); }
  s->finds = !s->sure && note(m, s, call, kind, mgd_step_follow_ns_locked(s));
  if (!s->follows && s->trial.away == 0 && mgd_step_follow_from_here_locked(s, call, kind)) {
    s->pressed = pressed;
    s->finds = s->finds && s->log.period > s->known[s->which].operators;
  }
  return again || s->finds;
}

/* For tests: falsifies what is recorded. Times are scaled by a factor from 0.5 to 2, with a noise of a fifth. While a
 * plan is followed, one operator in 200 is hidden, and as often one that does not exist is added. False: this operator
 * is hidden. */
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
  struct mgd_step *s = mgd_step_of_locked(m, device);
  if (s) {
    if (!MANAGED_TEST_HOOKS || m->disturbed == 0 || disturb(m, device, s, &seen, plans)) {
      *plans = follow_or_note(m, device, s, &seen, actions, n, size) || *plans;
    }
    if (is_quiet(s, m->devices[device].storages.pressed)) { mgd_step_forget_locked(m, device); }
    tell_whether_it_logs(m, device);
  }
  return mgd_state_leave(m, s ? MGD_OK : MGD_E_ABSENT);
}

int mgd_step_rest(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                  size_t *n) {
  if (*n < MGD_STEP_ACTIONS) {
    return MGD_E_INVALID;
  }
  const size_t size = *n;
  *n = 0;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
  if (s) { mgd_step_follow_ahead_locked(m, s, call, actions, n, size); }
  return mgd_state_leave(m, MGD_OK);
}

/* ---- places for plans */

/* Returns an empty place, or that of the step that was taken up longest ago. */
static int32_t choose_slot(const struct mgd_step *s) {
  int32_t oldest = 0;
  for (int32_t i = 0; i < MGD_STEP_PLANS; i++) {
    if (!mgd_step_is_known(&s->known[i])) { return i; }
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

/* ---- for tests */

#if MANAGED_TEST_HOOKS
int mgd_step_lie(struct mgd_machine *m, int device, uint64_t seed) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
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
#endif

/* ---- the state for readers */

static const struct mgd_plan *followed(const struct mgd_machine *m, int device) {
  const struct mgd_step *s = mgd_step_of_locked(m, device);
  return s && s->follows ? s->known[s->which].plan : NULL;
}

/* Returns how long the device's plan takes beside the plans that other devices on the same bus follow. If all of them
 * together ask for more than the bus carries, each is slowed down alike. */
static int64_t beside_others(const struct mgd_machine *m, int device, const struct mgd_plan *own) {
  double most = 1;
  for (int i = 0; i < m->buses.count; i++) {
    const mgd_mask devices = m->buses.devices[i];
    if (!(devices >> device & 1)) { continue; }
    double in = 0, out = 0; /* bytes per ns */
    for (int d = 0; d < m->count; d++) {
      const struct mgd_plan *plan = d == device ? own : devices >> d & 1 ? followed(m, d) : NULL;
      if (plan && plan->ns > 0) {
        in += (double)plan->bytes_in / (double)plan->ns;
        out += (double)plan->bytes_out / (double)plan->ns;
      }
    }
    most = fmax(most, fmax(in, out) / m->buses.bytes_per_ns[i]);
  }
  return (int64_t)fmin((double)own->ns * most, MGD_INT64_TOP);
}

int mgd_step_read(struct mgd_machine *m, int device, struct mgd_step_state *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    static const struct mgd_step_learned none;
    const struct mgd_step *s = mgd_step_of_locked(m, device);
    const struct mgd_step_learned *l = s ? &s->known[s->which] : &none;
    int32_t known = 0;
    for (int i = 0; s && i < MGD_STEP_PLANS; i++) { known += mgd_step_is_known(&s->known[i]); }
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
                                   .predicted = l->plan ? beside_others(m, device, l->plan) : 0,
                                   .ideal = l->plan ? l->plan->ideal_ns : 0,
                                   .bytes_in = l->plan ? l->plan->bytes_in : 0,
                                   .bytes_out = l->plan ? l->plan->bytes_out : 0};
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
