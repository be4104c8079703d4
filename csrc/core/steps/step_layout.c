/* step_layout.c: addresses for the storages of the plan that a device follows (plan_layout.h).
 *
 * This file lays a plan out, plans again with less room if the layout is too high, and tells where a storage belongs
 * while an operator runs. Which plan is followed is not decided here.
 */
#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#define PART 1024 /* the part of the room by which it shrinks at least when a layout is too high */
#define OUTSIDE 2 /* pages for storages that are too small to have an address */
#define SOON 8 /* operators whose places are not given to what is not planned */
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

/* Lays out the plan in a block of at most `limit` bytes, and plans with less room until it fits. *plan and *layout are
 * set if it does. */
static int lay_out(const struct mgd_step_learned *l, struct mgd_plan_machine machine, int64_t limit, int64_t least,
                   const bool *left_out, struct mgd_plan **plan, int64_t *room, struct mgd_layout **layout) {
  const struct mgd_plan_step step = mgd_step_plan_input(l);
  const int64_t room_ahead = l->crowded ? 0 : limit; /* for places that are free ahead of copies */
  struct mgd_plan *made = NULL; /* NULL: it is the present one */
  int code = MGD_E_NO_ROOM;
  for (int i = 0; i < MGD_STEP_TRIES; i++) {
    code = mgd_plan_early_leave(&step, made ? made : l->plan, 0, plan);
    code = code == MGD_OK ? mgd_plan_layout_make(&step, *plan, least, left_out, room_ahead, 0, layout) : code;
    if (code != MGD_OK || (*layout)->height <= limit) { break; }
    machine.room = *room = *room - ((*layout)->height - limit) - *room / PART;
    mgd_plan_layout_free(*layout);
    mgd_plan_free(*plan);
    mgd_plan_free(made);
    *layout = NULL;
    made = *plan = NULL;
    code = *room > 0 ? mgd_step_plan_of(l, &machine, &made) : MGD_E_NO_ROOM;
    if (code != MGD_OK) { break; }
    code = MGD_E_NO_ROOM;
  }
  mgd_plan_free(made);
  return code;
}

int mgd_step_layout_make(struct mgd_machine *m, int device, int64_t room, int64_t least, int64_t *bytes) {
  *bytes = 0;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
  struct mgd_step_learned *l = s && s->follows && !s->planning ? &s->known[s->which] : NULL;
  bool *left_out = l ? find_left_out(m, l) : NULL;
  int code = l ? MGD_E_NOMEM : MGD_E_ABSENT;
  if (left_out) {
    struct mgd_plan *plan = NULL;
    struct mgd_layout *layout = NULL;
    const struct mgd_plan_machine machine = mgd_step_plan_machine_locked(m, device, l->room);
    int64_t planned = l->room;
    const int64_t limit = mgd_max(0, room - mgd_max(l->margin, OUTSIDE * PAGE)) / PAGE * PAGE;
    mgd_step_plan_leave_locked(m, s);
    code = lay_out(l, machine, limit, least, left_out, &plan, &planned, &layout);
    if (mgd_step_plan_enter(m, device, s) != MGD_OK) { code = MGD_E_ABSENT; }
    if (code == MGD_OK) {
      mgd_step_plan_take_locked(s, l, plan, planned);
      l->layout = layout;
      *bytes = layout->stays > 0 ? limit : 0;
    } else {
      mgd_plan_free(plan);
      mgd_plan_layout_free(layout);
    }
    mgd_alloc_free(left_out);
    if (code != MGD_E_ABSENT) { l->laid_out = true; }
  }
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

/* Adds where the storages of at most `n` more results of the operator are to lie; bytes: 0, or only those of this size.
 */
static int add_places(const struct mgd_step_learned *l, int32_t o, int64_t bytes, struct mgd_step_place *places,
                      int n) {
  int found = 0;
  for (int32_t i = l->kinds[o].first_made; i < l->kinds[o + 1].first_made && found < n; i++) {
    const int32_t r = l->made_roles[i];
    const int64_t size = l->role[r].bytes, at = mgd_plan_layout_offset(l->layout, r, o);
    if (at >= 0 && (bytes == 0 || bytes == size)) { places[found++] = (struct mgd_step_place){at, size}; }
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
    const int32_t until = h ? 0 : bytes > 0 ? 1 : (int32_t)mgd_min(SOON, l->operators);
    for (int32_t i = 0; i < until; i++) {
      found += add_places(l, (o + i) % l->operators, bytes, places + found, n - found);
    }
  }
  mgd_state_leave(m, MGD_OK);
  return found;
}
