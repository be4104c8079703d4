/* repeat.c: detects a tensor that is copied to one device again and again.
 *
 * One copy per step is usual. Many copies in one step mean that the program would run faster with the tensor moved. A
 * program that ends no step counts as one long step.
 * This file counts copies per object and device within a step, and tells the caller once for each call site when a
 * warning is due; it prints nothing. Memory is bounded: pairs that were copied longest ago are forgotten, so a warning
 * may be missed, and is never given too early.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

static struct mgd_repeat_slot *set_of(const struct mgd_repeats *r, uint64_t object, int to) {
  uint64_t hash = (object * MGD_MAX_DEVICES + (uint64_t)to) * 0x9e3779b97f4a7c15u;
  return &r->slots[(hash >> 32) % MGD_REPEAT_SETS * MGD_REPEAT_WAYS];
}

/* Returns the slot of this object and device, emptied if it held another pair or an earlier step. */
static struct mgd_repeat_slot *slot_of_pair(const struct mgd_repeats *r, uint64_t object, int to) {
  struct mgd_repeat_slot *set = set_of(r, object, to), *oldest = set;
  for (struct mgd_repeat_slot *s = set; s < set + MGD_REPEAT_WAYS; s++) {
    if (s->object == object && s->to == to) {
      oldest = s;
      break;
    }
    oldest = s->used < oldest->used ? s : oldest;
  }
  if (oldest->object != object || oldest->to != to || oldest->step != r->step) {
    *oldest = (struct mgd_repeat_slot){.object = object, .step = r->step, .to = to};
  }
  return oldest;
}

/* Whether this is the first warning for a site; marks the site. */
static bool is_news(struct mgd_repeats *r, uint32_t site) {
  uint64_t bit = (uint64_t)1 << site % 64, *word = &r->warned[site / 64];
  bool news = !(*word & bit);
  *word |= bit;
  return news;
}

static int count_copy(struct mgd_machine *m, const struct mgd_event *e, struct mgd_repeat *out) {
  struct mgd_repeats *r = &m->repeats;
  if (!mgd_state_knows_device_locked(m, e->to)) {
    return MGD_E_NO_DEVICE;
  }
  if (e->site > m->sites.count || e->bytes < 0) {
    return MGD_E_INVALID;
  }
  if (!r->slots) {
    r->slots = mgd_alloc_new(&m->alloc, MGD_REPEAT_SETS * MGD_REPEAT_WAYS, sizeof *r->slots);
  }
  if (!r->slots) {
    return MGD_E_NOMEM;
  }
  struct mgd_repeat_slot *slot = slot_of_pair(r, e->object, e->to);
  slot->used = ++r->tick;
  slot->count++;
  (void)mgd_add(slot->bytes, e->bytes, &slot->bytes); /* stays below 2**63; no decision depends on it */
  r->newest = (size_t)(slot - r->slots);
  bool too_many = r->limit > 0 && slot->count == (uint64_t)r->limit + 1;
  *out = (struct mgd_repeat){slot->count, slot->bytes, too_many && is_news(r, e->site), r->step > 0};
  return MGD_OK;
}

int mgd_repeat_add(struct mgd_machine *m, const struct mgd_event *copy, struct mgd_repeat *out) {
  if (copy->object == 0) {
    *out = (struct mgd_repeat){0};
    return MGD_OK;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, count_copy(m, copy, out));
}

int mgd_repeat_set_limit(struct mgd_machine *m, int64_t limit) {
  if (limit < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  m->repeats.limit = limit;
  return mgd_state_leave(m, MGD_OK);
}

int64_t mgd_repeat_limit(struct mgd_machine *m) {
  mgd_state_enter(m);
  int64_t limit = m->repeats.limit;
  (void)mgd_state_leave(m, MGD_OK);
  return limit;
}

void mgd_repeat_begin_step(struct mgd_machine *m) {
  mgd_state_enter(m);
  m->repeats.step++;
  (void)mgd_state_leave(m, MGD_OK);
}
