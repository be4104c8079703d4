/* Each invariant stated in internal_machine.h and internal_clock.h, broken on
 * purpose: mgd_check must see it, and so must the next transition of a debug
 * build. The state is put back afterwards, so that each case stands alone. */
#include <math.h>

#include "clock/internal_clock.h"
#include "core/internal_machine.h"
#include "replica.h"

/* Two devices, one granted and two waiting claims on the first, some events. */
static struct mgd_machine *busy_machine(void) {
  struct mgd_machine *m = new_machine(2, 100);
  struct mgd_ticket t = {0};
  const struct mgd_event e = {.kind = MGD_EV_COPY, .from = 1, .to = 2, .bytes = 5};
  EXPECT_OK(mgd_admit_request(m, 1, 80, 0.0, 0, 9, &t));
  EXPECT_CODE(mgd_admit_request(m, 1, 90, 0.0, 0, 9, &t), MGD_E_WAIT);
  EXPECT_CODE(mgd_admit_request(m, 1, 70, 0.0, 0, 9, &t), MGD_E_WAIT);
  EXPECT_OK(mgd_trace_add(m, &e));
  EXPECT_OK(mgd_trace_add(m, &e));
  return m;
}

#define EXPECT_BROKEN(m, field, value) expect_broken(__LINE__, m, &(field), sizeof(field), &(value))

static void expect_broken(int line, struct mgd_machine *m, void *field, size_t size, const void *value) {
  unsigned char before[64];
  memcpy(before, field, size);
  memcpy(field, value, size);
  if (mgd_check(m) != MGD_E_BROKEN) {
    fprintf(stderr, "test_check.c:%d: not noticed\n", line);
    exit(1);
  }
  struct mgd_usage u;
  EXPECT(MGD_DEBUG < 2 || mgd_ledger_usage(m, 0, &u) == MGD_E_BROKEN);
  memcpy(field, before, size);
  EXPECT_OK(mgd_check(m));
}

static const int64_t minus = -1, much = INT64_MAX;
static const double too_slow = -1.0, above_one = 1.5;
static const int32_t astray = 999, end = -1, below = -2;
static const int none = 0, too_many = MGD_MAX_DEVICES + 1, elsewhere = 2, unknown = 3;

static void the_machine(void) {
  struct mgd_machine *m = busy_machine();
  const mgd_heuristic_fn nothing = NULL;
  const char name[MGD_NAME_BYTES] = "gpu";
  EXPECT_BROKEN(m, m->count, none);
  EXPECT_BROKEN(m, m->count, too_many);
  EXPECT_BROKEN(m, m->heuristic, nothing);
  EXPECT_BROKEN(m, m->devices[MGD_HOST].name, name);
  mgd_machine_destroy(m);
}

static void devices_and_their_ledger(void) {
  struct mgd_machine *m = busy_machine();
  struct mgd_device *d = &m->devices[1];
  const char empty[MGD_NAME_BYTES] = "", same[MGD_NAME_BYTES] = "sim:1";
  char endless[MGD_NAME_BYTES];
  memset(endless, 'x', sizeof endless);
  const int64_t other_reserve = 79, low_peak = 79;
  EXPECT_BROKEN(m, d->name, empty);
  EXPECT_BROKEN(m, d->name, same);
  EXPECT_BROKEN(m, d->name, endless);
  EXPECT_BROKEN(m, d->capacity, minus);
  EXPECT_BROKEN(m, d->by_owner[MGD_MANAGED], minus);
  EXPECT_BROKEN(m, d->by_owner[MGD_FOREIGN], much);
  EXPECT_BROKEN(m, d->by_owner[MGD_RESERVED], other_reserve);
  EXPECT_BROKEN(m, d->peak, low_peak);
  const double stands_still = 0.0, endless_speed = (double)INFINITY, no_speed = (double)NAN;
  EXPECT_BROKEN(m, d->speed, too_slow);
  EXPECT_BROKEN(m, d->speed, stands_still);
  EXPECT_BROKEN(m, d->speed, endless_speed);
  EXPECT_BROKEN(m, d->speed, no_speed);
  mgd_machine_destroy(m);
}

static void links(void) {
  struct mgd_machine *m = busy_machine();
  const struct mgd_link slow_self = {1, 0.0}, fast_self = {0, 5.0};
  EXPECT_BROKEN(m, m->links[0][1].latency_ns, minus);
  EXPECT_BROKEN(m, m->links[1][2].bytes_per_ns, too_slow);
  EXPECT_BROKEN(m, m->links[1][1], slow_self);
  EXPECT_BROKEN(m, m->links[1][1], fast_self);
  mgd_machine_destroy(m);
}

static void claims_and_queues(void) {
  struct mgd_machine *m = busy_machine();
  struct mgd_claim *granted = &m->claims.slots[0], *first = &m->claims.slots[1], *last = &m->claims.slots[2];
  const enum mgd_claim_state states[] = {MGD_CLAIM_FREE, MGD_CLAIM_GRANTED, MGD_CLAIM_WAITING, MGD_CLAIM_LATE};
  const uint64_t future = 999;
  const double nothing = -0.5;
  EXPECT_BROKEN(m, m->devices[1].first_waiter, end); /* a waiter in no queue */
  EXPECT_BROKEN(m, m->devices[1].first_waiter, astray);
  EXPECT_BROKEN(m, m->devices[1].first_waiter, below);
  EXPECT_BROKEN(m, m->devices[1].last_waiter, end);
  EXPECT_BROKEN(m, m->devices[2].last_waiter, astray);
  EXPECT_BROKEN(m, last->next, m->devices[1].first_waiter); /* a ring */
  EXPECT_BROKEN(m, last->previous, end);
  EXPECT_BROKEN(m, first->arrival, last->arrival); /* out of order */
  EXPECT_BROKEN(m, first->device, elsewhere);
  EXPECT_BROKEN(m, first->device, unknown);
  EXPECT_BROKEN(m, first->device, below);
  EXPECT_BROKEN(m, first->state, states[0]);
  EXPECT_BROKEN(m, first->state, states[1]);
  EXPECT_BROKEN(m, granted->state, states[2]);
  EXPECT_BROKEN(m, granted->state, states[3]);
  EXPECT_BROKEN(m, granted->bytes, minus);
  EXPECT_BROKEN(m, first->bytes, minus);
  EXPECT_BROKEN(m, last->arrival, future);
  EXPECT_BROKEN(m, granted->device, unknown);
  EXPECT_BROKEN(m, granted->device, below);
  EXPECT_BROKEN(m, granted->reserved, above_one);
  EXPECT_BROKEN(m, granted->reserved, nothing);
  EXPECT_BROKEN(m, granted->arrival, future);
  EXPECT_BROKEN(m, m->claims.first_free, end); /* free slots lost */
  EXPECT_BROKEN(m, m->claims.first_free, astray);
  EXPECT_BROKEN(m, m->claims.first_free, below);
  const int32_t taken = 0, three = 3;
  EXPECT_BROKEN(m, m->claims.first_free, taken);
  EXPECT_BROKEN(m, m->claims.slots[m->claims.size - 1].next, three); /* a ring of free slots */
  mgd_machine_destroy(m);
}

static void a_waiter_that_is_in_no_queue(void) {
  struct mgd_machine *m = busy_machine();
  const struct mgd_object_request r = {1, true, ~(mgd_mask)0, 0.0};
  const enum mgd_claim_state waiting = MGD_CLAIM_WAITING;
  struct mgd_ticket t = {0};
  enum mgd_reason why;
  EXPECT_OK(mgd_admit_object(m, &r, 10, &t, &why)); /* both waiters are late now */
  EXPECT_BROKEN(m, m->claims.slots[1].state, waiting);
  mgd_machine_destroy(m);
}

/* The one transition that has work left after it leaves must not do it. */
static void a_broken_machine_asks_no_callback(void) {
  struct mgd_machine *m = busy_machine();
  int64_t out = 77;
  m->devices[1].capacity = -1;
  EXPECT_CODE(mgd_heuristic_apply(m, 5, &out), MGD_DEBUG >= 2 ? MGD_E_BROKEN : MGD_OK);
  EXPECT_INT(out, MGD_DEBUG >= 2 ? 77 : 8);
  mgd_machine_destroy(m);
}

static void the_ring(void) {
  struct mgd_machine *m = busy_machine();
  struct mgd_trace *t = &m->trace;
  const size_t three = 3, large = 5000;
  const uint64_t one = 1, five = 5;
  EXPECT_BROKEN(m, t->held, three); /* more than were added */
  EXPECT_BROKEN(m, t->held, large);
  EXPECT_BROKEN(m, t->next, large);
  EXPECT_BROKEN(m, t->totals.events, one);
  EXPECT_BROKEN(m, t->totals.events, five);
  EXPECT_BROKEN(m, t->ring[0].sequence, five); /* a gap */
  EXPECT_BROKEN(m, t->ring[1].sequence, five);
  mgd_machine_destroy(m);
}

/* ---- replicas */

enum { EMPTY,
       OLDER,
       NEWER,
       FAR,
       OTHER,
       DOOMED,
       DOOMED_EMPTY,
       UNUSED }; /* slots of copying_machine */

/* Three sources, the last one closed. The first has three copies on device 1, of which one is empty, and one on
 * device 2; the second has one on device 1; two copies are doomed. */
static struct mgd_machine *copying_machine(void) {
  struct mgd_machine *m = new_machine(2, 100);
  uint64_t first = open_source(m), second = open_source(m), last = open_source(m);
  EXPECT_INT(keep(m, first, 1, 0, 0), EMPTY);
  EXPECT_INT(keep(m, first, 1, 1, 10), OLDER);
  EXPECT_INT(keep(m, first, 1, 2, 10), NEWER);
  EXPECT_INT(keep(m, first, 2, 1, 10), FAR);
  EXPECT_INT(keep(m, second, 1, 1, 10), OTHER);
  EXPECT_INT(keep(m, last, 2, 1, 5), DOOMED);
  EXPECT_INT(keep(m, last, 1, 1, 0), DOOMED_EMPTY);
  EXPECT_OK(mgd_replica_drop(m, DOOMED));
  EXPECT_OK(mgd_source_close(m, last));
  return m;
}

static void bytes_of_replicas(void) {
  struct mgd_machine *m = copying_machine();
  struct mgd_replica *e = m->replicas.slots;
  const int64_t eleven = 11, forty = 40, tight = 59;
  EXPECT_BROKEN(m, m->devices[1].by_owner[MGD_REPLICA], eleven);
  EXPECT_BROKEN(m, m->devices[1].kept_bytes, forty);
  EXPECT_BROKEN(m, m->devices[1].capacity, tight); /* 30 bytes are kept */
  EXPECT_BROKEN(m, e[OLDER].bytes, eleven);
  EXPECT_BROKEN(m, e[OLDER].bytes, minus);
  EXPECT_BROKEN(m, e[OLDER].bytes, much);
  EXPECT_BROKEN(m, e[EMPTY].bytes, minus);
  EXPECT_BROKEN(m, e[DOOMED].bytes, eleven);
  EXPECT_BROKEN(m, e[OLDER].device, elsewhere);
  EXPECT_BROKEN(m, e[EMPTY].device, elsewhere); /* in a list that is not its device's */
  EXPECT_BROKEN(m, e[DOOMED].device, none);
  EXPECT_BROKEN(m, e[DOOMED_EMPTY].device, unknown);
  mgd_machine_destroy(m);
}

static void lists_of_replicas(void) {
  struct mgd_machine *m = copying_machine();
  struct mgd_replicas *r = &m->replicas;
  struct mgd_replica *e = r->slots;
  const enum mgd_replica_state states[] = {MGD_REPLICA_FREE, MGD_REPLICA_CACHED, MGD_REPLICA_DOOMED};
  const int32_t used[] = {EMPTY, OLDER, DOOMED, UNUSED};
  struct mgd_replica_list *lists[] = {&m->devices[1].kept, &r->doomed, &r->free};
  for (int i = 0; i < 3; i++) {
    EXPECT_BROKEN(m, lists[i]->first, end);
    EXPECT_BROKEN(m, lists[i]->first, astray);
    EXPECT_BROKEN(m, lists[i]->first, below);
    EXPECT_BROKEN(m, lists[i]->last, end);
    EXPECT_BROKEN(m, lists[i]->last, astray);
    EXPECT_BROKEN(m, *lists[i], m->devices[0].kept);    /* nobody's any more */
    EXPECT_BROKEN(m, m->devices[0].kept, *lists[i]);    /* in two lists */
    EXPECT_BROKEN(m, e[lists[i]->last].next, lists[i]->first); /* a ring */
    EXPECT_BROKEN(m, e[lists[i]->last].previous, end);
    EXPECT_BROKEN(m, e[lists[i]->first].previous, astray);
    EXPECT_BROKEN(m, e[lists[i]->first].next, end);
  }
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < 4; k++) {
      if (e[used[k]].state != states[i]) {
        EXPECT_BROKEN(m, e[used[k]].state, states[i]);
      }
    }
  }
  mgd_machine_destroy(m);
}

static void chains_of_sources(void) {
  struct mgd_machine *m = copying_machine();
  struct mgd_replicas *r = &m->replicas;
  struct mgd_replica *e = r->slots;
  const int32_t older = OLDER, other = OTHER, doomed = DOOMED, unused = UNUSED, second = 1;
  const bool yes = true, no = false;
  const uint64_t same = 1;
  EXPECT_BROKEN(m, r->sources[0].first, end); /* copies that no source has */
  EXPECT_BROKEN(m, r->sources[0].first, astray);
  EXPECT_BROKEN(m, r->sources[0].first, below);
  EXPECT_BROKEN(m, r->sources[0].first, other);
  EXPECT_BROKEN(m, r->sources[0].first, older); /* two are left out */
  EXPECT_BROKEN(m, r->sources[2].first, doomed);
  EXPECT_BROKEN(m, r->sources[2].first, other);
  e[UNUSED].elder = end; /* so that its state is all that is wrong */
  EXPECT_BROKEN(m, r->sources[2].first, unused);
  EXPECT_BROKEN(m, e[EMPTY].sibling, r->sources[0].first); /* a ring */
  EXPECT_BROKEN(m, e[EMPTY].sibling, other);
  EXPECT_BROKEN(m, e[OTHER].sibling, unused);
  EXPECT_BROKEN(m, e[OTHER].source, none);
  EXPECT_BROKEN(m, e[OLDER].source, second);
  EXPECT_BROKEN(m, e[NEWER].extent, same); /* a twin of the older one */
  EXPECT_BROKEN(m, e[OLDER].elder, end);
  EXPECT_BROKEN(m, e[FAR].elder, astray);
  EXPECT_BROKEN(m, r->sources[1].open, no);
  EXPECT_BROKEN(m, r->sources[2].open, yes);
  mgd_machine_destroy(m);
}

static void buckets(void) {
  struct mgd_machine *m = copying_machine();
  struct mgd_replicas *r = &m->replicas;
  struct mgd_replica *e = r->slots;
  int32_t *first = &r->buckets[mgd_replica_table_bucket(r, e[OTHER].source, e[OTHER].device, e[OTHER].extent)];
  const int32_t older = OLDER, other = OTHER, doomed = DOOMED, unused = UNUSED;
  const uint64_t elsewhere_to_look = 99;
  EXPECT_BROKEN(m, *first, end); /* never found again */
  EXPECT_BROKEN(m, *first, astray);
  EXPECT_BROKEN(m, *first, below);
  EXPECT_BROKEN(m, *first, older);
  EXPECT_BROKEN(m, *first, doomed);
  EXPECT_BROKEN(m, *first, unused);
  EXPECT_BROKEN(m, e[OTHER].collision, other); /* a ring */
  EXPECT_BROKEN(m, e[OTHER].collision, older);
  EXPECT_BROKEN(m, e[OTHER].extent, elsewhere_to_look);
  mgd_machine_destroy(m);
}

static void free_sources(void) {
  struct mgd_machine *m = copying_machine();
  struct mgd_replicas *r = &m->replicas;
  const int32_t taken = 0, five = 5;
  const bool no = false;
  EXPECT_BROKEN(m, r->first_free_source, end);
  EXPECT_BROKEN(m, r->first_free_source, astray);
  EXPECT_BROKEN(m, r->first_free_source, below);
  EXPECT_BROKEN(m, r->first_free_source, taken);
  EXPECT_BROKEN(m, r->first_free_source, five); /* two are lost */
  EXPECT_BROKEN(m, r->sources[r->source_size - 1].next, five); /* a ring */
  EXPECT_OK(mgd_source_written(m, (uint64_t)2));
  EXPECT_BROKEN(m, r->sources[1].open, no); /* closed, without a copy, and not free */
  mgd_machine_destroy(m);
}

static void the_sites(void) {
  struct mgd_machine *m = busy_machine();
  struct mgd_sites *s = &m->sites;
  const struct mgd_site place = {.file = "a.py", .function = "f", .line = 3};
  const uint32_t too_many_sites = MGD_MAX_SITES + 1;
  const int32_t line = 4;
  struct mgd_site *const no_list = NULL;
  uint16_t *const no_index = NULL;
  uint32_t id;
  EXPECT_OK(mgd_site_intern(m, &place, &id));
  EXPECT_BROKEN(m, s->count, too_many_sites);
  EXPECT_BROKEN(m, s->list, no_list);
  EXPECT_BROKEN(m, s->index, no_index);
  EXPECT_BROKEN(m, s->list[0].line, line); /* not where its hash says */
  mgd_machine_destroy(m);
}

static void the_repeats(void) {
  struct mgd_machine *m = busy_machine();
  struct mgd_repeats *r = &m->repeats;
  const struct mgd_event copy = {.kind = MGD_EV_COPY, .object = 7, .to = 1};
  const uint64_t never = 0, nobody = 0, later = 99;
  const size_t outside = MGD_REPEAT_SETS * MGD_REPEAT_WAYS, another = 0;
  struct mgd_repeat_slot *const no_slots = NULL;
  struct mgd_repeat repeat;
  EXPECT_BROKEN(m, r->tick, later); /* no slots yet */
  EXPECT_OK(mgd_repeat_add(m, &copy, &repeat));
  EXPECT(r->newest != another);
  EXPECT_BROKEN(m, r->limit, minus);
  EXPECT_BROKEN(m, r->slots, no_slots);
  EXPECT_BROKEN(m, r->tick, never);
  EXPECT_BROKEN(m, r->tick, later);
  EXPECT_BROKEN(m, r->newest, outside);
  EXPECT_BROKEN(m, r->newest, another);
  EXPECT_BROKEN(m, r->slots[r->newest].object, nobody);
  EXPECT_BROKEN(m, r->slots[r->newest].count, never);
  EXPECT_BROKEN(m, r->slots[r->newest].step, later);
  mgd_machine_destroy(m);
}

#define EXPECT_CLOCK_BROKEN(c, field, value) expect_clock_broken(__LINE__, c, &(field), sizeof(field), &(value))

static void expect_clock_broken(int line, struct mgd_clock *c, void *field, size_t size, const void *value) {
  unsigned char before[64];
  int64_t ns;
  memcpy(before, field, size);
  memcpy(field, value, size);
  if (mgd_clock_check(c) != MGD_E_BROKEN) {
    fprintf(stderr, "test_check.c:%d: not noticed\n", line);
    exit(1);
  }
  EXPECT(MGD_DEBUG < 2 || mgd_clock_device_time(c, 0, &ns) == MGD_E_BROKEN);
  memcpy(field, before, size);
  EXPECT_OK(mgd_clock_check(c));
}

/* Asking for a time would work with what is broken. */
#define EXPECT_QUEUE_BROKEN(c, field, value)       \
  do {                                             \
    unsigned char before[sizeof(field)];           \
    const void *other = &(value);                  \
    memcpy(before, &(field), sizeof before);       \
    memcpy(&(field), other, sizeof before);        \
    EXPECT_CODE(mgd_clock_check(c), MGD_E_BROKEN); \
    memcpy(&(field), before, sizeof before);       \
    EXPECT_OK(mgd_clock_check(c));                 \
  } while (0)

static void the_clock(void) {
  const int one = 1;
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(2, &c));
  struct mgd_clock_place *place = mgd_clock_place_of(c, 0);
  EXPECT_CLOCK_BROKEN(c, place->speed.flops_per_ns[MGD_WORK_MATRIX][MGD_INT8], too_slow);
  EXPECT_CLOCK_BROKEN(c, place->speed.bytes_per_ns, too_slow);
  EXPECT_CLOCK_BROKEN(c, place->speed.launch_ns, minus);
  EXPECT_CLOCK_BROKEN(c, place->speed.issue_ns, minus);
  EXPECT_CLOCK_BROKEN(c, place->speed.python_ns, minus);
  EXPECT_CLOCK_BROKEN(c, place->speed.python_ns, much); /* more than all of it */
  EXPECT_CLOCK_BROKEN(c, place->streams[5].free_at, minus);
  EXPECT_CLOCK_BROKEN(c, place->streams[5].free_at, much); /* later than the latest */
  EXPECT_CLOCK_BROKEN(c, place->streams[5].leaving_bytes, much);
  EXPECT_CLOCK_BROKEN(c, place->streams[5].leaving_count, one);
  EXPECT_CLOCK_BROKEN(c, place->issued, minus);
  EXPECT_CLOCK_BROKEN(c, place->issued, much);
  EXPECT_CLOCK_BROKEN(c, place->busy, minus);
  EXPECT_CLOCK_BROKEN(c, place->held, much);
  EXPECT_CLOCK_BROKEN(c, place->leaving, much);
  struct mgd_clock_link *link = mgd_clock_link_of(c, 0, 1);
  EXPECT_CLOCK_BROKEN(c, link->cost.latency_ns, minus);
  EXPECT_CLOCK_BROKEN(c, link->cost.bytes_per_ns, too_slow);
  EXPECT_CLOCK_BROKEN(c, link->free_at, minus);
  EXPECT_CLOCK_BROKEN(c, link->free_at, much); /* later than the latest */
  EXPECT_CLOCK_BROKEN(c, link->busy, much);    /* for longer than there was */
  EXPECT_CLOCK_BROKEN(c, mgd_clock_link_of(c, 0, 0)->queued, one); /* its own link is never busy */
  /* An operator behind a copy that may have to wait. */
  const struct mgd_transfer copy = {0, 0, 1, 0, 5, false, NULL};
  const struct mgd_work nothing = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};
  EXPECT_OK(mgd_clock_wiring_join_bus(c, 0, 1, 0));
  EXPECT_OK(mgd_clock_copy(c, 0, &copy));
  EXPECT_OK(mgd_clock_run(c, 0, 0, 0, &nothing));
  struct mgd_clock_stream *s = &place->streams[0];
  const int run = MGD_TASK_RUN;
  const bool yes = true;
  EXPECT_QUEUE_BROKEN(c, s->queued, one);
  EXPECT_QUEUE_BROKEN(c, s->last, s->first);
  EXPECT_QUEUE_BROKEN(c, s->first->kind, run); /* could have ended */
  EXPECT_QUEUE_BROKEN(c, s->first->known, yes);
  EXPECT_QUEUE_BROKEN(c, s->last->references, none);
  EXPECT_QUEUE_BROKEN(c, s->last->streams[0], mgd_clock_place_of(c, 1)->streams[0]);
  EXPECT_QUEUE_BROKEN(c, link->queued, none);
  const bool no = false;
  EXPECT_QUEUE_BROKEN(c, s->first->is_front, no);
  EXPECT_QUEUE_BROKEN(c, c->fronts, s->last); /* an operator ties nothing */
  EXPECT_QUEUE_BROKEN(c, c->fronts_last, s->last);
  const enum mgd_copy_phase flowing = MGD_COPY_FLOWING;
  EXPECT_QUEUE_BROKEN(c, s->first->phase, flowing); /* and nobody has the link */
  mgd_clock_destroy(c);
}

static void the_lock_of_the_interpreter(void) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create(1, &c));
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.issue_ns = 100, .python_ns = 60}));
  const struct mgd_work nothing = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};
  EXPECT_OK(mgd_clock_run(c, 0, 0, 0, &nothing));
  EXPECT_OK(mgd_clock_run(c, 0, 0, 0, &nothing)); /* 0 to 60, 100 to 160 */
  const int64_t touching = 60;
  EXPECT_CLOCK_BROKEN(c, c->lock.turns[1].begin, touching);
  EXPECT_CLOCK_BROKEN(c, c->lock.turns[1].begin, much);
  EXPECT_CLOCK_BROKEN(c, c->lock.turns[0].end, minus);
  EXPECT_CLOCK_BROKEN(c, c->lock.first, much);
  EXPECT_CLOCK_BROKEN(c, c->lock.last, much);
  mgd_clock_destroy(c);
}

int main(void) {
  the_machine();
  devices_and_their_ledger();
  links();
  claims_and_queues();
  a_waiter_that_is_in_no_queue();
  a_broken_machine_asks_no_callback();
  the_ring();
  bytes_of_replicas();
  lists_of_replicas();
  chains_of_sources();
  buckets();
  free_sources();
  the_sites();
  the_repeats();
  the_clock();
  the_lock_of_the_interpreter();
  return 0;
}
