/* admit.c: reservations with deadlines.
 *
 * Admission promises bytes of a device before they are allocated, first come first served. It decides and never sleeps:
 * a caller that must wait gets a ticket and polls it when bytes came back or its time is over. The binding implements
 * the wait and wakes the waiting threads.
 *
 * The order of a queue is never broken: a request is granted only if no earlier request waits on that device, even if
 * it is small enough to fit. Two kinds of waiting requests block no later ones: those whose deadline has passed, and
 * those that cannot be served any more because the device shrank.
 */
#include "core/internal_machine.h"

#define NO_SLOT (-1)

/* ---- slots */

static int32_t slot_of_claim(const struct mgd_claims *claims, const struct mgd_claim *c) {
  return (int32_t)(c - claims->slots);
}

static int grow_claims(struct mgd_machine *m) {
  struct mgd_claims *claims = &m->claims;
  int32_t size = claims->size ? claims->size * 2 : 16;
  struct mgd_claim *slots = mgd_alloc_resize(&m->alloc, claims->slots, (size_t)size, sizeof *slots);
  if (!slots) {
    return MGD_E_NOMEM;
  }
  claims->slots = slots;
  for (int32_t i = size - 1; i >= claims->size; i--) {
    slots[i] = (struct mgd_claim){.next = claims->first_free, .previous = NO_SLOT};
    claims->first_free = i;
  }
  claims->size = size;
  return MGD_OK;
}

/* Returns the claim of a ticket, or NULL for a stale or invented ticket. */
static struct mgd_claim *find_claim(struct mgd_machine *m, const struct mgd_ticket *ticket) {
  uint32_t position = (uint32_t)ticket->id;
  if (position == 0 || position > (uint32_t)m->claims.size) {
    return NULL;
  }
  struct mgd_claim *c = &m->claims.slots[position - 1];
  bool current = c->state != MGD_CLAIM_FREE && c->generation == (uint32_t)(ticket->id >> 32);
  return current ? c : NULL;
}

static uint64_t id_of(const struct mgd_claims *claims, const struct mgd_claim *c) {
  return (uint64_t)c->generation << 32 | (uint64_t)(slot_of_claim(claims, c) + 1);
}

/* Ends the claim and its ticket. */
static void forget(struct mgd_machine *m, struct mgd_claim *c, struct mgd_ticket *ticket) {
  c->state = MGD_CLAIM_FREE;
  c->generation++;
  c->next = m->claims.first_free;
  m->claims.first_free = slot_of_claim(&m->claims, c);
  ticket->id = 0;
}

/* ---- queues */

static void enqueue(struct mgd_machine *m, struct mgd_claim *c) {
  struct mgd_device *d = &m->devices[c->device];
  int32_t slot = slot_of_claim(&m->claims, c);
  c->next = NO_SLOT;
  c->previous = d->last_waiter;
  *(c->previous == NO_SLOT ? &d->first_waiter : &m->claims.slots[c->previous].next) = slot;
  d->last_waiter = slot;
}

static void dequeue(struct mgd_machine *m, struct mgd_claim *c) {
  struct mgd_device *d = &m->devices[c->device];
  *(c->previous == NO_SLOT ? &d->first_waiter : &m->claims.slots[c->previous].next) = c->next;
  *(c->next == NO_SLOT ? &d->last_waiter : &m->claims.slots[c->next].previous) = c->previous;
  c->next = c->previous = NO_SLOT;
}

/* ---- decisions */

static bool fits_now(const struct mgd_machine *m, const struct mgd_claim *c) {
  return c->bytes <= mgd_ledger_room_locked(m, c->device, c->reserved);
}

static bool could_fit(const struct mgd_machine *m, const struct mgd_claim *c) {
  return c->bytes <= mgd_ledger_limit_locked(m, c->device, c->reserved);
}

static void grant(struct mgd_machine *m, struct mgd_claim *c) {
  c->state = MGD_CLAIM_GRANTED;
  mgd_ledger_move_locked(m, c->device, MGD_RESERVED, c->bytes);
}

/* Serves a device's queue: grants claims from the front while there is room, and drops late ones. `asking` is served
 * even if it is late, because its caller polls right now. Returns whether a claim is left that no later one may
 * overtake. Claims are granted before their callers poll, so the outcome does not depend on the order in which woken
 * threads poll. */
static bool serve(struct mgd_machine *m, int device, int64_t now, const struct mgd_claim *asking) {
  bool blocked = false;
  for (int32_t slot = m->devices[device].first_waiter; slot != NO_SLOT;) {
    struct mgd_claim *c = &m->claims.slots[slot];
    slot = c->next;
    if (c != asking && now >= c->deadline) {
      dequeue(m, c);
      c->state = MGD_CLAIM_LATE;
    } else if (!blocked && fits_now(m, c)) {
      dequeue(m, c);
      grant(m, c);
    } else {
      blocked = blocked || could_fit(m, c);
    }
  }
  return blocked;
}

/* Makes a claim in a free slot; the caller made sure that there is one. */
static struct mgd_claim *open_claim(struct mgd_machine *m, int device, int64_t bytes, double reserved,
                                    int64_t deadline) {
  struct mgd_claim *c = &m->claims.slots[m->claims.first_free];
  m->claims.first_free = c->next;
  c->next = c->previous = NO_SLOT;
  c->device = device;
  c->bytes = bytes;
  c->reserved = reserved;
  c->deadline = deadline;
  c->arrival = ++m->claims.arrivals;
  return c;
}

static void write_ticket(const struct mgd_machine *m, const struct mgd_claim *c, struct mgd_ticket *ticket) {
  ticket->id = id_of(&m->claims, c);
  ticket->device = c->device;
  ticket->bytes = c->bytes;
}

static int ensure_slot(struct mgd_machine *m) { return m->claims.first_free == NO_SLOT ? grow_claims(m) : MGD_OK; }

static int request(struct mgd_machine *m, const struct mgd_claim *wish, int64_t now, struct mgd_ticket *ticket) {
  if (!mgd_state_knows_device_locked(m, wish->device)) {
    return MGD_E_NO_DEVICE;
  }
  if (!could_fit(m, wish)) {
    return MGD_E_NO_ROOM;
  }
  int code = ensure_slot(m);
  if (code != MGD_OK) {
    return code;
  }
  bool free = !serve(m, wish->device, now, NULL) && fits_now(m, wish);
  if (!free && now >= wish->deadline) {
    return MGD_E_DEADLINE;
  }
  struct mgd_claim *c = open_claim(m, wish->device, wish->bytes, wish->reserved, wish->deadline);
  if (free) {
    grant(m, c);
  } else {
    c->state = MGD_CLAIM_WAITING;
    enqueue(m, c);
  }
  write_ticket(m, c, ticket);
  return free ? MGD_OK : MGD_E_WAIT;
}

int mgd_admit_request(struct mgd_machine *m, int device, int64_t bytes, double reserved, int64_t now, int64_t deadline,
                      struct mgd_ticket *ticket) {
  if (bytes < 0 || !(reserved >= 0.0 && reserved < 1.0)) {
    return MGD_E_INVALID;
  }
  struct mgd_claim wish = {.device = device, .bytes = bytes, .reserved = reserved, .deadline = deadline};
  mgd_state_enter(m);
  return mgd_state_leave(m, request(m, &wish, now, ticket));
}

/* Returns the devices of `allowed` without a queue: on other devices the object would overtake a waiting claim. */
static mgd_mask without_queues(struct mgd_machine *m, mgd_mask allowed, int64_t now) {
  mgd_mask open = 0;
  for (int id = 1; id < m->count; id++) {
    mgd_mask own = (mgd_mask)1 << id;
    if ((allowed & own) && !serve(m, id, now, NULL)) {
      open |= own;
    }
  }
  return open;
}

static int admit_object(struct mgd_machine *m, const struct mgd_object_request *object, int64_t now,
                        struct mgd_ticket *ticket, enum mgd_reason *why) {
  int code = ensure_slot(m);
  if (code != MGD_OK) {
    return code;
  }
  mgd_mask open = without_queues(m, object->allowed, now);
  int device = mgd_place_pick_locked(m, object, open, why);
  if (device == MGD_HOST) {
    *ticket = (struct mgd_ticket){.device = MGD_HOST, .bytes = object->bytes};
    return MGD_OK;
  }
  struct mgd_claim *c = open_claim(m, device, object->bytes, object->reserved, now);
  grant(m, c);
  write_ticket(m, c, ticket);
  return MGD_OK;
}

int mgd_admit_object(struct mgd_machine *m, const struct mgd_object_request *request, int64_t now,
                     struct mgd_ticket *ticket, enum mgd_reason *why) {
  int code = mgd_place_validate(request);
  if (code != MGD_OK) {
    return code;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, admit_object(m, request, now, ticket, why));
}

static int look(struct mgd_machine *m, struct mgd_ticket *ticket, int64_t now) {
  struct mgd_claim *c = find_claim(m, ticket);
  if (!c) {
    return MGD_E_INVALID;
  }
  if (c->state == MGD_CLAIM_WAITING) {
    (void)serve(m, c->device, now, c);
  }
  if (c->state == MGD_CLAIM_GRANTED) {
    return MGD_OK;
  }
  if (c->state == MGD_CLAIM_WAITING && now < c->deadline) {
    return MGD_E_WAIT;
  }
  if (c->state == MGD_CLAIM_WAITING) {
    dequeue(m, c);
  }
  forget(m, c, ticket);
  return MGD_E_DEADLINE;
}

int mgd_admit_poll(struct mgd_machine *m, struct mgd_ticket *ticket, int64_t now) {
  mgd_state_enter(m);
  return mgd_state_leave(m, look(m, ticket, now));
}

int mgd_admit_release(struct mgd_machine *m, struct mgd_ticket *ticket) {
  mgd_state_enter(m);
  struct mgd_claim *c = find_claim(m, ticket);
  if (!c) {
    return mgd_state_leave(m, MGD_E_INVALID);
  }
  if (c->state == MGD_CLAIM_GRANTED) {
    mgd_ledger_move_locked(m, c->device, MGD_RESERVED, -c->bytes);
  } else if (c->state == MGD_CLAIM_WAITING) {
    dequeue(m, c);
  }
  forget(m, c, ticket);
  return mgd_state_leave(m, MGD_OK);
}
