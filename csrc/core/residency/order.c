/* order.c: the order in which a device's storages leave.
 *
 * The policy gives each storage a key; this file keeps the keys in order, smallest first. evict.c decides whether a
 * storage may leave, and where to.
 *
 * The array `order` of a device has three parts:
 *   1. the heap, of storages that have a key;
 *   2. new storages, which have no key yet. Computing a key reads links and the handle, and most new storages are freed
 *      before any storage has to leave;
 *   3. parked storages, which evict.c found unable to leave during the current search.
 *
 * A key can be out of date, because operators stamp a handle without the lock. So the key of the storage on top of the
 * heap is computed again when its stamp has changed. One search does that at most MGD_LOOKS times; then it takes the
 * best of the storages whose keys it has just computed.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#define CHILDREN 4 /* per place in the heap; the keys of four fit into few cache lines */

bool mgd_order_before(const struct mgd_order_entry *a, const struct mgd_order_entry *b) {
  return a->key < b->key || (a->key == b->key && a->stamp < b->stamp); /* many policies give equal keys */
}

int32_t mgd_order_parent(int32_t place) { return (place - 1) / CHILDREN; }

/* ---- the heap */

static void put(struct mgd_storages *s, int32_t i, struct mgd_order_entry entry) {
  s->order[i] = entry;
  entry.handle->position = i;
}

static void sift_up(struct mgd_storages *s, int32_t i, struct mgd_order_entry entry) {
  for (; i > 0 && mgd_order_before(&entry, &s->order[mgd_order_parent(i)]); i = mgd_order_parent(i)) {
    put(s, i, s->order[mgd_order_parent(i)]);
  }
  put(s, i, entry);
}

/* Returns the child with the smallest key, or -1. It computes in 64 bits, because four times a place can be more than
 * 32 bits hold. */
static int32_t least_child(const struct mgd_storages *s, int32_t i) {
  int64_t least = (int64_t)i * CHILDREN + 1, end = least + CHILDREN;
  end = end < s->sorted ? end : s->sorted;
  for (int64_t child = least + 1; child < end; child++) {
    least = mgd_order_before(&s->order[child], &s->order[least]) ? child : least;
  }
  return least < s->sorted ? (int32_t)least : -1;
}

static void sift_down(struct mgd_storages *s, int32_t i, struct mgd_order_entry entry) {
  for (int32_t child; (child = least_child(s, i)) >= 0 && mgd_order_before(&s->order[child], &entry); i = child) {
    put(s, i, s->order[child]);
  }
  put(s, i, entry);
}

/* Puts `entry` into the hole in the heap, and moves it up or down from there until the heap is in order. */
static void sift(struct mgd_storages *s, int32_t hole, struct mgd_order_entry entry) {
  if (hole > 0 && mgd_order_before(&entry, &s->order[mgd_order_parent(hole)])) {
    sift_up(s, hole, entry);
  } else {
    sift_down(s, hole, entry);
  }
}

/* ---- keys */

/* An entry without a key: it records what a key would be computed from. */
static struct mgd_order_entry snapshot(const struct mgd_machine *m, struct mgd_handle *h) {
  h->was_clean = mgd_handle_is_clean(h);
  return (struct mgd_order_entry){
      .key = m->devices[h->home].storages.age, .stamp = __atomic_load_n(&h->stamp, __ATOMIC_RELAXED), .handle = h};
}

/* Whether the key is up to date. The dirty mark counts too: a storage that came home is clean, and the operator that
 * needed it often writes it right after. Then its eviction costs more than its key says. */
static bool is_current(const struct mgd_order_entry *p) {
  return p->stamp == __atomic_load_n(&p->handle->stamp, __ATOMIC_RELAXED) &&
      p->handle->was_clean == mgd_handle_is_clean(p->handle);
}

/* ns of a copy. A latency that is small compared with it is left out: otherwise the larger of two storages would always
 * leave first, for a price that is hardly less. */
static double price_of_copy(const struct mgd_link *link, int64_t bytes) {
  const double ns = mgd_link_estimate(link, 1, bytes), latency = (double)link->latency_ns;
  return latency < ns / 16.0 ? ns - latency : ns;
}

bool mgd_order_leaves_for_free(const struct mgd_handle *h, bool clean) {
  return clean || (h->advice & MGD_ADVICE_READ) != 0;
}

/* The program's advice overrides the policy's key. Storages with the same advice leave in the order of use. */
static double advised(const struct mgd_handle *h, double key) {
  if (h->advice & (MGD_ADVICE_FIRST | MGD_ADVICE_NEXT)) {
    return -INFINITY;
  }
  return mgd_handle_leaves_last(h) ? INFINITY : key;
}

/* Advice up to the next use ends if the storage was used since its key was computed. */
static void end_advice(const struct mgd_order_entry *p) {
  if (p->stamp != __atomic_load_n(&p->handle->stamp, __ATOMIC_RELAXED)) {
    p->handle->advice &= (uint8_t)~MGD_ADVICE_NEXT;
  }
}

/* Computes the key by the policy. p.key holds the device's age until then. */
static struct mgd_order_entry with_key(const struct mgd_machine *m, struct mgd_order_entry p) {
  const struct mgd_handle *h = p.handle;
  const struct mgd_link *out = &m->links[h->home][MGD_HOST], *back = &m->links[MGD_HOST][h->home];
  struct mgd_victim v = {.handle = h, .bytes = h->bytes, .clean = h->was_clean, .age = p.key, .stamp = p.stamp};
  v.leave_ns = mgd_order_leaves_for_free(h, v.clean) ? 0.0 : price_of_copy(out, h->bytes);
  v.return_ns = price_of_copy(back, h->bytes);
  double key = m->victim(m->victim_context, &v);
  p.key = advised(h, isnan(key) ? 0.0 : key); /* NaN is neither smaller nor larger, and would break the heap */
  return p;
}

/* Moves at most *most new storages into the heap, and lowers *most by as many. */
static void add_to_heap(const struct mgd_machine *m, struct mgd_storages *s, int32_t *most) {
  for (; *most > 0 && s->sorted < s->ordered; s->sorted++, --*most) {
    sift_up(s, s->sorted, with_key(m, s->order[s->sorted]));
  }
}

/* ---- insert and remove */

static bool is_parked(const struct mgd_storages *s, const struct mgd_handle *h) { return h->position >= s->ordered; }

/* Puts the storage behind the other new ones, in front of the parked ones. If there are many new ones, each call moves
 * two of them into the heap. So their number stays small, and no search has to move all of them. */
static void add_unsorted(struct mgd_machine *m, struct mgd_storages *s, struct mgd_handle *h) {
  if (s->parked > 0) {
    put(s, s->ordered + s->parked, s->order[s->ordered]);
  }
  put(s, s->ordered++, snapshot(m, h));
  int32_t two = 2;
  if (s->ordered - s->sorted > MGD_LOOKS) {
    add_to_heap(m, s, &two);
  }
}

/* Takes a storage out of the array. The last storage of its part fills the hole, the last of the next part fills the
 * place of that one, and so on to the end of the array. */
static void take_out(struct mgd_storages *s, const struct mgd_handle *h) {
  int32_t hole = h->position;
  end_advice(&s->order[hole]);
  bool was_parked = is_parked(s, h);
  if (hole < s->sorted) {
    const struct mgd_order_entry end = s->order[--s->sorted];
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
  s->last_bytes += mgd_handle_leaves_last(h) ? h->bytes : 0;
  add_unsorted(m, s, h);
}

void mgd_order_remove_locked(struct mgd_machine *m, struct mgd_handle *h) {
  struct mgd_storages *s = &m->devices[h->home].storages;
  take_out(s, h);
  h->position = -1;
  s->ordered_bytes -= h->bytes;
  s->last_bytes -= mgd_handle_leaves_last(h) ? h->bytes : 0;
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
  put(s, s->ordered + s->parked++, snapshot(m, h));
}

/* Turns parked storages into new storages. Their snapshots are taken anew, unless there are so many that it would take
 * too long under the lock; is_current() rejects an old snapshot later. */
void mgd_order_unpark_locked(struct mgd_machine *m, struct mgd_storages *s) {
  for (int32_t i = 0; i < s->parked && s->parked <= MGD_LOOKS; i++) {
    end_advice(&s->order[s->ordered + i]);
    s->order[s->ordered + i] = snapshot(m, s->order[s->ordered + i].handle);
  }
  s->ordered += s->parked;
  s->parked = 0;
}

/* ---- the next victim */

static void refresh(const struct mgd_machine *m, struct mgd_storages *s, struct mgd_handle *h) {
  end_advice(&s->order[h->position]);
  sift(s, h->position, with_key(m, snapshot(m, h)));
}

/* Returns the best of the storages whose keys this search has computed and that are still in the heap; if there is
 * none, the one on top. */
static struct mgd_handle *best_known(struct mgd_storages *s, const struct mgd_order_search *search) {
  int32_t best = -1;
  for (int32_t i = 0; i < search->count; i++) {
    int32_t place = search->looked_at[i]->position;
    bool stands = place >= 0 && place < s->sorted;
    best = stands && (best < 0 || mgd_order_before(&s->order[place], &s->order[best])) ? place : best;
  }
  return s->order[best < 0 ? 0 : best].handle;
}

/* Other threads may stamp the storages all the time, so the number of keys that are computed anew has a limit. */
struct mgd_handle *mgd_order_first_locked(struct mgd_machine *m, struct mgd_storages *s,
                                          struct mgd_order_search *search) {
  add_to_heap(m, s, &search->new_keys);
  for (int64_t looks = 2 * (int64_t)s->ordered; s->sorted > 0; looks--) {
    struct mgd_handle *h = s->order[0].handle;
    if (is_current(&s->order[0])) {
      return h;
    }
    if (looks <= 0 || search->count == MGD_LOOKS) {
      return best_known(s, search);
    }
    refresh(m, s, h);
    search->looked_at[search->count++] = h;
  }
  return NULL;
}

/* ---- the policy */

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
      end_advice(&s->order[i]);
      add_unsorted(m, s, s->order[i].handle); /* writes to a place that has been read: at most i */
    }
  }
  return mgd_state_leave(m, MGD_OK);
}
