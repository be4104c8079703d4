/* step_follow.c: where in a learned step the program is, and what the plan does before each operator.
 *
 * Each operator is compared with the expected one. A few additional or missing operators do no harm. After too many
 * strange operators the plan is lost; it is kept, and taken up again when the last operators match a place in it.
 * Several steps are kept, for programs that alternate between them. Nothing is learned here.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#define STRANGE 6 /* operators in a row that are not in the plan, before it is lost */
#define MISSING 6 /* operators of the plan that may be left out at once */
#define SETTLED 3 /* periods after which a plan has shown whether its room is enough */
#define LOOK 8    /* periods after which the available room is checked again */

/* ---- roles */

static void leave_role(struct mgd_step_learned *l, struct mgd_handle *h) {
  const int32_t r = h->role[l->slot];
  if (r >= 0) {
    l->role[r].handle = NULL;
    l->alive -= l->role[r].lasting;
    h->role[l->slot] = -1;
  }
}

static void take_role(struct mgd_step_learned *l, struct mgd_handle *h, int32_t role) {
  if (l->role[role].handle) {
    leave_role(l, l->role[role].handle);
  }
  leave_role(l, h);
  l->role[role].handle = h;
  h->role[l->slot] = role;
}

bool mgd_step_follow_leave_locked(struct mgd_step_learned *l, struct mgd_handle *h) {
  const int32_t before = l->alive;
  leave_role(l, h);
  return l->alive == 0 && before > 0;
}

/* Gives h the role of the next result of the operator that was followed last. */
void mgd_step_follow_result_locked(struct mgd_step *s, struct mgd_handle *h) {
  struct mgd_step_learned *l = &s->known[s->which];
  const int32_t o = (s->at + l->operators - 1) % l->operators, place = l->kinds[o].first_made + s->results;
  if (s->strange == 0 && place < l->kinds[o + 1].first_made) {
    s->results++;
    const struct mgd_step_role *r = &l->role[l->made_roles[place]];
    if (r->bytes == h->bytes && !r->own) { take_role(l, h, l->made_roles[place]); }
  }
}

void mgd_step_follow_unbind_locked(struct mgd_step_learned *l) {
  for (int32_t r = 0; r < l->roles; r++) {
    if (l->role[r].handle) {
      leave_role(l, l->role[r].handle);
    }
    l->alive += l->role[r].lasting && !l->role[r].unseen;
    l->role[r].unseen = l->role[r].lasting;
  }
}

/* ---- which operator it is */

/* Whether the storage has the role, or could take it because no storage has had it in this process. */
static bool has_role(const struct mgd_step_learned *l, int32_t role, const struct mgd_handle *h) {
  const struct mgd_step_role *r = &l->role[role];
  return r->handle == h || (r->unseen && h->role[l->slot] < 0 && h->bytes == r->bytes);
}

/* The call is the operator o: its storages take the roles that no storage has had yet. */
static void bind(struct mgd_step_learned *l, int32_t o, const struct mgd_step_call *call) {
  for (size_t i = 0; l->loaded && i < call->n; i++) {
    const int32_t r = l->use_roles[l->kinds[o].first_use + (int32_t)i];
    if (r >= 0 && l->role[r].unseen && has_role(l, r, call->uses[i].handle)) {
      take_role(l, call->uses[i].handle, r);
      l->role[r].unseen = false;
    }
  }
}

/* Whether the call is the operator o of the plan: it has the same kind, and uses the same lasting storages. */
static bool is_operator(const struct mgd_step_learned *l, int32_t o, const struct mgd_step_call *call, uint64_t kind) {
  const struct mgd_step_kind *k = &l->kinds[o];
  bool same = k->kind == kind && (size_t)(k[1].first_use - k->first_use) == call->n;
  for (size_t i = 0; same && i < call->n; i++) {
    const int32_t r = l->use_roles[k->first_use + (int32_t)i];
    same = r < 0 || !l->role[r].lasting || has_role(l, r, call->uses[i].handle);
  }
  return same;
}

/* Returns how many operators of the plan were left out before this one, or -1. */
static int32_t find_ahead(const struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind) {
  const struct mgd_step_learned *l = &s->known[s->which];
  for (int32_t j = 0; j <= MISSING && j < l->operators; j++) {
    if (is_operator(l, (s->at + j) % l->operators, call, kind)) {
      return j;
    }
  }
  return -1;
}

/* Whether the operator uses a lasting storage. Storages of other operators are told apart by their sizes only, so such
 * an operator matches any step of that kind. */
static bool uses_lasting(const struct mgd_step_learned *l, int32_t o) {
  bool lasting = false;
  for (int32_t i = l->kinds[o].first_use; i < l->kinds[o + 1].first_use; i++) {
    lasting = lasting || (l->use_roles[i] >= 0 && l->role[l->use_roles[i]].lasting);
  }
  return lasting;
}

/* Returns the operator of the step that the program is at, by its last operators; -1: none, or one of several that are
 * far apart. Of several near each other it returns the first, since the operators up to the right one may be left out.
 * A loaded step allows only one: no weight that tells its layers apart is known yet. */
static int32_t find_place(const struct mgd_step *s, const struct mgd_step_learned *l, const struct mgd_step_call *call,
                          uint64_t kind) {
  const int32_t reach = l->loaded ? 0 : MISSING;
  int32_t o = mgd_step_is_known(l) ? l->buckets[s->window % (uint64_t)l->operators] : -1, found = -1, last = -1;
  for (; o >= 0; o = l->kinds[o].next) {
    if (l->kinds[o].window == s->window && uses_lasting(l, o) && is_operator(l, o, call, kind)) {
      last = last < 0 ? o : last; /* a bucket begins with its last operator */
      if (o < last - reach) { return -1; }
      found = o;
    }
  }
  return found;
}

/* Whether plan a is taken up rather than b when both match: a plan that was followed for a period comes first, then the
 * longer one, since a part of a step hides the rest of it. */
static bool is_preferred(const struct mgd_step_learned *a, const struct mgd_step_learned *b) {
  return (a->laps > 0) != (b->laps > 0) ? a->laps > 0 : a->operators > b->operators;
}

bool mgd_step_follow_from_here_locked(struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind) {
  int32_t place = -1;
  for (int32_t i = 0; i < MGD_STEP_PLANS; i++) {
    const int32_t found = find_place(s, &s->known[i], call, kind);
    if (found >= 0 && (place < 0 || is_preferred(&s->known[i], &s->known[s->which]))) {
      place = found;
      s->which = i;
    }
  }
  if (place < 0) {
    return false;
  }
  struct mgd_step_learned *l = &s->known[s->which];
  l->used = s->calls;
  s->follows = true;
  s->at = (place + 1) % l->operators;
  s->results = s->strange = 0;
  bind(l, place, call);
  return true;
}

int64_t mgd_step_follow_ns_locked(const struct mgd_step *s) {
  const struct mgd_step_learned *l = &s->known[s->which];
  return s->follows && s->strange == 0 ? l->ns[(s->at + l->operators - 1) % l->operators] : -1;
}

/* ---- actions before an operator */

/* Returns how often this call uses a storage; it may read the storage while it is copied. */
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

/* Whether the storage leaves before the same operator, so that its copy and its departure are one action. */
static bool leaves_at_once(const struct mgd_plan *p, int32_t write, int32_t end) {
  int32_t i = write + 1;
  while (i < end && (p->action[i].kind != MGD_PLAN_LEAVE || p->action[i].storage != p->action[write].storage)) {
    i++;
  }
  return i < end;
}

/* Begins the action i of an operator whose actions end at `end`. */
static void begin_action(struct mgd_machine *m, const struct mgd_step_learned *l, int32_t i, int32_t end,
                         const struct mgd_step_call *call, struct mgd_action *actions, size_t *n, size_t size) {
  const struct mgd_plan *p = l->plan;
  struct mgd_handle *h = l->role[p->action[i].storage].handle;
  if (!h) {
    return;
  }
  if (p->action[i].kind == MGD_PLAN_WRITE) {
    (void)(!writes(call, h) && !leaves_at_once(p, i, end) &&
           mgd_evict_spare_locked(m, h, uses_by(call, h), actions, n, size));
  } else if (p->action[i].kind == MGD_PLAN_LEAVE) {
    (void)mgd_evict_leave_locked(m, h, actions, n, size);
  } else if (!m->fetches_late) {
    *n += mgd_restore_fetch_locked(m, h, &actions[*n]);
  }
}

/* Makes the actions before the next `operators` operators, from s->at on, the next ones to do. */
static void begin_ahead(struct mgd_step *s, const struct mgd_step_learned *l, int32_t operators) {
  s->ahead = (struct mgd_step_ahead){s->at, l->plan->first_action[s->at], operators};
}

void mgd_step_follow_ahead_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                  struct mgd_action *actions, size_t *n, size_t size) {
  const struct mgd_step_learned *l = &s->known[s->which];
  struct mgd_step_ahead *a = &s->ahead;
  while (a->operators > 0) {
    const int32_t end = l->plan->first_action[a->operator_at + 1];
    for (; a->action < end; a->action++) {
      if (*n + 2 >= size) {
        return; /* there is no room in `actions` any more: the caller gets the rest by mgd_step_rest() */
      }
      begin_action(m, l, a->action, end, call, actions, n, size);
    }
    a->operator_at = (a->operator_at + 1) % l->operators;
    a->action = l->plan->first_action[a->operator_at];
    a->operators--;
  }
}

/* ---- following */

/* Goes on to the next operator. True: a period has ended, and the plan is to be checked: bytes had to leave in spite of
 * it, so a new one must leave more free; or it was not checked for long. The first period begins with whatever was
 * resident before, so it does not count. */
static bool go_on(struct mgd_step *s, struct mgd_step_learned *l, int64_t pressed) {
  s->results = 0;
  if (++s->at < l->operators) {
    return false;
  }
  s->at = 0;
  const bool counts = (l->seeks || l->layout ? l->since : l->laps) > 0 && l->plans < MGD_STEP_MOST;
  l->missed = counts ? mgd_max(l->missed, pressed - s->pressed) : 0; /* until the plan is checked */
  l->laps++;
  l->since++;
  l->loaded = l->loaded && l->laps < 2;
  s->pressed = pressed;
  return !s->planning && (l->missed > 0 || l->laps % LOOK == 0 || (l->seeks && l->since == SETTLED));
}

bool mgd_step_follow_call_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call,
                                 uint64_t kind, int64_t pressed, struct mgd_action *actions, size_t *n, size_t size,
                                 bool *wants) {
  struct mgd_step_learned *l = &s->known[s->which];
  const int32_t left_out = find_ahead(s, call, kind);
  if (left_out < 0) {
    return ++s->strange <= STRANGE;
  }
  s->strange = 0;
  bind(l, (s->at + left_out) % l->operators, call);
  begin_ahead(s, l, left_out + 1);
  for (int32_t j = 0; j <= left_out; j++) {
    *wants = go_on(s, l, pressed) || *wants;
  }
  mgd_step_follow_ahead_locked(m, s, call, actions, n, size);
  return true;
}
