/* A million random transitions against a model that is as simple as possible:
 * arrays, no queues, no slots, every rule written out again from its text.
 *
 * Usage: test_random [seed] [steps]
 */
#include "random_replica.h"

/* ---- ledger */

static void expect_usage(struct model *x, int d) {
  struct mgd_usage u = usage_of(x->m, d);
  EXPECT_INT(u.capacity, x->capacity[d]);
  for (int o = 0; o < MGD_OWNERS; o++) {
    EXPECT_INT(u.by_owner[o], x->owner[d][o]);
  }
  EXPECT_INT(u.used, used(x, d));
  EXPECT_INT(u.free, room(x, d, 0.0));
  EXPECT_INT(u.peak, x->peak[d]);
}

static void step_observe(struct model *x) {
  int d = (int)roll(x, DEVICES);
  int64_t allocated = roll(x, 700), tensors = allocated - x->owner[d][MGD_REPLICA];
  x->owner[d][MGD_MANAGED] = tensors > 0 ? tensors : 0;
  x->owner[d][MGD_FOREIGN] = roll(x, 300);
  EXPECT_OK(mgd_ledger_observe(x->m, d, allocated, x->owner[d][MGD_FOREIGN]));
  touch(x, d);
}

static void step_capacity(struct model *x) {
  int d = 1 + (int)roll(x, DEVICES - 1);
  x->capacity[d] = 500 + roll(x, 1000);
  EXPECT_OK(mgd_device_set_capacity(x->m, d, x->capacity[d]));
  shrink(x, d, kept_limit(x, d));
  if (roll(x, 4) == 0) {
    x->speed[d] = 1.0 + (double)roll(x, 3);
    EXPECT_OK(mgd_device_set_speed(x->m, d, x->speed[d]));
  }
  if (roll(x, 4) == 0) {
    EXPECT_OK(mgd_ledger_reset_peak(x->m, d));
    x->peak[d] = used(x, d);
  }
}

/* ---- placing one object */

/* Beside others a device is as fast as the part of its memory that they leave. */
static double load_with(const struct model *x, int d, int64_t bytes) {
  double left = 1.0 - (x->capacity[d] > 0 ? (double)x->owner[d][MGD_FOREIGN] / (double)x->capacity[d] : 1.0);
  double speed = x->speed[d] * (left > 0x1p-20 ? left : 0x1p-20);
  return ((double)(x->owner[d][MGD_MANAGED] + x->owner[d][MGD_RESERVED]) + (double)bytes) / speed;
}

/* Devices where `skip` is set do not count. */
static int best_device(const struct model *x, const struct mgd_object_request *r, const bool *skip) {
  int best = MGD_HOST;
  for (int d = DEVICES - 1; d >= 1; d--) {
    int64_t own = room(x, d, r->reserved);
    if (!(r->allowed >> d & 1) || own < r->bytes || skip[d]) {
      continue;
    }
    bool lighter = load_with(x, d, r->bytes) <= load_with(x, best, r->bytes);
    if (best == MGD_HOST || (r->disperse ? lighter : own <= room(x, best, r->reserved))) {
      best = d;
    }
  }
  return best;
}

static struct mgd_object_request some_object(struct model *x) {
  return (struct mgd_object_request){.bytes = roll(x, 10) ? roll(x, 300) : roll(x, 2000),
                                     .disperse = roll(x, 2),
                                     .allowed = roll(x, 4) ? ~(mgd_mask)0 : (mgd_mask)roll(x, 1 << DEVICES),
                                     .reserved = (double)roll(x, 4) / 8.0};
}

/* ---- admission */

static struct claim *oldest_after(struct model *x, int device, uint64_t arrival) {
  struct claim *oldest = NULL;
  for (int i = 0; i < CLAIMS; i++) {
    struct claim *c = &x->claims[i];
    bool later = c->state == WAITING && c->device == device && c->arrival > arrival;
    if (later && (!oldest || c->arrival < oldest->arrival)) {
      oldest = c;
    }
  }
  return oldest;
}

/* Serves a queue and tells whether somebody in it must not be overtaken. */
static bool serve(struct model *x, int device, const struct claim *asking) {
  bool blocked = false;
  uint64_t arrival = 0;
  for (struct claim *c; (c = oldest_after(x, device, arrival)) != NULL;) {
    arrival = c->arrival;
    if (x->now >= c->deadline && c != asking) {
      c->state = LATE;
    } else if (!blocked && c->bytes <= room(x, device, c->reserved)) {
      c->state = GRANTED;
      x->owner[device][MGD_RESERVED] += c->bytes;
      touch(x, device);
    } else if (c->bytes <= limit(x, device, c->reserved)) {
      blocked = true;
    }
  }
  return blocked;
}

static struct claim *unused_claim(struct model *x) {
  for (int i = 0; i < CLAIMS; i++) {
    if (x->claims[i].state == UNUSED) {
      return &x->claims[i];
    }
  }
  return NULL;
}

static void reserve(struct model *x, struct claim *c) {
  c->state = GRANTED;
  x->owner[c->device][MGD_RESERVED] += c->bytes;
  touch(x, c->device);
}

static void step_request(struct model *x) {
  struct claim *c = unused_claim(x);
  if (!c) {
    return;
  }
  *c = (struct claim){.device = (int)roll(x, DEVICES),
                      .bytes = roll(x, 600),
                      .reserved = (double)roll(x, 4) / 8.0,
                      .deadline = x->now + roll(x, 60) - 5,
                      .arrival = ++x->arrivals};
  int expected = MGD_E_NO_ROOM;
  if (c->bytes <= limit(x, c->device, c->reserved)) {
    bool blocked = serve(x, c->device, NULL);
    bool free = !blocked && c->bytes <= room(x, c->device, c->reserved);
    expected = free ? MGD_OK : x->now >= c->deadline ? MGD_E_DEADLINE
                                                     : MGD_E_WAIT;
  }
  EXPECT_CODE(mgd_admit_request(x->m, c->device, c->bytes, c->reserved, x->now, c->deadline, &c->ticket), expected);
  if (expected == MGD_OK) {
    reserve(x, c);
  } else if (expected == MGD_E_WAIT) {
    c->state = WAITING;
  }
}

static void step_admit_object(struct model *x) {
  struct claim *c = unused_claim(x);
  bool queued[DEVICES] = {false};
  if (!c) {
    return;
  }
  struct mgd_object_request r = some_object(x);
  for (int d = 1; d < DEVICES; d++) {
    queued[d] = (r.allowed >> d & 1) && serve(x, d, NULL);
  }
  *c = (struct claim){.device = best_device(x, &r, queued), .bytes = r.bytes, .reserved = r.reserved};
  enum mgd_reason why;
  EXPECT_OK(mgd_admit_object(x->m, &r, x->now, &c->ticket, &why));
  EXPECT_INT(c->ticket.device, c->device);
  EXPECT((c->ticket.id == 0) == (c->device == MGD_HOST));
  if (c->device != MGD_HOST) {
    reserve(x, c);
  }
}

static void step_poll(struct model *x) {
  struct claim *c = &x->claims[roll(x, CLAIMS)];
  int expected = MGD_E_INVALID;
  if (c->state == WAITING) {
    (void)serve(x, c->device, c);
    expected = x->now >= c->deadline ? MGD_E_DEADLINE : MGD_E_WAIT;
  }
  expected = c->state == GRANTED ? MGD_OK : c->state == LATE ? MGD_E_DEADLINE
                                                             : expected;
  EXPECT_CODE(mgd_admit_poll(x->m, &c->ticket, x->now), expected);
  if (expected == MGD_E_DEADLINE) {
    EXPECT_INT(c->ticket.id, 0);
    c->state = UNUSED;
  }
}

static void step_release(struct model *x) {
  struct claim *c = &x->claims[roll(x, CLAIMS)];
  struct mgd_ticket stale = c->ticket;
  EXPECT_CODE(mgd_admit_release(x->m, &c->ticket), c->state == UNUSED ? MGD_E_INVALID : MGD_OK);
  x->owner[c->device][MGD_RESERVED] -= c->state == GRANTED ? c->bytes : 0;
  c->state = UNUSED;
  EXPECT_CODE(mgd_admit_release(x->m, &stale), MGD_E_INVALID);
}

/* ---- placing operands: bandwidths are powers of two, so that prices are exact */

static double price(const struct model *x, const struct mgd_operand *o, int n, int at) {
  double ns = 0.0;
  int64_t brought = 0;
  for (int i = 0; i < n; i++) {
    if (o[i].device != at) {
      const struct mgd_link *l = &x->link[o[i].device][at];
      ns += o[i].kept >> at & 1 ? 0.0 : (double)l->latency_ns + (double)o[i].bytes / l->bytes_per_ns;
      brought += o[i].bytes; /* a kept copy needs its room, too */
    }
  }
  int64_t excess = brought - room(x, at, 0.0);
  if (excess > 0 && at != MGD_HOST) {
    ns += (double)x->link[at][MGD_HOST].latency_ns + (double)excess / x->link[at][MGD_HOST].bytes_per_ns;
  }
  return ns;
}

static int64_t held(const struct mgd_operand *o, int n, int at) {
  int64_t bytes = 0;
  for (int i = 0; i < n; i++) {
    bytes += o[i].device == at ? o[i].bytes : 0;
  }
  return bytes;
}

/* Number of the voter that was made last. */
static uint64_t newest(const struct mgd_operand *o, int n, int at) {
  uint64_t made = 0;
  for (int i = 0; i < n; i++) {
    made = o[i].device == at && (o[i].flags & MGD_OP_VOTES) && o[i].made > made ? o[i].made : made;
  }
  return made;
}

static bool holds_more(const struct mgd_operand *o, int n, int at, int than) {
  int64_t here = held(o, n, at), there = held(o, n, than);
  return here > there || (here == there && newest(o, n, at) > newest(o, n, than));
}

static int first_with(const struct mgd_operand *o, int n, unsigned flag) {
  for (int i = 0; i < n; i++) {
    if (o[i].flags & flag) {
      return o[i].device;
    }
  }
  return -1;
}

static bool any(const struct mgd_operand *o, int n, unsigned flag, int at) {
  for (int i = 0; i < n; i++) {
    if ((o[i].flags & flag) == flag && o[i].device == at) {
      return true;
    }
  }
  return false;
}

/* The accelerator where all voting parameters are that were put on one, or -1. */
static int placed(const struct mgd_operand *o, int n) {
  int at = -1;
  for (int d = 1; d < DEVICES; d++) {
    if (any(o, n, MGD_OP_PLACED | MGD_OP_VOTES, d)) {
      at = at < 0 ? d : DEVICES;
    }
  }
  return at < DEVICES ? at : -1;
}

/* Least price among candidates, most bytes among candidates, 20 % between. */
static int elected(const struct model *x, const struct mgd_operand *o, int n) {
  unsigned flag = first_with(o, n, MGD_OP_VOTES) >= 0 ? MGD_OP_VOTES : 0;
  int cheap = -1, most = -1;
  for (int turn = 0; turn < 2 && cheap < 0; turn++) { /* accelerators first */
    for (int d = turn ? 0 : 1; d < (turn ? 1 : DEVICES); d++) {
      if (!any(o, n, flag, d)) {
        continue;
      }
      cheap = cheap < 0 || price(x, o, n, d) < price(x, o, n, cheap) ? d : cheap;
      most = most < 0 || holds_more(o, n, d, most) ? d : most;
    }
  }
  return price(x, o, n, cheap) < 0.8 * price(x, o, n, most) ? cheap : most;
}

static int expected_device(const struct model *x, const struct mgd_operand *o, int n, int *other) {
  int pin = first_with(o, n, MGD_OP_PINNED), written = first_with(o, n, MGD_OP_WRITTEN);
  for (int i = 0; i < n; i++) {
    if ((o[i].flags & MGD_OP_PINNED) && o[i].device != pin) {
      *other = o[i].device;
      return pin;
    }
  }
  if (first_with(o, n, MGD_OP_GENERATOR) >= 0) {
    return first_with(o, n, MGD_OP_GENERATOR);
  }
  if (pin >= 0 && (written < 0 || any(o, n, MGD_OP_WRITTEN, pin))) {
    return pin;
  }
  int parameters = placed(o, n);
  return written >= 0 ? written : parameters >= 0 ? parameters : elected(x, o, n);
}

static void step_operands(struct model *x) {
  struct mgd_operand o[6] = {{0}};
  int n = 1 + (int)roll(x, 6), device = -1, other = -1, expected_other = -1;
  bool special = roll(x, 3) == 0;
  for (int i = 0; i < n; i++) {
    unsigned flags = roll(x, 3) ? MGD_OP_VOTES : 0;
    flags |= special && roll(x, 4) == 0 ? MGD_OP_PINNED : 0;
    flags |= special && roll(x, 4) == 0 ? MGD_OP_WRITTEN : 0;
    flags |= special && roll(x, 12) == 0 ? MGD_OP_GENERATOR : 0;
    flags |= roll(x, 8) == 0 ? MGD_OP_PLACED : 0;
    o[i] = (struct mgd_operand){(int)roll(x, DEVICES), flags, roll(x, 2) ? roll(x, 700) : 300, (uint64_t)roll(x, 4),
                                roll(x, 3) ? 0 : (mgd_mask)roll(x, 1 << DEVICES)};
  }
  int expected = expected_device(x, o, n, &expected_other);
  enum mgd_reason why;
  EXPECT_CODE(mgd_place_operands(x->m, o, (size_t)n, &device, &other, &why),
              expected_other >= 0 ? MGD_E_PIN_CONFLICT : MGD_OK);
  EXPECT_INT(device, expected);
  EXPECT_INT(other, expected_other);
}

/* ---- trace */

static void step_trace(struct model *x) {
  struct mgd_event e = {.kind = (int16_t)roll(x, KINDS),
                        .object = (uint64_t)roll(x, 4),
                        .time = x->now,
                        .duration = roll(x, 9),
                        .bytes = roll(x, 99),
                        .from = (int16_t)(roll(x, DEVICES + 1) - 1),
                        .to = (int16_t)(roll(x, DEVICES + 1) - 1)};
  EXPECT_OK(mgd_trace_add(x->m, &e));
  e.sequence = ++x->events;
  x->ring[e.sequence % RING] = e;
  x->count[e.kind]++;
  x->bytes[e.kind] += e.bytes;
  x->ns[e.kind] += e.duration;
  if ((e.kind <= MGD_EV_WRITE_BACK || e.kind == MGD_EV_SPILL || e.kind == MGD_EV_SPARE || e.kind == MGD_EV_RESTORE) && e.from >= 0 && e.to >= 0) {
    x->link_count[e.from][e.to]++;
    x->link_bytes[e.from][e.to] += e.bytes;
  }
}

static void step_read(struct model *x) {
  struct mgd_event out[RING];
  size_t n = (size_t)roll(x, RING + 1), at = n;
  uint64_t dropped = 0, object = (uint64_t)roll(x, 4), oldest = x->events > RING ? x->events - RING + 1 : 1;
  EXPECT_OK(mgd_trace_read(x->m, object, out, &n, &dropped));
  EXPECT_INT(dropped, oldest - 1);
  for (uint64_t s = x->events; s >= oldest && at > 0; s--) {
    const struct mgd_event *e = &x->ring[s % RING];
    if (object == 0 || e->object == object) {
      at--;
      EXPECT(n > 0);
      EXPECT_INT(out[--n].sequence, e->sequence);
      EXPECT_INT(out[n].bytes, e->bytes);
    }
  }
  EXPECT_INT(n, 0);
}

static void expect_totals(struct model *x) {
  struct mgd_totals now = totals_of(x->m);
  EXPECT_INT(now.events, x->events);
  for (int k = 0; k < KINDS; k++) {
    EXPECT_TOTAL(now.by_kind[k], x->count[k], x->bytes[k], x->ns[k]);
  }
  for (int f = 0; f < DEVICES; f++) {
    for (int t = 0; t < DEVICES; t++) {
      EXPECT_INT(now.by_link[f][t].bytes, x->link_bytes[f][t]);
      EXPECT_INT(now.by_link[f][t].count, x->link_count[f][t]);
    }
  }
}

/* ---- the run */

static struct model *new_model(uint64_t seed) {
  const struct mgd_config config = {.trace_events = RING};
  struct model *x = calloc(1, sizeof *x);
  EXPECT(x);
  x->random = seed;
  EXPECT_OK(mgd_machine_create(&config, &x->m));
  for (int d = 0; d < DEVICES; d++) {
    char name[8] = {(char)('a' + d), '\0'};
    int id;
    x->capacity[d] = d ? 1000 : INT64_MAX;
    x->speed[d] = 1.0;
    EXPECT(d == MGD_HOST || mgd_device_add(x->m, name, 1000, &id) == MGD_OK);
  }
  for (int f = 0; f < DEVICES; f++) {
    for (int t = 0; t < DEVICES; t++) {
      x->link[f][t] = (struct mgd_link){roll(x, 200), (double)(1 << roll(x, 4))};
      EXPECT(f == t || mgd_link_set(x->m, f, t, x->link[f][t]) == MGD_OK);
    }
  }
  return x;
}

static void step(struct model *x) {
  static void (*const steps[])(struct model *) = {
      step_observe, step_observe, step_observe,  step_request, step_request,  step_admit_object, step_poll,
      step_poll,    step_poll,    step_release,  step_release, step_operands, step_operands,     step_trace,
      step_trace,   step_read,    step_capacity, step_source,  step_written,  step_keep,         step_keep,
      step_keep,    step_keep,    step_find,     step_find,    step_find,     step_drop,         step_make_room,
      step_reap,    step_reap,    step_reap};
  steps[roll(x, (int64_t)(sizeof steps / sizeof *steps))](x);
  x->now += roll(x, 4);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_random: seed %" PRIu64 ", %" PRId64 " steps\n", seed, steps);
  (void)fflush(stdout);
  struct model *x = new_model(seed);
  for (int64_t i = 0; i < steps; i++) {
    step(x);
    expect_usage(x, (int)(i % DEVICES));
    if (i % 1024 == 0) {
      EXPECT_OK(mgd_check(x->m)); /* also where transitions do not check by themselves */
      expect_totals(x);
    }
  }
  for (int i = 0; i < CLAIMS; i++) {
    EXPECT(x->claims[i].state == UNUSED || mgd_admit_release(x->m, &x->claims[i].ticket) == MGD_OK);
  }
  close_all(x);
  for (int d = 0; d < DEVICES; d++) {
    EXPECT_INT(reserved_of(x->m, d), 0);
    EXPECT_INT(usage_of(x->m, d).by_owner[MGD_REPLICA], 0);
  }
  expect_totals(x);
  mgd_machine_destroy(x->m);
  free(x);
  return 0;
}
