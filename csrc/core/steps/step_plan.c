/* step_plan.c: makes the plan of a step, for the room that there is.
 *
 * This file plans a period of the log, and plans a step again when its room was not enough or has changed. Most of the
 * work is done without the mutex. Which plan is followed is not decided here.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#define MARGIN 1024 /* the part of the room that a plan leaves free at first */
#define TAKEN 128   /* the part by which the margin grows when it was not enough */
#define LEAP 16     /* the part by which the room shrinks if there are pieces and no room has proved to be enough */
#define MISSED 32 /* the part by which it grows at most if there is a layout */
#define CHANGED 32  /* the part of the room by which it must have changed to plan again */
#define PATIENCE 16 /* periods after which planning is tried again when it failed */

static int64_t room_for_plan(const struct mgd_machine *m, int device, int64_t free, int64_t margin) {
  const struct mgd_storages *s = &m->devices[device].storages;
  const mgd_wide room = s->ordered_bytes - s->last_bytes + free - margin;
  return room < 0 ? 0 : room < INT64_MAX ? (int64_t)room : INT64_MAX;
}

struct mgd_plan_step mgd_step_plan_input(const struct mgd_step_learned *l) {
  return (struct mgd_plan_step){.operators = l->operators,
                                .storages = l->roles,
                                .ns = l->ns,
                                .first_use = l->plan_first,
                                .uses = l->plan_uses,
                                .storage = l->plan_storages};
}

int mgd_step_plan_of(const struct mgd_step_learned *l, const struct mgd_plan_machine *machine, struct mgd_plan **plan) {
  const struct mgd_plan_step step = mgd_step_plan_input(l);
  const int code = mgd_plan_make(&step, machine, 0, plan);
  if (code == MGD_OK) { (void)mgd_plan_early_write(&step, *plan, 0); /* without memory the plan is valid as it is */ }
  return code;
}

/* While `planning` is set, no other thread changes what is read without the mutex. */
int mgd_step_plan_leave_locked(struct mgd_machine *m, struct mgd_step *s) {
  s->planning = true;
  return mgd_state_leave(m, MGD_OK);
}

/* ABSENT: the step has been forgotten meanwhile, and the caller must not use it any more. */
int mgd_step_plan_enter(struct mgd_machine *m, int device, struct mgd_step *s) {
  mgd_state_enter(m);
  s->planning = false;
  if (!s->forgotten) { return MGD_OK; }
  s->forgotten = false;
  mgd_step_forget_locked(m, device);
  return MGD_E_ABSENT;
}

struct mgd_plan_machine mgd_step_plan_machine_locked(const struct mgd_machine *m, int device, int64_t room) {
  return (struct mgd_plan_machine){.room = room, .in = m->links[MGD_HOST][device], .out = m->links[device][MGD_HOST]};
}

/* Plans without the mutex. ABSENT: as for mgd_step_plan_enter(). */
static int plan_of(struct mgd_machine *m, int device, struct mgd_step *s, const struct mgd_step_learned *l,
                   int64_t room, struct mgd_plan **plan) {
  const struct mgd_plan_machine machine = mgd_step_plan_machine_locked(m, device, room);
  const int code = mgd_step_plan_leave_locked(m, s);
  const int planned = mgd_step_plan_of(l, &machine, plan);
  if (mgd_step_plan_enter(m, device, s) != MGD_OK) {
    mgd_plan_free(planned == MGD_OK ? *plan : NULL);
    *plan = NULL;
    return MGD_E_ABSENT;
  }
  return code != MGD_OK ? code : planned;
}

/* Follows the new plan from here. The current operator began the period anew, so it is the first one of the plan. */
static void take_over(struct mgd_step *s, struct mgd_step_learned *l, int64_t pressed) {
  s->which = l->slot = mgd_step_free_slot_locked(s);
  mgd_step_learn_bind_locked(&s->log, l);
  l->used = s->calls;
  s->known[s->which] = *l;
  s->follows = true;
  s->finds = false;
  s->ahead.operators = 0;
  s->at = 1 % l->operators;
  s->results = s->strange = 0;
  s->pressed = pressed;
}

static int64_t changed_by(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

/* Returns the room to plan the same step again with: less if bytes had to leave, or the present room if it has changed.
 *
 * Pieces are room for blocks that fit into them. How much they are worth depends on the sizes that the step asks for,
 * and is found by bisection between a room that was enough and one that was not, or the whole room. If bytes had to
 * leave although there are addresses, the first cure is a layout without places that are free ahead of copies. */
static int64_t room_again(const struct mgd_machine *m, int device, struct mgd_step_learned *l, int64_t free,
                          int64_t pieces) {
  const int64_t whole = room_for_plan(m, device, free + pieces, 0);
  const bool other = changed_by(whole, l->whole) >= l->whole / CHANGED, tight = l->missed > 0;
  if (!other && tight && l->layout && l->layout->is_early) {
    l->crowded = true;
    l->laid_out = false;
    return l->room;
  }
  if (other || (tight && pieces == 0)) {
    l->margin += tight ? mgd_max(whole / TAKEN, mgd_min(l->layout ? l->missed : 0, whole / MISSED)) : 0;
    l->whole = l->too_much = whole;
    l->enough = 0;
    return room_for_plan(m, device, free, l->margin);
  }
  if (tight) {
    const int64_t certain = room_for_plan(m, device, free, l->margin), half = (l->room - certain) / 2;
    l->too_much = l->room;
    return l->enough > 0 ? l->enough : mgd_max(0, l->room - (half > whole / LEAP ? half : whole / LEAP));
  }
  l->enough = l->room;
  const int64_t more = (l->too_much - l->room) / 2;
  return pieces > 0 && more >= whole / CHANGED && l->plans < MGD_STEP_TRIES ? l->room + more : l->room;
}

/* Addresses are for the plan that they were computed from. */
void mgd_step_plan_take_locked(struct mgd_step *s, struct mgd_step_learned *l, struct mgd_plan *plan, int64_t room) {
  mgd_plan_free(l->plan);
  mgd_plan_layout_free(l->layout);
  l->layout = NULL;
  l->laid_out = false;
  l->plan = plan;
  s->ahead.operators = 0;
  l->room = room;
  l->since = 0;
}

static int plan_again(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free, int64_t pieces) {
  struct mgd_step_learned *l = &s->known[s->which];
  struct mgd_plan *plan = NULL;
  const int64_t room = room_again(m, device, l, free, pieces);
  l->missed = 0;
  if (room == l->room) { return MGD_OK; }
  const int code = plan_of(m, device, s, l, room, &plan);
  if (code == MGD_E_ABSENT) { return code; }
  l->plans++;
  if (code == MGD_OK) {
    mgd_step_plan_take_locked(s, l, plan, room);
  } else {
    mgd_plan_free(plan);
  }
  return code;
}

/* Whether bytes had to leave in the period that was found. */
static bool was_tight(const struct mgd_step *s) {
  return s->pressed_before != s->log.operators[s->log.count - 1 - s->log.period].pressed;
}

/* Whether the plan that was made of the log is to be followed; `code` is what making it returned. */
static int check_plan(struct mgd_step *s, const struct mgd_step_learned *l, bool stands, int code) {
  if (!stands) { return MGD_E_ABSENT; /* another thread has changed the log meanwhile */ }
  if (code != MGD_OK) {
    s->plan_at = s->log.count + PATIENCE * s->log.period;
  } else if (l->plan->actions == 0 && !was_tight(s)) {
    s->plan_at = s->log.count + s->log.period; /* a loop within the step that has room enough, and nothing to plan */
    code = MGD_E_WAIT;
  }
  return code;
}

/* Takes what operators have for themselves out of the step. False: they have nothing. What they had one after the other
 * counts as if it had been there at once, unless it had one address, so it may be more than the device has. */
static bool forget_own(struct mgd_step_learned *l) {
  bool had = false;
  for (int32_t r = 0; r < l->roles; r++) {
    if (l->role[r].own) { l->plan_storages[r].bytes = l->role[r].bytes = 0; }
    had = had || l->role[r].own;
  }
  return had;
}

static int plan_first(struct mgd_machine *m, int device, struct mgd_step *s, int64_t free, int64_t pieces,
                      const struct mgd_step_clock *clock) {
  struct mgd_step_learned l;
  int code = mgd_step_learn_from_log_locked(m, s, clock, &l);
  if (code != MGD_OK) {
    s->plan_at = s->log.count + s->log.period / 32 + 1; /* not for each operator: a try reads the whole period */
    mgd_step_log_look_again_locked(&s->log);
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
  if (code == MGD_E_NO_ROOM && forget_own(&l)) { code = plan_of(m, device, s, &l, l.room, &l.plan); }
  if (code != MGD_E_ABSENT) { code = check_plan(s, &l, s->generation == generation && s->log.count == count, code); }
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
  struct mgd_step *s = mgd_step_of_locked(m, device);
  if (s && !s->planning && s->finds) {
    code = plan_first(m, device, s, free, pieces, clock);
  } else if (s && !s->planning && s->follows) {
    code = plan_again(m, device, s, free, pieces);
  }
  return mgd_state_leave(m, code);
}
