/* What changes while a search for room lasts: between two parts of it, when the mutex is free, and while an owner is
 * asked; and the limits of a copy that is made ahead of need.
 *
 * A search lets go of the mutex after MGD_LOOKS refused storages. A debug build calls m->check at that moment, so these
 * tests run there what another thread would do.
 */
#include "handles.h"

#define MANY (MGD_LOOKS + 4)

static struct mgd_machine *m;
static struct mgd_handle *h[MANY], *other;
static void (*in_between)(void);
static int answer;

static bool stays(const struct mgd_handle *unused) {
  (void)unused;
  return false;
}

/* Runs `in_between` once, with the mutex free. */
static int check_and_let_in(const struct mgd_machine *same) {
  void (*const run)(void) = in_between;
  const int code = answer != MGD_OK ? answer : mgd_check_locked(same);
  in_between = NULL;
  answer = MGD_OK;
  if (run) {
    EXPECT_INT(pthread_mutex_unlock(&m->mutex), 0);
    run();
    EXPECT_INT(pthread_mutex_lock(&m->mutex), 0);
  }
  return code;
}

/* A device with MANY storages, none of which may leave. */
static void set_up(void) {
  m = new_directory(1);
  for (int i = 0; i < MANY; i++) { h[i] = open_handle(m, 1, 8, (uint64_t)i); }
  other = NULL;
  m->check = check_and_let_in;
  EXPECT_OK(mgd_evict_veto(m, stays));
}

static void tear_down(void) {
  EXPECT(!in_between && answer == MGD_OK);
  for (int i = 0; i < MANY; i++) {
    if (h[i]) { close_handle(m, h[i]); }
  }
  if (other) { close_handle(m, other); }
  mgd_machine_destroy(m);
}

static int search(int64_t mine) {
  struct plan p = {.n = PLAN};
  const int code = mgd_evict_begin(m, 1, 8, NULL, mine, p.actions, &p.n);
  EXPECT_INT(p.n, 0);
  return code;
}

/* Each of those that are there leaves, once. A search gives no more than MGD_LOOKS new storages a key, so it takes two.
 */
static void expect_all_leave(void) {
  struct plan p;
  int64_t there = 0;
  int code;
  for (int i = 0; i < MANY; i++) { there += h[i] != NULL; }
  EXPECT_OK(mgd_evict_veto(m, NULL));
  for (int plans = 0; (code = plan_eviction(m, 1, INT64_MAX, NULL, &p)) == MGD_OK; plans++) {
    EXPECT(plans < 2);
    for (size_t i = 0; i < p.n; i++) { EXPECT_INT(p.actions[i].kind, MGD_DO_SPILL); }
    carry_out(m, &p);
  }
  EXPECT_CODE(code, MGD_E_ABSENT);
  EXPECT_INT(residency_of(m, 1).spilled, 8 * there);
}

/* ---- between two parts of a search */

static void open_one(void) { other = open_handle(m, 1, 8, MANY); }

static void a_storage_that_came_is_a_reason_to_ask_again(void) {
  set_up();
  in_between = open_one;
  EXPECT_CODE(search(0), MGD_E_BUSY);
  EXPECT_CODE(search(0), MGD_E_ABSENT);
  close_handle(m, other);
  other = NULL;
  expect_all_leave();
  tear_down();
}

static void take_the_last(void) {
  struct plan p;
  the_only_one = other = h[MANY - 1];
  EXPECT_OK(mgd_evict_veto(m, is_the_only_one));
  EXPECT_OK(plan_eviction(m, 1, 8, NULL, &p));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 8, other);
  EXPECT_OK(mgd_evict_veto(m, stays));
}

/* The bytes of another thread's move are free when it ends; the caller's own move is no reason to wait. */
static void a_move_that_began_is_a_reason_to_ask_again(void) {
  for (int mine = 0; mine < 2; mine++) {
    set_up();
    in_between = take_the_last;
    EXPECT_CODE(search(mine), mine ? MGD_E_ABSENT : MGD_E_BUSY);
    EXPECT_INT(residency_of(m, 1).moving, 8);
    EXPECT_INT(residency_of(m, 1).held, 8 * (MANY - 1));
    end_spill(m, other, -1, NULL);
    other = NULL;
    expect_all_leave();
    tear_down();
  }
}

static void close_two(void) {
  close_handle(m, h[3]);
  close_handle(m, h[MGD_LOOKS - 1]);
  h[3] = h[MGD_LOOKS - 1] = NULL;
}

/* Both were refused, so they are parked. */
static void a_refused_storage_may_die_meanwhile(void) {
  set_up();
  in_between = close_two;
  EXPECT_CODE(search(0), MGD_E_ABSENT);
  EXPECT_INT(residency_of(m, 1).held, 8 * (MANY - 2));
  expect_all_leave();
  tear_down();
}

/* The search ends at once, and what it had parked is in the order of the next one. */
static void a_broken_machine_ends_the_search(void) {
  set_up();
  answer = MGD_E_BROKEN;
  EXPECT_CODE(search(0), MGD_E_BROKEN);
  EXPECT_INT(m->devices[1].storages.parked, MGD_LOOKS);
  EXPECT_CODE(search(0), MGD_E_ABSENT);
  EXPECT_INT(m->devices[1].storages.parked, 0);
  expect_all_leave();
  tear_down();
}

/* ---- while an owner is asked */

static struct mgd_handle *grabbed;
static int asked;

/* Another thread uses the storage at the same moment. */
static bool leaves_but_is_grabbed(const struct mgd_handle *one) {
  if (one == grabbed) { EXPECT(i_use(grabbed, grabbed->stamp)); }
  asked++;
  return true;
}

/* A mover takes the storage at the same moment, which no user counts. */
static bool leaves_but_is_moved(const struct mgd_handle *one) {
  if (one == grabbed) { __atomic_fetch_add(&grabbed->in_use, 1, __ATOMIC_SEQ_CST); }
  return true;
}

/* It could not leave for a host with room either, so the answer is not NO_ROOM. */
static void a_storage_that_is_grabbed_needs_no_room(void) {
  struct mgd_machine *small = new_directory(1);
  struct mgd_handle *one = open_handle(small, 1, 8, 0);
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(small, 7));
  EXPECT_CODE(plan_eviction(small, 1, 1, NULL, &p), MGD_E_NO_ROOM);
  grabbed = one;
  EXPECT_OK(mgd_evict_veto(small, leaves_but_is_grabbed));
  EXPECT_CODE(plan_eviction(small, 1, 1, NULL, &p), MGD_E_BUSY);
  put_back(one, 1);
  EXPECT_OK(mgd_evict_veto(small, leaves_but_is_moved));
  EXPECT_CODE(plan_eviction(small, 1, 1, NULL, &p), MGD_E_ABSENT);
  EXPECT(!mgd_handle_put(one, 1));
  grabbed = NULL;
  EXPECT_CODE(plan_eviction(small, 1, 1, NULL, &p), MGD_E_NO_ROOM);
  close_handle(small, one);
  mgd_machine_destroy(small);
}

/* No bytes are missing, so no guest is asked, and the list of guests stays as it is. */
static void nothing_is_asked_of_guests_when_nothing_is_missing(void) {
  struct mgd_machine *small = new_directory(2);
  struct mgd_handle *first = open_handle(small, 2, 8, 0), *second = open_handle(small, 2, 8, 1);
  struct plan p;
  spill(small, first, 1);
  spill(small, second, 1);
  asked = 0;
  EXPECT_OK(mgd_evict_veto(small, leaves_but_is_grabbed));
  EXPECT_CODE(plan_eviction(small, 1, 0, NULL, &p), MGD_E_ABSENT);
  EXPECT_INT(p.n, 0);
  EXPECT_INT(asked, 0);
  EXPECT(small->devices[1].storages.guests.oldest == first && small->devices[1].storages.guests.youngest == second);
  EXPECT_INT(small->devices[1].storages.guest_backoff, 0);
  close_handle(small, first);
  close_handle(small, second);
  mgd_machine_destroy(small);
}

/* ---- a copy ahead of need */

/* Whether the storage gets a copy on the host ahead of need. *n: how many actions there are for that, of `size`. */
static bool spares(struct mgd_machine *in, struct mgd_handle *one, size_t size, struct plan *p) {
  p->n = 0;
  mgd_state_enter(in);
  const bool taken = mgd_evict_spare_locked(in, one, 0, p->actions, &p->n, size);
  EXPECT_OK(mgd_state_leave(in, MGD_OK));
  return taken;
}

static void a_copy_ahead_of_need_takes_no_room_that_is_not_there(void) {
  struct mgd_machine *small = new_directory(1);
  struct mgd_handle *one = open_handle(small, 1, 8, 0);
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(small, 7));
  EXPECT(!spares(small, one, PLAN, &p));
  EXPECT_INT(p.n, 0);
  EXPECT_OK(mgd_host_set_limit(small, 8));
  EXPECT(!spares(small, one, 1, &p)); /* there has to be room for a FORGET, too */
  EXPECT_INT(p.n, 0);
  grabbed = one;
  EXPECT_OK(mgd_evict_veto(small, leaves_but_is_grabbed));
  EXPECT(!spares(small, one, PLAN, &p));
  EXPECT_INT(p.n, 0);
  EXPECT_INT(host_used(small), 0);
  EXPECT(is_home(one) && one->position >= 0 && one->dirty);
  put_back(one, 1);
  grabbed = NULL;
  EXPECT(spares(small, one, PLAN, &p));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPARE, 1, MGD_HOST, 8, one);
  EXPECT_INT(host_used(small), 8);
  void *left = NULL;
  EXPECT_OK(mgd_evict_end(small, one, 1, malloc(1), &left));
  EXPECT(!left && !mgd_handle_put(one, 1));
  close_handle(small, one);
  mgd_machine_destroy(small);
}

/* The bytes of a guest that is sent on are at the peer, so the move cannot end with them at home. */
static void a_guest_that_is_sent_on_does_not_end_at_home(void) {
  struct mgd_machine *small = new_directory(2);
  struct mgd_handle *guest = open_handle(small, 1, 8, 0);
  struct plan p;
  void *left = small;
  spill(small, guest, 2);
  EXPECT_OK(plan_eviction(small, 2, 1, NULL, &p));
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 2, MGD_HOST, 8, guest);
  EXPECT_CODE(mgd_evict_end(small, guest, 1, NULL, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_end(small, guest, 1, small, &left), MGD_E_INVALID);
  EXPECT(left == small && guest->state == MGD_SPILLING && guest->away == 2);
  carry_out(small, &p);
  EXPECT_INT(guest->away, MGD_HOST);
  close_handle(small, guest);
  mgd_machine_destroy(small);
}

int main(void) {
  if (MGD_DEBUG >= 2) {
    a_storage_that_came_is_a_reason_to_ask_again();
    a_move_that_began_is_a_reason_to_ask_again();
    a_refused_storage_may_die_meanwhile();
    a_broken_machine_ends_the_search();
  }
  a_storage_that_is_grabbed_needs_no_room();
  nothing_is_asked_of_guests_when_nothing_is_missing();
  a_copy_ahead_of_need_takes_no_room_that_is_not_there();
  a_guest_that_is_sent_on_does_not_end_at_home();
  return 0;
}
