/* Which holder is asked for what it keeps, for how many bytes, and which one is left alone for how long.
 *
 * Small cases, then a random run against a model in which a rest follows from past turns: nothing counts down.
 *
 * Usage: test_holders [seed] [steps]
 */
#include "expect.h"

static int add(struct mgd_machine *m, int64_t keep) {
  static int names = 0;
  char name[32];
  int id = 0;
  (void)snprintf(name, sizeof name, "holder %d", ++names);
  EXPECT_OK(mgd_holders_add(m, name, keep, &id));
  EXPECT(id > 0);
  return id;
}

static struct mgd_holding holding(struct mgd_machine *m, int id, int device) {
  struct mgd_holding all[MGD_MAX_HOLDERS];
  int n = -1, i = 0;
  EXPECT_OK(mgd_holders_read(m, device, all, &n));
  for (; i < n && all[i].id != id; i++) {}
  EXPECT(i < n);
  return all[i];
}

static void expect_holding(int line, struct mgd_holding is, struct mgd_holding expected) {
  expect_int(__FILE__, line, "live", is.live, expected.live);
  expect_int(__FILE__, line, "cached", is.cached, expected.cached);
  expect_int(__FILE__, line, "asked", is.asked, expected.asked);
  expect_int(__FILE__, line, "given", is.given, expected.given);
  expect_int(__FILE__, line, "asks", is.asks, expected.asks);
  expect_int(__FILE__, line, "rest", is.rest, expected.rest);
}
#define EXPECT_HOLDING(is, ...) expect_holding(__LINE__, is, (struct mgd_holding){__VA_ARGS__})

static struct mgd_holder_round begin(struct mgd_machine *m, int device, int requester) {
  struct mgd_holder_round r;
  EXPECT_OK(mgd_holders_begin(m, device, requester, &r));
  EXPECT_INT(r.device, device);
  return r;
}

static bool contains(const struct mgd_holder_round *r, int id) {
  int times = 0;
  for (int i = 0; i < r->count; i++) { times += r->entries[i].id == id; }
  EXPECT(times <= 1);
  return times == 1;
}

static void report(struct mgd_machine *m, struct mgd_holder_round *r, int id, int64_t cached) {
  EXPECT_OK(mgd_holders_reported(m, r, id, 0, cached));
}

/* The holder that is asked, 0 if none is left; for `expected` bytes. */
static int ask(struct mgd_machine *m, struct mgd_holder_round *r, int64_t missing, int64_t expected) {
  int id = 0;
  int64_t bytes = 0;
  int code = mgd_holders_next(m, r, missing, &id, &bytes);
  EXPECT_CODE(code, id ? MGD_OK : MGD_E_ABSENT);
  EXPECT_INT(bytes, expected);
  return id;
}

/* ---- whose turn it is, and for how much */

static void a_request_of_a_holder_asks_none(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  int a = add(m, 0), b = add(m, 0);
  struct mgd_holder_round r = {.device = 77};
  EXPECT_CODE(mgd_holders_begin(m, 1, a, &r), MGD_E_ABSENT);
  EXPECT_INT(r.device, 77);
  EXPECT_INT(r.count, 0);
  EXPECT_CODE(mgd_holders_reported(m, &r, b, 0, 100), MGD_E_INVALID);
  EXPECT_INT(begin(m, 1, 0).count, 2);
  mgd_machine_destroy(m);
}

static void those_that_rest_are_woken_once(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  int rests = add(m, 0), asked = add(m, 0);
  struct mgd_holder_round r = begin(m, 1, 0);
  report(m, &r, rests, 0);
  report(m, &r, asked, 100);
  r = begin(m, 1, 0);
  EXPECT(r.count == 1 && contains(&r, asked));
  EXPECT_OK(mgd_holders_wake(m, &r));
  EXPECT(r.count == 1 && contains(&r, rests));
  EXPECT_HOLDING(holding(m, rests, 1), .rest = 1); /* as before */
  report(m, &r, rests, 70);
  EXPECT_INT(ask(m, &r, 1000, 70), rests);
  EXPECT_OK(mgd_holders_gave(m, &r, rests, 70));
  EXPECT_HOLDING(holding(m, rests, 1), .asks = 1, .asked = 70, .given = 70);
  mgd_machine_destroy(m);
}

static void the_most_cached_is_asked_first_and_each_once(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  int a = add(m, 0), b = add(m, 0), c = add(m, 0), silent = add(m, 0);
  struct mgd_holder_round r = begin(m, 1, 0);
  EXPECT(r.count == 4 && contains(&r, a) && contains(&r, b) && contains(&r, c) && contains(&r, silent));
  EXPECT_INT(ask(m, &r, 100, 0), 0); /* nothing is known yet */
  report(m, &r, a, 100);
  report(m, &r, b, 300);
  report(m, &r, c, 200);
  EXPECT(ask(m, &r, 0, 0) == 0 && ask(m, &r, -1, 0) == 0);
  EXPECT_INT(ask(m, &r, 50, 50), b);
  EXPECT_INT(ask(m, &r, 200, 200), c);
  EXPECT_INT(ask(m, &r, INT64_MAX, 100), a);
  EXPECT_INT(ask(m, &r, 1, 0), 0); /* although b has more */
  mgd_machine_destroy(m);
}

static void what_it_may_keep_is_not_asked_for(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  int frugal = add(m, 0), some = add(m, 100), all = add(m, INT64_MAX);
  struct mgd_holder_round r = begin(m, 1, 0);
  report(m, &r, frugal, 60);
  report(m, &r, some, 150);
  report(m, &r, all, INT64_MAX);
  EXPECT_INT(ask(m, &r, 1000, 60), frugal); /* it has less, and more to spare */
  EXPECT_INT(ask(m, &r, 1000, 50), some);
  EXPECT_INT(ask(m, &r, 1000, 0), 0);
  EXPECT_INT(holding(m, all, 1).rest, 2);
  r = begin(m, 1, 0);
  report(m, &r, frugal, INT64_MAX);
  report(m, &r, some, 101);
  EXPECT_INT(ask(m, &r, INT64_MAX - 60, INT64_MAX - 60), frugal);
  EXPECT_INT(ask(m, &r, 1000, 1), some);
  r = begin(m, 1, 0);
  report(m, &r, some, 100);
  EXPECT_INT(ask(m, &r, 1000, 0), 0);
  mgd_machine_destroy(m);
}

/* ---- rest */

/* How many rounds pass without it. *r is the first that has it. */
static int missed(struct mgd_machine *m, int device, int id, struct mgd_holder_round *r) {
  const int64_t rest = holding(m, id, device).rest;
  int n = 0;
  for (; *r = begin(m, device, 0), !contains(r, id); n++) { EXPECT_INT(holding(m, id, device).rest, rest - n - 1); }
  EXPECT_INT(n, rest);
  return n;
}

static void give(struct mgd_machine *m, struct mgd_holder_round *r, int id, int64_t given) {
  report(m, r, id, 10);
  EXPECT_INT(ask(m, r, 5, 5), id);
  EXPECT_OK(mgd_holders_gave(m, r, id, given));
}

static void what_gives_nothing_rests_ever_longer(void) {
  for (int kind = 0; kind < 3; kind++) { /* gives nothing, reports nothing, and both in turn */
    struct mgd_machine *m = new_machine(1, 1000);
    int id = add(m, 0);
    struct mgd_holder_round r = begin(m, 1, 0);
    for (int again = 0; again < 2; again++) {
      for (int i = 1; i <= 8; i++) {
        report(m, &r, id, 10); /* not asked: that is no turn */
        EXPECT_INT(missed(m, 1, id, &r), 0);
        kind == 1 || kind == i % 2 + 1 ? report(m, &r, id, 0) : give(m, &r, id, i % 3 - 2);
        EXPECT_INT(missed(m, 1, id, &r), i < 6 ? 1 << i : 64);
      }
      EXPECT_INT(holding(m, id, 1).given, again); /* less than nothing is nothing */
      give(m, &r, id, 1);                         /* one byte ends the rests */
      EXPECT_INT(missed(m, 1, id, &r), 0);
    }
    mgd_machine_destroy(m);
  }
}

static void each_device_and_each_holder_rests_alone(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  int id = add(m, 0), neighbour = add(m, 0);
  struct mgd_holder_round r = begin(m, 1, 0), second;
  report(m, &r, id, 0);
  EXPECT_INT(missed(m, 2, id, &second), 0);
  EXPECT_INT(missed(m, 1, neighbour, &r), 0);
  EXPECT_INT(holding(m, id, 1).rest, 1); /* rounds of device 2 do not count */
  give(m, &second, id, 5);
  EXPECT_INT(missed(m, 1, id, &r), 1);
  give(m, &r, id, 0);
  EXPECT_INT(missed(m, 1, id, &r), 4); /* what it gave on device 2 does not count here */
  mgd_machine_destroy(m);
}

/* ---- what comes and goes, and what is refused */

static void there_is_a_limit_and_no_id_comes_twice(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  int ids[MGD_MAX_HOLDERS], id = 77, last = 0;
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    ids[i] = add(m, 100);
    EXPECT(ids[i] > last);
    last = ids[i];
  }
  EXPECT_CODE(mgd_holders_add(m, "one more", 0, &id), MGD_E_FULL);
  EXPECT_INT(id, 77);
  struct mgd_holder_round r = begin(m, 1, 0);
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    report(m, &r, ids[i], 0);
    EXPECT_OK(mgd_holders_remove(m, ids[i]));
    EXPECT_CODE(mgd_holders_remove(m, ids[i]), MGD_E_INVALID);
    EXPECT_INT(begin(m, 2, 0).count, MGD_MAX_HOLDERS - 1);
    id = add(m, 0);
    EXPECT(id > last);
    last = id;
    EXPECT_HOLDING(holding(m, id, 1), .rest = 0); /* it has no past */
  }
  mgd_machine_destroy(m);
}

static void a_name_is_used_once_at_a_time(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  const char longest[] = "0123456789012345678901234567890", too_long[] = "01234567890123456789012345678901";
  int a = 0, b = 0, out = 77;
  EXPECT_OK(mgd_holders_add(m, longest, 0, &a));
  EXPECT_OK(mgd_holders_add(m, "0", 0, &b));
  EXPECT_CODE(mgd_holders_add(m, longest, 0, &out), MGD_E_EXISTS);
  EXPECT_CODE(mgd_holders_add(m, too_long, 0, &out), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_add(m, "", 0, &out), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_add(m, "1", -1, &out), MGD_E_INVALID);
  EXPECT_INT(out, 77);
  EXPECT_TEXT(holding(m, a, 1).name, longest);
  EXPECT_OK(mgd_holders_remove(m, a));
  EXPECT_CODE(mgd_holders_add(m, "0", 0, &out), MGD_E_EXISTS); /* also with a free slot before it */
  EXPECT_OK(mgd_holders_add(m, "1", 0, &out));
  EXPECT_TEXT(holding(m, out, 1).name, "1"); /* nothing of the longer name is left */
  EXPECT_OK(mgd_holders_add(m, longest, 0, &out));
  mgd_machine_destroy(m);
}

static void a_round_survives_those_that_leave_it(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  const int early = add(m, 0), late = add(m, 0), stays = add(m, 0);
  struct mgd_holder_round r = begin(m, 1, 0);
  EXPECT_OK(mgd_holders_remove(m, early));
  const int heir = add(m, 0); /* in the same slot */
  EXPECT_CODE(mgd_holders_reported(m, &r, early, 0, 900), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_reported(m, &r, heir, 0, 900), MGD_E_INVALID);
  report(m, &r, late, 200);
  report(m, &r, stays, 200);
  EXPECT_OK(mgd_holders_remove(m, late));
  int id = ask(m, &r, 200, 200);
  if (id == late) { /* the round may still name it */
    EXPECT_CODE(mgd_holders_gave(m, &r, late, 0), MGD_E_INVALID);
    id = ask(m, &r, 200, 200);
  }
  EXPECT_INT(id, stays);
  EXPECT_OK(mgd_holders_gave(m, &r, stays, 200));
  EXPECT_INT(ask(m, &r, 1000, 0), 0);
  EXPECT_HOLDING(holding(m, heir, 1), .rest = 0);
  EXPECT_HOLDING(holding(m, stays, 1), .asks = 1, .asked = 200, .given = 200);
  EXPECT_INT(begin(m, 1, 0).count, 2);
  mgd_machine_destroy(m);
}

static void without_memory_nothing_is_added(void) {
  struct mgd_machine *m = NULL;
  const struct mgd_config config = {.fail_allocation = 4}; /* after the machine's own three */
  int device, id = 77;
  EXPECT_OK(mgd_machine_create(&config, &m));
  EXPECT_OK(mgd_device_add(m, "sim:0", 1000, &device));
  EXPECT_CODE(mgd_holders_add(m, "it", 0, &id), MGD_E_NOMEM);
  EXPECT_INT(id, 77);
  EXPECT_INT(begin(m, device, 0).count, 0);
  EXPECT_OK(mgd_holders_add(m, "it", 0, &id));
  mgd_machine_destroy(m);
}

static void bad_arguments_change_nothing(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  EXPECT_CODE(mgd_holders_remove(m, 0), MGD_E_INVALID); /* also before the first comes */
  int id = add(m, 10), resting = add(m, 0), n = 77;
  struct mgd_holder_round r = begin(m, 1, 0), unused;
  struct mgd_holding all[MGD_MAX_HOLDERS];
  report(m, &r, resting, 0);
  r = begin(m, 1, 0);
  EXPECT_OK(mgd_holders_reported(m, &r, id, 3, 50));
  const int no_holder[] = {0, -1, id + resting, INT32_MAX}, no_device[] = {MGD_HOST, -1, 2, INT32_MAX};
  for (int i = 0; i < 4; i++) {
    EXPECT_CODE(mgd_holders_remove(m, no_holder[i]), MGD_E_INVALID);
    EXPECT_CODE(mgd_holders_reported(m, &r, no_holder[i], 0, 100), MGD_E_INVALID);
    EXPECT_CODE(mgd_holders_gave(m, &r, no_holder[i], 100), MGD_E_INVALID);
    EXPECT_CODE(mgd_holders_read(m, no_device[i], all, &n), MGD_E_NO_DEVICE);
    EXPECT_CODE(mgd_holders_begin(m, no_device[i], 0, &unused), MGD_E_NO_DEVICE);
  }
  EXPECT_INT(n, 77);
  EXPECT_CODE(mgd_holders_reported(m, &r, id, -1, 90), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_reported(m, &r, id, 1, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_reported(m, &r, resting, 1, 90), MGD_E_INVALID); /* not in the round */
  EXPECT_CODE(mgd_holders_reported(m, &r, id, 1, 90), MGD_E_INVALID); /* a second time */
  EXPECT_HOLDING(holding(m, id, 1), .live = 3, .cached = 50);
  EXPECT_HOLDING(holding(m, resting, 1), .rest = 1);
  EXPECT_INT(ask(m, &r, 1000, 40), id);
  mgd_machine_destroy(m);
}

static void usage_counts_what_was_asked_and_given(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  int id = add(m, 0);
  for (int i = 1; i <= 3; i++) {
    struct mgd_holder_round r = begin(m, 2, 0);
    EXPECT_OK(mgd_holders_reported(m, &r, id, 7 * i, 100 * i));
    EXPECT_INT(ask(m, &r, 150, i == 1 ? 100 : 150), id);
    EXPECT_OK(mgd_holders_gave(m, &r, id, i == 2 ? 999 : 30)); /* more came free than was asked for */
  }
  EXPECT_HOLDING(holding(m, id, 2), .live = 21, .cached = 270, .asks = 3, .asked = 400, .given = 1059);
  mgd_machine_destroy(m);
}

/* ---- the random run */

#define MOST_DEVICES 3

struct holder {
  int id, nature; /* 0: none; gives all, a part, nothing, or says anything */
  int64_t keep;
  struct on {
    enum { AWAY, LISTED, READY, DONE } turn; /* not in the round; has not reported; may be asked; had its turn */
    int refusals, missed;                    /* turns in a row without a byte; rounds since the last turn */
    int64_t reported; /* cached bytes, in this round */
    struct mgd_holding said;                 /* what must be known of it, but for the rest */
  } on[MOST_DEVICES + 1];
};

struct model {
  struct mgd_machine *m;
  uint64_t random;
  int devices, newest;
  struct holder holders[MGD_MAX_HOLDERS];
  struct mgd_holder_round rounds[MOST_DEVICES + 1];
  struct mgd_holding all, gone; /* sums of asks, asked and given: of every holder ever, and of those removed */
  int64_t longest;              /* rest of all */
};

static int64_t roll(struct model *x, int64_t limit) { return pick(&x->random, limit); }
static int some_device(struct model *x) { return 1 + (int)roll(x, x->devices); }
static struct holder *some_holder(struct model *x) { return &x->holders[roll(x, MGD_MAX_HOLDERS)]; }

static int64_t some_bytes(struct model *x) {
  const int64_t limits[] = {1, 100, 1000, (int64_t)1 << 30};
  return roll(x, limits[roll(x, 4)]);
}

static struct holder *holder_of(struct model *x, int id) {
  int i = 0;
  for (; i < MGD_MAX_HOLDERS && x->holders[i].id != id; i++) {}
  return i < MGD_MAX_HOLDERS ? &x->holders[i] : NULL;
}

static int64_t rest_of(const struct on *on) {
  const int64_t rests[] = {0, 2, 4, 8, 16, 32, 64}, whole = rests[on->refusals < 6 ? on->refusals : 6];
  return on->missed < whole ? whole - on->missed : 0;
}

static int64_t spare_of(const struct holder *h, int d) {
  return h->on[d].turn == READY && h->on[d].reported > h->keep ? h->on[d].reported - h->keep : 0;
}

static void count(struct mgd_holding *sums, const struct mgd_holding *more) {
  sums->asks += more->asks;
  sums->asked += more->asked;
  sums->given += more->given;
}

static void end_turn(struct on *on, bool gave) {
  on->turn = DONE;
  on->refusals = gave ? 0 : on->refusals + 1;
  on->missed = 0;
}

/* Adds to `sums` what is known of all holders on this device. */
static void expect_device(struct model *x, int d, struct mgd_holding *sums) {
  struct mgd_holding all[MGD_MAX_HOLDERS];
  int n = -1, expected = 0;
  EXPECT_OK(mgd_holders_read(x->m, d, all, &n));
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) { expected += x->holders[i].id != 0; }
  EXPECT_INT(n, expected);
  for (int i = 0; i < n; i++) {
    const struct holder *h = holder_of(x, all[i].id);
    EXPECT(all[i].id && h);
    struct mgd_holding said = h->on[d].said;
    said.rest = rest_of(&h->on[d]);
    x->longest = said.rest > x->longest ? said.rest : x->longest;
    expect_holding(__LINE__, all[i], said);
    count(sums, &all[i]);
  }
}

static void expect_all(struct model *x) {
  struct mgd_holding sums = x->gone;
  for (int d = 1; d <= x->devices; d++) { expect_device(x, d, &sums); }
  expect_holding(__LINE__, sums, x->all);
}

static void remove_holder(struct model *x, struct holder *h) {
  for (int d = 1; d <= x->devices; d++) { count(&x->gone, &h->on[d].said); }
  EXPECT_OK(mgd_holders_remove(x->m, h->id));
  *h = (struct holder){0};
}

static void step_come_or_go(struct model *x) {
  struct holder *h = some_holder(x);
  if (roll(x, 32)) { return; }
  if (h->id) {
    remove_holder(x, h);
  } else {
    *h = (struct holder){.keep = roll(x, 16) ? some_bytes(x) : INT64_MAX, .nature = (int)roll(x, 4)};
    h->id = add(x->m, h->keep);
    EXPECT(h->id > x->newest);
    x->newest = h->id;
  }
}

static void step_begin(struct model *x) {
  int d = some_device(x), listed = 0;
  if (roll(x, 4) == 0) { /* a round that a holder requests is none: what was said of the one before holds */
    EXPECT_CODE(mgd_holders_begin(x->m, d, 1 + (int)roll(x, x->newest + 1), &x->rounds[d]), MGD_E_ABSENT);
    return;
  }
  x->rounds[d] = begin(x->m, d, 0);
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    struct holder *h = &x->holders[i];
    struct on *on = &h->on[d];
    on->turn = h->id && rest_of(on) == 0 ? LISTED : AWAY;
    on->missed += h->id && on->turn == AWAY;
    listed += on->turn == LISTED;
    EXPECT(h->id == 0 || contains(&x->rounds[d], h->id) == (on->turn == LISTED));
  }
  EXPECT_INT(x->rounds[d].count, listed);
}

static void step_wake(struct model *x) {
  int d = some_device(x), listed = 0;
  EXPECT_OK(mgd_holders_wake(x->m, &x->rounds[d]));
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    struct holder *h = &x->holders[i];
    h->on[d].turn = h->id && h->on[d].turn == AWAY ? LISTED : AWAY;
    listed += h->on[d].turn == LISTED;
    EXPECT(h->id == 0 || contains(&x->rounds[d], h->id) == (h->on[d].turn == LISTED));
  }
  EXPECT_INT(x->rounds[d].count, listed);
}

static void step_note(struct model *x) {
  int d = some_device(x);
  struct holder *h = some_holder(x);
  int64_t live = some_bytes(x), cached = some_bytes(x);
  EXPECT_CODE(mgd_holders_note(x->m, h->id ? h->id : -1, d, live, cached), h->id ? MGD_OK : MGD_E_INVALID);
  if (h->id) {
    h->on[d].said.live = live;
    h->on[d].said.cached = cached;
  }
}

/* One of those that the round lists; it may be gone by now. */
static void step_report(struct model *x) {
  int d = some_device(x);
  struct mgd_holder_round *r = &x->rounds[d];
  int id = r->count ? r->entries[roll(x, r->count)].id : -1;
  struct holder *h = holder_of(x, id);
  if (!h) {
    EXPECT_CODE(mgd_holders_reported(x->m, r, id, 1, 1), MGD_E_INVALID);
  } else if (h->on[d].turn == LISTED) {
    h->on[d].said.live = some_bytes(x);
    h->on[d].said.cached = h->on[d].reported = some_bytes(x);
    EXPECT_OK(mgd_holders_reported(x->m, r, id, h->on[d].said.live, h->on[d].said.cached));
    h->on[d].turn = READY;
    if (spare_of(h, d) == 0) { end_turn(&h->on[d], false); }
  }
}

/* More than was asked for, or less than nothing, may come free: something else changed the device meanwhile. */
static void answer(struct model *x, struct holder *h, int d, int64_t bytes) {
  const int64_t answers[] = {bytes, roll(x, bytes + 1), 0, some_bytes(x) - 50};
  const int64_t bytes_free = answers[roll(x, 8) ? h->nature : roll(x, 4)];
  const struct mgd_holding more = {.given = bytes_free > 0 ? bytes_free : 0};
  EXPECT_OK(mgd_holders_gave(x->m, &x->rounds[d], h->id, bytes_free));
  count(&h->on[d].said, &more);
  count(&x->all, &more);
  h->on[d].said.cached -= more.given < h->on[d].said.cached ? more.given : h->on[d].said.cached;
  end_turn(&h->on[d], bytes_free > 0);
}

static void step_ask(struct model *x) {
  int d = some_device(x), id = 0;
  int64_t missing = some_bytes(x) - 1, most = 0, bytes = 0;
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    int64_t spare = spare_of(&x->holders[i], d);
    most = spare > most ? spare : most;
  }
  int code = mgd_holders_next(x->m, &x->rounds[d], missing, &id, &bytes);
  EXPECT_CODE(code, id ? MGD_OK : MGD_E_ABSENT);
  EXPECT(id ? missing > 0 && contains(&x->rounds[d], id) : most == 0 || missing <= 0);
  struct holder *h = holder_of(x, id);
  if (id && !h) { /* it went after its report */
    EXPECT_CODE(mgd_holders_gave(x->m, &x->rounds[d], id, bytes), MGD_E_INVALID);
  } else if (id) {
    const struct mgd_holding more = {.asks = 1, .asked = bytes};
    EXPECT(h->on[d].turn == READY && h->on[d].reported - bytes >= h->keep);
    EXPECT_INT(spare_of(h, d), most);
    EXPECT_INT(bytes, most < missing ? most : missing);
    count(&h->on[d].said, &more);
    count(&x->all, &more);
    h->on[d].turn = DONE;
    if (roll(x, 256) == 0) {
      remove_holder(x, h);
      EXPECT_CODE(mgd_holders_gave(x->m, &x->rounds[d], id, bytes), MGD_E_INVALID);
    } else if (roll(x, 64)) { /* or the answer never comes */
      answer(x, h, d, bytes);
    }
  }
}

static void run(uint64_t seed, int64_t steps, int devices) {
  static void (*const kinds[])(struct model *) = {step_come_or_go, step_begin, step_report, step_report, step_report,
                                                  step_ask,        step_ask,   step_wake,   step_note};
  struct model model = {.m = new_machine(devices, 1000), .random = seed, .devices = devices}, *x = &model;
  for (int64_t i = 0; i < steps; i++) {
    kinds[roll(x, (int64_t)(sizeof kinds / sizeof *kinds))](x);
    if (i % 8 == 0) { expect_device(x, some_device(x), &(struct mgd_holding){0}); }
    if (i % 1024 == 0) { expect_all(x); }
  }
  expect_all(x);
  EXPECT(steps < 50000 || x->longest == 64); /* a long run comes across everything */
  mgd_machine_destroy(x->m);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  a_request_of_a_holder_asks_none();
  those_that_rest_are_woken_once();
  the_most_cached_is_asked_first_and_each_once();
  what_it_may_keep_is_not_asked_for();
  what_gives_nothing_rests_ever_longer();
  each_device_and_each_holder_rests_alone();
  there_is_a_limit_and_no_id_comes_twice();
  a_name_is_used_once_at_a_time();
  a_round_survives_those_that_leave_it();
  without_memory_nothing_is_added();
  bad_arguments_change_nothing();
  usage_counts_what_was_asked_and_given();
  printf("test_holders: seed %" PRIu64 ", %" PRId64 " steps\n", seed, steps);
  (void)fflush(stdout);
  for (int devices = 1; devices <= MOST_DEVICES; devices++) { run(seed, steps / MOST_DEVICES, devices); }
  return 0;
}
