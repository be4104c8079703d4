/* place.c: which device for one object, and which device runs one operator.
 *
 * Both answers follow from the ledger and the links alone, need no allocation, and do not depend on the order of
 * devices or operands unless a rule says "first". Nothing is reserved here: admit.c does that.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

#define NOWHERE (-1)

static mgd_mask bit(int device) { return (mgd_mask)1 << device; }

/* Takes the lowest device out of the set. */
static int take_lowest(mgd_mask *set) {
  int device = __builtin_ctzll(*set);
  *set &= *set - 1;
  return device;
}

static bool is_single(mgd_mask set) { return !(set & (set - 1)); } /* the set is not empty */

/* ---- one object */

int mgd_place_validate(const struct mgd_object_request *request) {
  bool good = request->bytes >= 0 && request->reserved >= 0.0 && request->reserved < 1.0;
  return good ? MGD_OK : MGD_E_INVALID; /* a NaN is neither >= 0 nor < 1 */
}

/* Returns the speed of a device that other programs use too. Their work slows it, but only their bytes are known. So
 * the speed is lowered by the part of the memory that they hold: half the memory, half the speed. Small allocations of
 * theirs, such as a context or a screen, then change little. */
static double speed_beside_others(const struct mgd_device *d) {
  const double least = 0x1p-20; /* if other programs hold everything, the speed is still no zero to divide by */
  double part = d->capacity > 0 ? (double)d->by_owner[MGD_FOREIGN] / (double)d->capacity : 1.0;
  return d->speed * fmax(1.0 - part, least);
}

static struct mgd_share share_of(const struct mgd_machine *m, int id, double reserved) {
  const struct mgd_device *d = &m->devices[id];
  return (struct mgd_share){.room = mgd_ledger_room_locked(m, id, reserved),
                            .load = d->by_owner[MGD_MANAGED] + d->by_owner[MGD_RESERVED],
                            .speed = speed_beside_others(d)};
}

int mgd_place_share(struct mgd_machine *m, int device, double reserved, struct mgd_share *out) {
  if (!(reserved >= 0.0 && reserved < 1.0)) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    *out = share_of(m, device, reserved);
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

int mgd_place_lightest(const struct mgd_share *shares, size_t n, int64_t bytes) {
  int best = NOWHERE;
  double least = 0.0;
  for (size_t i = 0; i < n; i++) {
    double load = ((double)shares[i].load + (double)bytes) / shares[i].speed;
    if (bytes <= shares[i].room && (best == NOWHERE || load < least)) {
      best = (int)i;
      least = load;
    }
  }
  return best;
}

static int fullest(const struct mgd_share *shares, size_t n, int64_t bytes) {
  int best = NOWHERE;
  for (size_t i = 0; i < n; i++) {
    if (bytes <= shares[i].room && (best == NOWHERE || shares[i].room < shares[best].room)) {
      best = (int)i;
    }
  }
  return best;
}

int mgd_place_pick_locked(const struct mgd_machine *m, const struct mgd_object_request *request, mgd_mask allowed,
                          enum mgd_reason *why) {
  struct mgd_share shares[MGD_MAX_DEVICES];
  int ids[MGD_MAX_DEVICES];
  size_t n = 0;
  for (int id = 1; id < m->count; id++) {
    if (allowed & bit(id)) {
      shares[n] = share_of(m, id, request->reserved);
      ids[n++] = id;
    }
  }
  int index = (request->disperse ? mgd_place_lightest : fullest)(shares, n, request->bytes);
  int best = index == NOWHERE ? MGD_HOST : ids[index];
  *why = request->disperse ? MGD_WHY_DISPERSED : MGD_WHY_PACKED;
  if (best == MGD_HOST) {
    *why = MGD_WHY_NO_ROOM;
  }
  return best;
}

/* ---- the operands of one operator */

/* Sums and sets of devices over the operands, gathered in one pass.
 * Invariants: everyone has every device that has an operand; voters and written are subsets of it; bytes and operands
 * are defined for the devices of the machine; total is the sum of bytes. The host is never placed. */
struct ballot {
  mgd_mask everyone, voters, written, placed;
  int pin, gradient, generator, first_written; /* a device or NOWHERE */
  int other_pin;                               /* a second, different pin or NOWHERE */
  int64_t total;
  int64_t bytes[MGD_MAX_DEVICES];
  int64_t operands[MGD_MAX_DEVICES];
  uint64_t made[MGD_MAX_DEVICES]; /* `made` of the newest voter on the device */
  mgd_mask kept;                 /* devices that keep a copy of an operand */
  const struct mgd_operand *all; /* the operands */
  size_t n;
};

static void open_ballot(struct ballot *b, int devices) {
  b->everyone = b->voters = b->written = b->placed = b->kept = 0;
  b->pin = b->gradient = b->generator = b->first_written = b->other_pin = NOWHERE;
  b->total = 0;
  for (int id = 0; id < devices; id++) {
    b->bytes[id] = b->operands[id] = 0;
    b->made[id] = 0;
  }
}

/* Notes the device of a pinned operand: the first one is kept, a different one conflicts. */
static void note_fixed(int *first, int *other, int device) {
  if (*first == NOWHERE) {
    *first = device;
  } else if (*first != device && *other == NOWHERE) {
    *other = device;
  }
}

static void count_vote(struct ballot *b, const struct mgd_operand *o) {
  b->voters |= bit(o->device);
  if ((o->flags & MGD_OP_PLACED) && o->device != MGD_HOST) {
    b->placed |= bit(o->device);
  }
  if (o->made > b->made[o->device]) {
    b->made[o->device] = o->made;
  }
}

static int count_operand(struct ballot *b, const struct mgd_operand *o, int devices) {
  const unsigned known =
      MGD_OP_PINNED | MGD_OP_WRITTEN | MGD_OP_VOTES | MGD_OP_GENERATOR | MGD_OP_PLACED | MGD_OP_GRADIENT;
  if (o->device < 0 || o->device >= devices) {
    return MGD_E_NO_DEVICE;
  }
  if (o->bytes < 0 || (o->flags & ~known)) { return MGD_E_INVALID; }
  if (!mgd_add(b->total, o->bytes, &b->total)) {
    return MGD_E_OVERFLOW;
  }
  b->bytes[o->device] += o->bytes;
  b->operands[o->device]++;
  b->kept |= o->kept;
  b->everyone |= bit(o->device);
  if (o->flags & MGD_OP_VOTES) {
    count_vote(b, o);
  }
  if (o->flags & MGD_OP_PINNED) {
    note_fixed(&b->pin, &b->other_pin, o->device);
  }
  if ((o->flags & MGD_OP_GRADIENT) && b->gradient == NOWHERE) { b->gradient = o->device; }
  if ((o->flags & MGD_OP_GENERATOR) && b->generator == NOWHERE) {
    b->generator = o->device;
  }
  if (o->flags & MGD_OP_WRITTEN) {
    b->written |= bit(o->device);
    b->first_written = b->first_written == NOWHERE ? o->device : b->first_written;
  }
  return MGD_OK;
}

static int count_operands(struct ballot *b, const struct mgd_operand *operands, size_t n, int devices) {
  open_ballot(b, devices);
  b->all = operands;
  b->n = n;
  for (size_t i = 0; i < n; i++) {
    int code = count_operand(b, &operands[i], devices);
    if (code != MGD_OK) {
      return code;
    }
  }
  return n > 0 ? MGD_OK : MGD_E_INVALID;
}

/* Returns the device that a rule prescribes at any cost, or NOWHERE. */
static int prescribed(const struct ballot *b, enum mgd_reason *why) {
  if (b->gradient != NOWHERE) {
    *why = MGD_WHY_GRADIENT;
    return b->gradient;
  }
  if (b->generator != NOWHERE) {
    *why = MGD_WHY_GENERATOR;
    return b->generator;
  }
  /* A pinned operand that is only read can be copied to the device of a written one; a written operand that is pinned,
   * or is on the device of the pin, stays. */
  bool pin_holds = b->pin != NOWHERE && (!b->written || (b->written & bit(b->pin)));
  if (pin_holds) {
    *why = MGD_WHY_PINNED;
    return b->pin;
  }
  if (b->first_written != NOWHERE) {
    *why = MGD_WHY_WRITTEN;
    return b->first_written;
  }
  *why = MGD_WHY_PLACED;
  mgd_mask placed = b->placed;
  return placed && is_single(placed) ? take_lowest(&placed) : NOWHERE;
}

/* Counts the operands on `from` of which `at` keeps no copy, and their bytes. */
static void count_missing(const struct ballot *b, int from, int at, int64_t *bytes, int64_t *operands) {
  *bytes = b->bytes[from];
  *operands = b->operands[from];
  for (size_t i = 0; i < b->n && (b->kept & bit(at)); i++) {
    if (b->all[i].device == from && (b->all[i].kept & bit(at))) {
      *bytes -= b->all[i].bytes;
      --*operands;
    }
  }
}

/* ns to run on `at`: for copies of all operands of other devices of which `at` keeps none, and for evicting to the host
 * what then does not fit. Operands are summed by device first, so that the price does not depend on their order. */
static double price(const struct mgd_machine *m, const struct ballot *b, int at) {
  double ns = 0.0;
  for (mgd_mask rest = b->everyone & ~bit(at); rest;) {
    const int from = take_lowest(&rest);
    int64_t bytes, operands;
    count_missing(b, from, at, &bytes, &operands);
    ns += operands > 0 ? mgd_link_estimate(&m->links[from][at], operands, bytes) : 0.0;
  }
  int64_t excess = b->total - b->bytes[at] - mgd_ledger_room_locked(m, at, 0.0);
  return excess > 0 ? ns + mgd_link_estimate(&m->links[at][MGD_HOST], 1, excess) : ns;
}

/* Whether `at` holds more bytes of the operands than `other`. Of two devices that hold as much, the one with the newest
 * operand counts as more: a chain of layers goes on at its newest result and does not return to where it began. */
static bool holds_more(const struct ballot *b, int at, int other) {
  return b->bytes[at] != b->bytes[other] ? b->bytes[at] > b->bytes[other] : b->made[at] > b->made[other];
}

/* Returns why the holder of most bytes was chosen and not the cheapest device, which is cheaper by at most 20 %, or as
 * cheap with a lower id. NEWEST: another candidate holds as many bytes, so the newest operand decided. */
static enum mgd_reason why_held(const struct ballot *b, mgd_mask candidates, int holder) {
  while (candidates) {
    int at = take_lowest(&candidates);
    if (at != holder && b->bytes[at] == b->bytes[holder]) {
      return MGD_WHY_NEWEST;
    }
  }
  return MGD_WHY_HYSTERESIS;
}

/* Returns the cheapest candidate, unless it saves at most 20 % against the holder of most bytes. The margin (PaRSEC's
 * load-balance skew has the same size) keeps tensors from wandering between devices that cost about the same. */
static int cheapest(const struct mgd_machine *m, const struct ballot *b, mgd_mask candidates, enum mgd_reason *why) {
  int best = NOWHERE, holder = NOWHERE;
  double best_price = 0.0, holder_price = 0.0;
  for (mgd_mask rest = candidates; rest;) {
    int at = take_lowest(&rest);
    double ns = price(m, b, at);
    if (best == NOWHERE || ns < best_price) {
      best = at;
      best_price = ns;
    }
    if (holder == NOWHERE || holds_more(b, at, holder)) {
      holder = at;
      holder_price = ns;
    }
  }
  if (best != holder && best_price >= 0.8 * holder_price) {
    *why = why_held(b, candidates, holder);
    return holder;
  }
  *why = MGD_WHY_COST;
  return best;
}

/* Chooses among the devices of operands that vote; if none votes, among those of all operands. The host is a candidate
 * only if no accelerator is. */
static int elect(const struct mgd_machine *m, const struct ballot *b, enum mgd_reason *why) {
  mgd_mask voters = b->voters ? b->voters : b->everyone;
  mgd_mask accelerators = voters & ~bit(MGD_HOST);
  mgd_mask candidates = accelerators ? accelerators : voters;
  if (is_single(candidates)) {
    *why = candidates == voters ? MGD_WHY_ONLY : MGD_WHY_ACCELERATOR;
    return take_lowest(&candidates);
  }
  return cheapest(m, b, candidates, why);
}

int mgd_place_operands(struct mgd_machine *m, const struct mgd_operand *operands, size_t n, int *device, int *other,
                       enum mgd_reason *why) {
  struct ballot b;
  mgd_state_enter(m);
  int code = count_operands(&b, operands, n, m->count);
  if (code == MGD_OK && b.other_pin != NOWHERE) {
    *device = b.pin;
    *other = b.other_pin;
    code = MGD_E_PIN_CONFLICT;
  } else if (code == MGD_OK) {
    int rule = prescribed(&b, why);
    *device = rule != NOWHERE ? rule : elect(m, &b, why);
  }
  return mgd_state_leave(m, code);
}
