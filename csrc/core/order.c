/* order.c: the order in which a device's storages leave: a heap by the policy's keys, smallest first.
 *
 * It asks the policy for keys and keeps them in order; whether somebody may leave, and
 * where to, is asked elsewhere. Behind the heap stand those that came since, of which only
 * is noted what they were when they came: to value them reads links and others' handles, which are
 * in no cache, and most are gone before anybody has to leave. Behind those stand the parked.
 *
 * Operators stamp a handle without a lock, so a key may be out of date. It is looked
 * at again when the handle comes to the top, but only so many of them in one
 * call: then the best of those that were looked at goes.
 */
#include "arithmetic.h"
#include "internal_machine.h"

#define CHILDREN 4 /* that a place has: their keys are neighbours in memory */

bool mgd_order_before(const struct mgd_place *a, const struct mgd_place *b) {
  return a->key < b->key ||
      (a->key == b->key && a->seen < b->seen); /* keys come from a policy, equal ones are the common case */
}

int32_t mgd_order_parent(int32_t place) { return (place - 1) / CHILDREN; }

/* ---- the heap */

static void put(struct mgd_storages *s, int32_t i, struct mgd_place place) {
  s->order[i] = place;
  place.handle->position = i;
}

static void sift_up(struct mgd_storages *s, int32_t i, struct mgd_place place) {
  for (; i > 0 && mgd_order_before(&place, &s->order[mgd_order_parent(i)]); i = mgd_order_parent(i)) {
    put(s, i, s->order[mgd_order_parent(i)]);
  }
  put(s, i, place);
}

/* 64 bits, because a heap may have more than a quarter of what 32 can count. */
static int32_t least_child(const struct mgd_storages *s, int32_t i) {
  int64_t least = (int64_t)i * CHILDREN + 1, end = least + CHILDREN;
  end = end < s->sorted ? end : s->sorted;
  for (int64_t child = least + 1; child < end; child++) {
    least = mgd_order_before(&s->order[child], &s->order[least]) ? child : least;
  }
  return least < s->sorted ? (int32_t)least : -1;
}

static void sift_down(struct mgd_storages *s, int32_t i, struct mgd_place place) {
  for (int32_t child; (child = least_child(s, i)) >= 0 && mgd_order_before(&s->order[child], &place); i = child) {
    put(s, i, s->order[child]);
  }
  put(s, i, place);
}

/* It goes where a hole is: up or down from there. */
static void sift(struct mgd_storages *s, int32_t hole, struct mgd_place place) {
  if (hole > 0 && mgd_order_before(&place, &s->order[mgd_order_parent(hole)])) {
    sift_up(s, hole, place);
  } else {
    sift_down(s, hole, place);
  }
}

/* ---- keys */

static bool is_clean(const struct mgd_handle *h) { return h->memory && !__atomic_load_n(&h->dirty, __ATOMIC_RELAXED); }

/* All that its worth depends on and that changes. */
static struct mgd_place note(const struct mgd_machine *m, struct mgd_handle *h) {
  h->seen_clean = is_clean(h);
  return (struct mgd_place){
      .key = m->devices[h->home].storages.age, .seen = __atomic_load_n(&h->stamp, __ATOMIC_RELAXED), .handle = h};
}

/* What came home was clean when that was noted, and is often written right after: to leave then costs more than its key
 * says. */
static bool is_noted(const struct mgd_place *p) {
  return p->seen == __atomic_load_n(&p->handle->stamp, __ATOMIC_RELAXED) &&
      p->handle->seen_clean == is_clean(p->handle);
}

static struct mgd_place value(const struct mgd_machine *m, struct mgd_place p) {
  const struct mgd_handle *h = p.handle;
  const struct mgd_link *out = &m->links[h->home][MGD_HOST], *back = &m->links[MGD_HOST][h->home];
  struct mgd_victim v = {.handle = h, .bytes = h->bytes, .clean = h->seen_clean, .age = p.key, .stamp = p.seen};
  v.leave_ns = v.clean ? 0.0 : mgd_link_estimate(out, 1, h->bytes);
  v.return_ns = mgd_link_estimate(back, 1, h->bytes);
  double key = m->victim(m->victim_context, &v);
  p.key = isnan(key) ? 0.0 : key; /* what compares with nothing would break the order */
  return p;
}

/* Values so many of those that came since, and counts them down. */
static void sort(const struct mgd_machine *m, struct mgd_storages *s, int32_t *most) {
  for (; *most > 0 && s->sorted < s->ordered; s->sorted++, --*most) {
    sift_up(s, s->sorted, value(m, s->order[s->sorted]));
  }
}

/* ---- coming and going */

static bool is_parked(const struct mgd_storages *s, const struct mgd_handle *h) { return h->position >= s->ordered; }

/* In front of the parked. Whoever comes when many wait to be valued pays for two of them, so that nobody ever pays for
 * all. */
static void add_unsorted(struct mgd_machine *m, struct mgd_storages *s, struct mgd_handle *h) {
  if (s->parked > 0) {
    put(s, s->ordered + s->parked, s->order[s->ordered]);
  }
  put(s, s->ordered++, note(m, h));
  int32_t two = 2;
  if (s->ordered - s->sorted > MGD_LOOKS) {
    sort(m, s, &two);
  }
}

/* The last of each part fills the hole that the one before it left. */
static void take_out(struct mgd_storages *s, const struct mgd_handle *h) {
  int32_t hole = h->position;
  bool was_parked = is_parked(s, h);
  if (hole < s->sorted) {
    const struct mgd_place end = s->order[--s->sorted];
    if (end.handle != h) {
      sift(s, hole, end);
    }
    hole = s->sorted;
  }
  if (!was_parked) {
    if (hole < --s->ordered) {
      put(s, hole, s->order[s->ordered]);
    }
    hole = s->ordered;
  }
  int32_t last = s->ordered + s->parked - was_parked;
  s->parked -= was_parked;
  if (hole < last) {
    put(s, hole, s->order[last]);
  }
}

void mgd_order_insert_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  s->arrivals++;
  s->ordered_bytes += h->bytes;
  add_unsorted(m, s, h);
}

void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  take_out(s, h);
  h->position = -1;
  s->ordered_bytes -= h->bytes;
}

void mgd_order_look_again_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  if (!is_parked(s, h)) {
    take_out(s, h);
    add_unsorted(m, s, h);
  }
}

void mgd_order_park_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  take_out(s, h);
  put(s, s->ordered + s->parked++, note(m, h));
}

/* Of many it is not noted again what they are by now. */
void mgd_order_unpark_locked(struct mgd_machine *m, struct mgd_storages *s) {
  for (int32_t i = 0; i < s->parked && s->parked <= MGD_LOOKS; i++) {
    s->order[s->ordered + i] = note(m, s->order[s->ordered + i].handle);
  }
  s->ordered += s->parked;
  s->parked = 0;
}

/* ---- who is next */

static void look_at(const struct mgd_machine *m, struct mgd_storages *s, struct mgd_handle *h) {
  sift(s, h->position, value(m, note(m, h)));
}

/* The best of those that this search has looked at and that are still there, or what is on top. */
static struct mgd_handle *best_known(struct mgd_storages *s, const struct mgd_order_search *search) {
  int32_t best = -1;
  for (int32_t i = 0; i < search->count; i++) {
    int32_t place = search->looked_at[i]->position;
    bool stands = place >= 0 && place < s->sorted;
    best = stands && (best < 0 || mgd_order_before(&s->order[place], &s->order[best])) ? place : best;
  }
  return s->order[best < 0 ? 0 : best].handle;
}

/* Somebody else may go on using them all, so it looks again a bounded number of times. */
struct mgd_handle *mgd_order_first_locked(struct mgd_machine *m, struct mgd_storages *s,
                                          struct mgd_order_search *search) {
  sort(m, s, &search->values);
  for (int64_t looks = 2 * (int64_t)s->ordered; s->sorted > 0; looks--) {
    struct mgd_handle *h = s->order[0].handle;
    if (is_noted(&s->order[0])) {
      return h;
    }
    if (looks <= 0 || search->count == MGD_LOOKS) {
      return best_known(s, search);
    }
    look_at(m, s, h);
    search->looked_at[search->count++] = h;
  }
  return NULL;
}

/* ---- the policy */

void mgd_order_rekey(struct mgd_machine *m, struct mgd_handle *h) {
  mgd_state_enter(m);
  struct mgd_storages *s = &m->devices[h->home].storages;
  if (h->position >= 0 && h->position < s->sorted) {
    look_at(m, s, h);
  } else if (h->position >= 0) {
    s->order[h->position] = note(m, h); /* the policy is asked later */
  }
  (void)mgd_state_leave(m, MGD_OK);
}

int mgd_order_set_policy(struct mgd_machine *m, mgd_victim_fn fn, void *context) {
  mgd_state_enter(m);
  m->victim = fn ? fn : mgd_policy_greedy_dual;
  m->victim_context = context;
  for (int id = 0; id < m->count; id++) {
    struct mgd_storages *s = &m->devices[id].storages;
    int32_t n = s->ordered + s->parked;
    s->age = 0.0;
    s->ordered = s->sorted = s->parked = 0;
    for (int32_t i = 0; i < n; i++) {
      add_unsorted(m, s, s->order[i].handle); /* to one of the places up to i */
    }
  }
  return mgd_state_leave(m, MGD_OK);
}
