/* step.c: a device's operators are logged until they repeat, and then the plan for them is followed.
 *
 * Following: the operator that comes is compared with the one that is expected. Some operators more or fewer than
 * expected do no harm. When too many are strange the plan is lost, and the log begins anew; the plan is kept meanwhile
 * and taken up where the program comes back to it. Which bytes leave for want of room is evict.c's, with a plan and
 * without: a plan does before need what would otherwise be done at need.
 */
#include "arithmetic.h"
#include "internal_step.h"
#include "testing.h"

#define STRANGE 6  /* operators in a row that are not in the plan, before it is lost */
#define MISSING 6  /* operators of the plan that may be left out at once */
#define MARGIN 128 /* the part of the room that a plan leaves free at first, and that more is taken by */
#define PLANS 12   /* plans for one log that each leave more free than the one before */
#define LOOK 8     /* after so many periods it is asked again how much room there is */
#define CHANGED 32 /* the part of the room by which it must have changed to plan again */
#define QUIET 4096 /* operators without anything leaving, before a device logs no more */

void mgd_step_free(struct mgd_step *s) {
  if (s) {
    mgd_step_log_free(&s->log);
    s->learned.roles = 0; /* their handles may be gone */
    mgd_step_learn_forget_locked(&s->learned);
    mgd_alloc_free(s);
  }
}

static void forget_step(struct mgd_device *d) {
  if (d->step && !d->step->planning) {
    mgd_step_log_clear_locked(&d->step->log);
    mgd_step_learn_forget_locked(&d->step->learned);
    mgd_step_free(d->step);
    d->step = NULL;
  }
}

/* Other room asks for another plan, if for any. */
void mgd_step_room_changed_locked(struct mgd_machine *m, int device) { forget_step(&m->devices[device]); }

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
  }
  return mgd_state_leave(m, code);
}

/* ---- what the storages of a device tell */

static struct mgd_step *step_of(const struct mgd_machine *m, const struct mgd_handle *h) {
  return m->devices[h->home].step;
}

static void leave_role(struct mgd_step *s, struct mgd_handle *h) {
  if (h->role >= 0) {
    s->learned.role[h->role].handle = NULL;
    h->role = -1;
  }
}

static void take_role(struct mgd_step *s, struct mgd_handle *h, int32_t role) {
  if (s->learned.role[role].handle) {
    leave_role(s, s->learned.role[role].handle);
  }
  leave_role(s, h);
  s->learned.role[role].handle = h;
  h->role = role;
}

/* The next result of the operator that was followed last. */
static void follow_result(struct mgd_step *s, struct mgd_handle *h) {
  const struct mgd_step_learned *l = &s->learned;
  const int32_t o = (s->at + l->operators - 1) % l->operators, place = l->kinds[o].first_made + s->results;
  if (s->strange == 0 && place < l->kinds[o + 1].first_made) {
    s->results++;
    if (l->role[l->made_roles[place]].bytes == h->bytes) {
      take_role(s, h, l->made_roles[place]);
    }
  }
}

void mgd_step_made_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s && s->follows) {
    follow_result(s, h);
  } else if (s) {
    mgd_step_log_made_locked(m, &s->log, h);
  }
}

void mgd_step_died_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_step *s = step_of(m, h);
  if (s) {
    mgd_step_log_died_locked(&s->log, h);
    leave_role(s, h);
  }
}

void mgd_step_resized_locked(struct mgd_machine *m, const struct mgd_handle *h) {
  if (step_of(m, h)) {
    mgd_step_log_resized_locked(&step_of(m, h)->log, h);
  }
}

/* ---- what operator it is */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u; /* the golden ratio, as a fraction of 2^64 */
  return hash ^ (hash >> 29);
}

static uint64_t kind_of_call(const struct mgd_step_call *call) {
  uint64_t kind = mix(call->n, (uint64_t)(uintptr_t)call->name);
  for (size_t i = 0; i < call->n; i++) {
    kind = mix(kind, (uint64_t)call->uses[i].handle->bytes * 2 + call->uses[i].written);
  }
  return kind;
}

static void remember(struct mgd_step *s, uint64_t kind) {
  s->recent[s->calls++ % MGD_STEP_WINDOW] = kind;
  uint64_t window = 0;
  for (uint64_t i = 0; i < MGD_STEP_WINDOW; i++) {
    window = mix(window, s->recent[(s->calls + i) % MGD_STEP_WINDOW]);
  }
  s->window = window;
}

/* Whether the call is the operator o of the plan: the same kind, on the same storages as far as these live on. */
static bool is_operator(const struct mgd_step_learned *l, int32_t o, const struct mgd_step_call *call, uint64_t kind) {
  const struct mgd_step_kind *k = &l->kinds[o];
  bool same = k->kind == kind && (size_t)(k[1].first_use - k->first_use) == call->n;
  for (size_t i = 0; same && i < call->n; i++) {
    const int32_t r = l->use_roles[k->first_use + (int32_t)i];
    same = r < 0 || !l->role[r].lasting || l->role[r].handle == call->uses[i].handle;
  }
  return same;
}

/* ---- what is done before an operator */

/* Uses of a storage by this call, which may read it while it is copied. */
static uint32_t uses_by(const struct mgd_step_call *call, const struct mgd_handle *h) {
  uint32_t uses = 0;
  for (size_t i = 0; i < call->n; i++) {
    uses += call->uses[i].handle == h;
  }
  return uses;
}

static bool writes(const struct mgd_step_call *call, const struct mgd_handle *h) {
  bool written = false;
  for (size_t i = 0; i < call->n; i++) {
    written = written || (call->uses[i].handle == h && call->uses[i].written);
  }
  return written;
}

/* Whether the storage is to leave at once, so that its copy and its departure are one action. */
static bool leaves_at_once(const struct mgd_plan *p, int32_t write, int32_t end) {
  int32_t i = write + 1;
  while (i < end && (p->action[i].kind != MGD_PLAN_LEAVE || p->action[i].storage != p->action[write].storage)) {
    i++;
  }
  return i < end;
}

/* Before the operator o; what does not fit into `actions` is left out. */
static void do_ahead(struct mgd_machine *m, const struct mgd_step_learned *l, int32_t o,
                     const struct mgd_step_call *call, struct mgd_action *actions, size_t *n, size_t size) {
  const struct mgd_plan *p = l->plan;
  const int32_t end = p->first_action[o + 1];
  for (int32_t i = p->first_action[o]; i < end && *n + 2 < size; i++) {
    struct mgd_handle *h = l->role[p->action[i].storage].handle;
    if (!h) {
      continue;
    }
    if (p->action[i].kind == MGD_PLAN_WRITE) {
      (void)(!writes(call, h) && !leaves_at_once(p, i, end) &&
             mgd_evict_spare_locked(m, h, uses_by(call, h), actions, n, size));
    } else if (p->action[i].kind == MGD_PLAN_LEAVE) {
      (void)mgd_evict_leave_locked(m, h, actions, n, size);
    } else {
      *n += mgd_restore_fetch_locked(m, h, &actions[*n]);
    }
  }
}

/* ---- following */

/* How many operators of the plan were left out before this one, or -1. */
static int32_t find_ahead(const struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind) {
  const struct mgd_step_learned *l = &s->learned;
  for (int32_t j = 0; j <= MISSING && j < l->operators; j++) {
    if (is_operator(l, (s->at + j) % l->operators, call, kind)) {
      return j;
    }
  }
  return -1;
}

static void lose(struct mgd_step *s) {
  s->follows = false;
  s->lost++;
  s->strange = 0;
  begin_anew(s);
}

/* To the next operator. True: a period has ended, and it is to be asked whether the plan is still the best. Bytes had
 * to leave all the same, so that it is to leave more free; or that was not asked for long. The first period begins with
 * what was where before, so it does not count. */
static bool go_on(struct mgd_step *s, int64_t pressed) {
  s->results = 0;
  if (++s->at < s->learned.operators) {
    return false;
  }
  s->at = 0;
  s->tight = pressed > s->pressed && s->laps > 0 && s->plans < PLANS;
  s->laps++;
  s->pressed = pressed;
  return !s->planning && (s->tight || s->laps % LOOK == 0);
}

static bool follow(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind,
                   int64_t pressed, struct mgd_action *actions, size_t *n, size_t size) {
  const int32_t left_out = find_ahead(s, call, kind);
  if (left_out < 0) {
    if (++s->strange > STRANGE) {
      lose(s);
    }
    return false;
  }
  bool wants = false;
  s->strange = 0;
  for (int32_t j = 0; j <= left_out; j++) {
    do_ahead(m, &s->learned, s->at, call, actions, n, size);
    wants = go_on(s, pressed) || wants;
  }
  return wants;
}

/* ---- logging */

/* The place in the plan behind which the program is, by its last operators; -1. */
static int32_t place_in_plan(const struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind) {
  const struct mgd_step_learned *l = &s->learned;
  int32_t o = l->plan ? l->buckets[s->window % (uint64_t)l->operators] : -1;
  while (o >= 0 && (l->kinds[o].window != s->window || !is_operator(l, o, call, kind))) {
    o = l->kinds[o].next;
  }
  return o;
}

static bool note(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind) {
  const int32_t place = place_in_plan(s, call, kind);
  if (place >= 0) {
    begin_anew(s);
    s->follows = true;
    s->at = (place + 1) % s->learned.operators;
    s->results = 0;
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
  return s->quiet > QUIET;
}

int mgd_step_operator(struct mgd_machine *m, int device, const struct mgd_step_call *call, struct mgd_action *actions,
                      size_t *n, bool *plans) {
  if (*n < MGD_STEP_ACTIONS) {
    return MGD_E_INVALID;
  }
  const size_t size = *n;
  *n = 0;
  *plans = false;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  if (s && m->learns) {
    const uint64_t kind = kind_of_call(call);
    const int64_t pressed = m->devices[device].storages.pressed;
    remember(s, kind);
    *plans = s->follows ? follow(m, s, call, kind, pressed, actions, n, size) : note(m, s, call, kind);
    if (is_quiet(s, pressed)) {
      forget_step(&m->devices[device]);
    }
  }
  return mgd_state_leave(m, s && m->learns ? MGD_OK : MGD_E_ABSENT);
}

/* ---- the plan */

static int64_t room_for_plan(const struct mgd_machine *m, int device, int64_t free, int64_t margin) {
  const struct mgd_storages *s = &m->devices[device].storages;
  const mgd_wide room = s->ordered_bytes + free - margin;
  return room < 0 ? 0 : room < INT64_MAX ? (int64_t)room : INT64_MAX;
}

/* Without the mutex: what is read stays as it is while `planning` is set. */
static int plan_of(struct mgd_machine *m, int device, struct mgd_step *s, const struct mgd_step_learned *l,
                   int64_t room, struct mgd_plan **plan) {
  const struct mgd_plan_step step = {.operators = l->operators,
                                     .storages = l->roles,
                                     .ns = l->ns,
                                     .first_use = l->plan_first,
                                     .uses = l->plan_uses,
                                     .storage = l->plan_storages};
  const struct mgd_plan_machine machine = {
      .room = room, .in = m->links[MGD_HOST][device], .out = m->links[device][MGD_HOST]};
  s->planning = true;
  int code = mgd_state_leave(m, MGD_OK);
  const int planned = mgd_plan_make(&step, &machine, 0, plan);
  if (planned == MGD_OK) {
    (void)mgd_plan_early_write(&step, *plan, 0); /* without memory the plan is good as it is */
  }
  mgd_state_enter(m);
  s->planning = false;
  return code != MGD_OK ? code : planned;
}

/* The operator that is under way began the period anew: it is the first one of the plan. */
static void take_over(struct mgd_step *s, struct mgd_step_learned *l, int64_t pressed) {
  mgd_step_learn_forget_locked(&s->learned);
  s->learned = *l;
  mgd_step_learn_bind_locked(s);
  mgd_step_log_clear_locked(&s->log);
  s->follows = true;
  s->at = 1 % l->operators;
  s->results = s->strange = 0;
  s->laps = s->plans = 0;
  s->pressed = pressed;
}

/* Plans the same step again, with less room or with what is there now, if that is another. */
static int plan_again(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free) {
  struct mgd_plan *plan = NULL;
  s->margin += s->tight ? room_for_plan(m, device, free, 0) / MARGIN : 0;
  const int64_t room = room_for_plan(m, device, free, s->margin);
  const int64_t change = room > s->room ? room - s->room : s->room - room;
  if (!s->tight && change < s->room / CHANGED) {
    return MGD_OK;
  }
  s->tight = false;
  const int code = plan_of(m, device, s, &s->learned, room, &plan);
  s->plans++;
  if (code == MGD_OK) {
    mgd_plan_free(s->learned.plan);
    s->learned.plan = plan;
    s->room = room;
  }
  return code;
}

static int plan_first(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free) {
  struct mgd_step_learned l;
  int code = mgd_step_learn_from_log_locked(m, s, &l);
  if (code != MGD_OK) {
    s->plan_at = s->log.count + s->log.period / 32 + 1; /* now and then only, since it looks at the whole period */
    return code;
  }
  s->margin = room_for_plan(m, device, free, 0) / MARGIN;
  const int64_t room = room_for_plan(m, device, free, s->margin);
  const uint64_t generation = s->generation;
  const int32_t count = s->log.count;
  code = plan_of(m, device, s, &l, room, &l.plan);
  const bool stands = s->generation == generation && s->log.count == count;
  if (code != MGD_OK || !stands) {
    s->hopeless = s->hopeless || stands;
    mgd_step_learn_forget_locked(&l);
    return code != MGD_OK ? code : MGD_E_ABSENT;
  }
  take_over(s, &l, m->devices[device].storages.pressed);
  s->room = room;
  s->plans = 1;
  return MGD_OK;
}

int mgd_step_plan(struct mgd_machine *m, int device, int64_t free) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  if (s && s->planning) {
    code = MGD_E_ABSENT;
  } else if (s && s->follows) {
    code = plan_again(m, device, s, free);
  } else if (s && s->log.period > 0 && s->log.count > s->log.period) {
    code = plan_first(m, device, s, free);
  }
  return mgd_state_leave(m, code);
}

int mgd_step_lie(struct mgd_machine *m, int device, uint64_t seed) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_state_knows_device_locked(m, device) ? m->devices[device].step : NULL;
  struct mgd_plan *p = s && !s->planning ? s->learned.plan : NULL;
  for (int32_t i = 0; p && i < p->actions; i++) {
    seed = mix(seed, (uint64_t)i + 1);
    p->action[i].storage = (int32_t)(seed % (uint64_t)s->learned.roles);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_step_read(struct mgd_machine *m, int device, struct mgd_step_state *out) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    const struct mgd_step *s = m->devices[device].step;
    const struct mgd_plan *p = s ? s->learned.plan : NULL;
    *out = (struct mgd_step_state){.logs = s && !s->follows,
                                   .follows = s && s->follows,
                                   .logged = s ? s->log.count : 0,
                                   .operators = s ? s->learned.operators : 0,
                                   .at = s ? s->at : 0,
                                   .plans = s ? s->plans : 0,
                                   .laps = s ? s->laps : 0,
                                   .lost = s ? s->lost : 0,
                                   .room = s ? s->room : 0,
                                   .predicted = p ? p->ns : 0,
                                   .ideal = p ? p->ideal_ns : 0};
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}
