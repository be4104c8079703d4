/* step_layout.c: addresses for the storages of the plan that a device follows (plan_layout.h).
 *
 * This file lays a plan out, looks for a plan that fits and copies little if the layout is too high, and tells where a
 * storage belongs while an operator runs. Which plan is followed is not decided here.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#define PART 1024 /* the part of the room by which it shrinks at least when a layout is too high */
#define FINE 32   /* the part of the room to which the most that fits is found */
#define NEAR 1024 /* the part of it by which further rooms differ */
#define NEARBY 56 /* how many these are */
#define ABOVE 24  /* of them, how many are above the room that fits */
#define SOON 64 /* operators whose places are not given to what is not planned, if there is room elsewhere */
#define PAGE (INT64_C(1) << 21) /* bytes; drivers give whole pages */

/* Which storages that live through all steps have bytes on the device now. They stay where they are. NULL: no memory.
 */
static bool *find_left_out(struct mgd_machine *m, const struct mgd_step_learned *l) {
  bool *left_out = mgd_alloc_new(&m->alloc, (size_t)l->roles + 1, sizeof *left_out);
  for (int32_t r = 0; left_out && r < l->roles; r++) {
    const struct mgd_handle *h = l->role[r].handle;
    left_out[r] = h && l->role[r].lasting && h->state != MGD_SPILLED && h->state != MGD_RESTORING;
  }
  return left_out;
}

/* ---- results that need no address */

/* Adds the bytes to those of the operators from `from` to `to`, which is less if that is in the next step, unless one
 * of them would have more than `most`. False: it would. */
static bool add_bytes(int64_t *in_use, int32_t operators, int32_t from, int32_t to, int64_t bytes, int64_t most) {
  const int32_t n = to - from + 1 + (to < from ? operators : 0);
  bool fits = true;
  for (int32_t i = 0; fits && i < n; i++) { fits = in_use[(from + i) % operators] <= most - bytes; }
  for (int32_t i = 0; fits && i < n; i++) { in_use[(from + i) % operators] += bytes; }
  return fits;
}

/* Returns the part of a page that bytes take if as many results of that size as can be lie in one. */
static int64_t part_of_page(int64_t bytes) { return bytes > 0 && bytes <= PAGE ? PAGE / (PAGE / bytes) : bytes; }

/* Leaves out results of more than `least` and at most `largest` bytes, as they are made, as far as no operator then has
 * more than `most` bytes in use. */
static void leave_out_results(const struct mgd_step_learned *l, int64_t least, int64_t largest, int64_t most,
                              int64_t *in_use, bool *left_out) {
  for (int32_t o = 0; o < l->operators; o++) {
    for (int32_t i = l->kinds[o].first_made; i < l->kinds[o + 1].first_made; i++) {
      const int32_t r = l->made_roles[i], dies = l->plan_storages[r].dies;
      const int64_t bytes = l->role[r].bytes;
      if (bytes <= least || bytes > largest) { continue; }
      left_out[r] = add_bytes(in_use, l->operators, o, dies, part_of_page(bytes), most);
    }
  }
}

/* Leaves out results that the allocator has room for beside the block: first what has no address anyway, and storages
 * of that size that come home; then further ones. A page stays free, since what is free is in pieces. False: less than
 * two pages are left beside what has no address, so it may need more room. in_use, by operator, is zeroed scratch
 * memory. */
static bool leave_out_small(const struct mgd_step_learned *l, int64_t beside, int64_t least, int64_t *in_use,
                            bool *left_out) {
  int64_t most = beside - PAGE, busiest = 0;
  for (int32_t r = 0; r < l->roles; r++) {
    most -= l->role[r].lasting && !left_out[r] && l->role[r].bytes <= least ? l->role[r].bytes : 0;
  }
  leave_out_results(l, -1, least, INT64_MAX, in_use, left_out);
  for (int32_t o = 0; o < l->operators; o++) { busiest = mgd_max(busiest, in_use[o]); }
  leave_out_results(l, least, MGD_PLACE_APART, most, in_use, left_out);
  return busiest <= most - PAGE;
}

/* ---- the layout */

/* What a plan is laid out in, and the plan that copies least of those whose layouts fit so far; NULL: none. */
struct search {
  const struct mgd_step_learned *l;
  struct mgd_plan_machine machine;
  int64_t limit, least;
  const bool *left_out;
  struct mgd_plan *plan;
  struct mgd_layout *layout;
  int64_t room;   /* of that plan */
  int64_t copies; /* bytes, by the plan that was laid out last */
};

static int make_layout(const struct search *s, const struct mgd_plan *plan, bool early, struct mgd_layout **out) {
  const struct mgd_plan_step step = mgd_step_plan_input(s->l);
  return mgd_plan_layout_make(&step, plan, s->least, s->left_out, s->limit, early, 0, out);
}

static int64_t copied_by(const struct mgd_plan *plan) { return plan->bytes_in + plan->bytes_out; }

/* Plans with so much room, and lays the plan out. *height: of the layout. `only_better`: if it copies less than the
 * best one, and not as much as the one that was tried last, which is mostly the same plan; else *height is 0. */
static int try_room(struct search *s, int64_t room, bool only_better, int64_t *height) {
  const struct mgd_plan_step step = mgd_step_plan_input(s->l);
  struct mgd_plan *made = NULL, *plan = NULL;
  struct mgd_layout *layout = NULL;
  s->machine.room = room;
  int code = room == s->l->room ? MGD_OK : mgd_step_plan_of(s->l, &s->machine, &made);
  code = code == MGD_OK ? mgd_plan_early_leave(&step, made ? made : s->l->plan, 0, &plan) : code;
  mgd_plan_free(made);
  const bool better = code == MGD_OK && (!s->plan || copied_by(plan) < copied_by(s->plan) + !only_better);
  if (code == MGD_OK && (!only_better || (better && copied_by(plan) != s->copies))) {
    code = make_layout(s, plan, false, &layout);
    s->copies = copied_by(plan);
  }
  *height = layout ? layout->height : 0;
  if (better && layout && layout->height <= s->limit) {
    mgd_plan_free(s->plan);
    mgd_plan_layout_free(s->layout);
    s->plan = plan;
    s->layout = layout;
    s->room = room;
  } else {
    mgd_plan_free(plan);
    mgd_plan_layout_free(layout);
  }
  return code;
}

/* Finds a plan that fits: first with less and less room, then by bisection; and then, since a plan for a little more
 * room may fit as well, and one for less may copy less, the best of those near it. NO_ROOM: there is none. */
static int find_plan(struct search *s) {
  const int64_t whole = s->l->room;
  int64_t room = whole, fits = 0, too_much = whole, height;
  int code = MGD_OK;
  for (int i = 0; i < MGD_STEP_TRIES && room > 0 && code == MGD_OK; i++) {
    code = try_room(s, room, false, &height);
    if (code == MGD_OK && height <= s->limit) {
      fits = room;
    } else {
      too_much = room;
    }
    if (s->plan && too_much - fits <= whole / FINE) { break; }
    room = s->plan ? fits + (too_much - fits) / 2 : room - (height - s->limit) - room / PART;
  }
  for (int i = 0; i < NEARBY && s->plan && fits < whole && code == MGD_OK; i++) {
    room = fits + fits / NEAR * (ABOVE - i);
    code = room < whole ? try_room(s, room, true, &height) : MGD_OK;
  }
  return s->plan ? MGD_OK : code == MGD_OK ? MGD_E_NO_ROOM : code;
}

/* Lays out again so that places are free ahead of copies, unless what has no address needs that room. */
static void lay_out_early(struct search *s) {
  struct mgd_layout *early = NULL;
  if (!s->l->crowded && make_layout(s, s->plan, true, &early) == MGD_OK) {
    mgd_plan_layout_free(s->layout);
    s->layout = early;
  }
}

int mgd_step_layout_make(struct mgd_machine *m, int device, int64_t room, int64_t beside, int64_t least,
                         int64_t *bytes) {
  *bytes = 0;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
  struct mgd_step_learned *l = s && s->follows && !s->planning ? &s->known[s->which] : NULL;
  bool *left_out = l ? find_left_out(m, l) : NULL;
  int64_t *in_use = l ? mgd_alloc_new(&m->alloc, (size_t)l->operators, sizeof *in_use) : NULL;
  int code = l ? MGD_E_NOMEM : MGD_E_ABSENT;
  if (left_out && in_use) {
    struct search best = {
        .l = l, .machine = mgd_step_plan_machine_locked(m, device, l->room), .least = least, .left_out = left_out};
    mgd_step_plan_leave_locked(m, s);
    const int64_t pages = (l->margin + PAGE / 2) / PAGE + !leave_out_small(l, beside, least, in_use, left_out);
    best.limit = mgd_max(0, room / PAGE - pages) * PAGE;
    code = find_plan(&best);
    if (code == MGD_OK) { lay_out_early(&best); }
    if (mgd_step_plan_enter(m, device, s) != MGD_OK) { code = MGD_E_ABSENT; }
    if (code == MGD_OK) {
      mgd_step_plan_take_locked(s, l, best.plan, best.room);
      l->layout = best.layout;
      *bytes = best.layout->stays > 0 ? best.limit : 0;
    } else {
      mgd_plan_free(best.plan);
      mgd_plan_layout_free(best.layout);
    }
    if (code != MGD_E_ABSENT) { l->laid_out = true; }
  }
  mgd_alloc_free(left_out);
  mgd_alloc_free(in_use);
  return mgd_state_leave(m, code);
}

bool mgd_step_layout_is_wanted(struct mgd_machine *m, int device) {
  mgd_state_enter(m);
  const struct mgd_step *s = mgd_step_of_locked(m, device);
  const bool wants = s && s->follows && !s->planning && !s->known[s->which].laid_out;
  mgd_state_leave(m, MGD_OK);
  return wants;
}

void mgd_step_layout_forget(struct mgd_machine *m, int device) {
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
  for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
    mgd_plan_layout_free(s->known[i].layout);
    s->known[i].layout = NULL;
  }
  mgd_state_leave(m, MGD_OK);
}

/* Adds where the storages of at most `n` more results of the operator are to lie that have so many bytes. */
static int add_results(const struct mgd_step_learned *l, int32_t o, int64_t bytes, struct mgd_step_place *places,
                       int n) {
  int found = 0;
  for (int32_t i = l->kinds[o].first_made; i < l->kinds[o + 1].first_made && found < n; i++) {
    const int32_t r = l->made_roles[i];
    const int64_t at = mgd_plan_layout_offset(l->layout, r, o);
    if (at >= 0 && bytes == l->role[r].bytes) { places[found++] = (struct mgd_step_place){at, bytes}; }
  }
  return found;
}

/* Adds at most `n` places of stays that begin at the operator, of results and of what comes home. */
static int add_beginning(const struct mgd_step_learned *l, int32_t o, struct mgd_step_place *places, int n) {
  int found = 0;
  for (int32_t i = 0; i < l->layout->stays && found < n; i++) {
    const struct mgd_layout_stay *a = &l->layout->stay[i];
    if (a->from == o) { places[found++] = (struct mgd_step_place){a->offset, l->role[a->storage].bytes}; }
  }
  return found;
}

int mgd_step_layout_places(struct mgd_machine *m, int device, const struct mgd_handle *h, int64_t bytes,
                           struct mgd_step_place *places, int n) {
  int found = 0;
  mgd_state_enter(m);
  const struct mgd_step *s = mgd_step_of_locked(m, device);
  const struct mgd_step_learned *l = s && s->follows ? &s->known[s->which] : NULL;
  if (l && l->layout && s->strange == 0 && (!h || h->home == device)) {
    const int32_t o = (s->at + l->operators - 1) % l->operators;
    const int64_t at = h && h->role[l->slot] >= 0 ? mgd_plan_layout_offset(l->layout, h->role[l->slot], o) : -1;
    if (at >= 0) { places[found++] = (struct mgd_step_place){at, h->bytes}; }
    if (!h && bytes > 0) { found += add_results(l, o, bytes, places, n); }
    for (int32_t i = 0; !h && bytes == 0 && i < SOON && i < l->operators; i++) {
      found += add_beginning(l, (o + i) % l->operators, places + found, n - found);
    }
  }
  mgd_state_leave(m, MGD_OK);
  return found;
}
