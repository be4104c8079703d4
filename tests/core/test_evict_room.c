/* Where those that leave go, what that costs the others, and whether it is worth
 * asking again when nobody can. */
#include "handles.h"
#include "replica.h"

static int evict_code(struct mgd_machine *m, int device, int64_t bytes, int64_t mine) {
  struct plan p = {.n = PLAN};
  int code = mgd_evict_begin(m, device, bytes, NULL, mine, p.actions, &p.n);
  EXPECT_INT(p.n, 0);
  return code;
}

/* ---- where to */

static void set_link(struct mgd_machine *m, int from, int to, int64_t ns) {
  const struct mgd_link link = {.latency_ns = ns};
  EXPECT_OK(mgd_link_set(m, from, to, link));
}

/* Where one of 8 bytes goes; it comes back without a copy. */
static int target(struct mgd_machine *m, struct mgd_handle *h, const int64_t *room) {
  struct plan p;
  int code = plan_eviction(m, 1, 1, room, &p);
  EXPECT(code == MGD_OK || code == MGD_E_NO_ROOM);
  if (code != MGD_OK) {
    return -1;
  }
  void *left = NULL;
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, p.actions[0].to, 8, h);
  carry_out(m, &p);
  restore(m, h);
  EXPECT(i_use(h, 1));
  EXPECT_OK(mgd_handle_resize(m, h, 8, &left));
  put_back(h, 1);
  free(left);
  return p.actions[0].to;
}

static void the_nearest_that_has_room(void) {
  struct mgd_machine *m = new_directory(3);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  const int64_t both[MGD_MAX_DEVICES] = {0, 99, 8, 8}, second[MGD_MAX_DEVICES] = {0, 99, 7, 8}, nobody[MGD_MAX_DEVICES] = {99, 99, 7, 7};
  set_link(m, 1, MGD_HOST, 50);
  set_link(m, 1, 2, 40);
  set_link(m, 1, 3, 45);
  EXPECT_INT(target(m, h, both), 2);
  EXPECT_INT(target(m, h, second), 3);
  EXPECT_INT(target(m, h, nobody), MGD_HOST);
  EXPECT_INT(target(m, h, NULL), MGD_HOST);
  set_link(m, 1, 3, 39);
  EXPECT_INT(target(m, h, both), 3);
  set_link(m, 1, 3, 40);
  EXPECT_INT(target(m, h, both), 2); /* the first of equals */
  set_link(m, 1, MGD_HOST, 40);
  EXPECT_INT(target(m, h, both), 2); /* a peer as near as the host leaves the host its room */
  set_link(m, 1, MGD_HOST, 20);
  EXPECT_INT(target(m, h, both), 2); /* nor one that takes twice as long */
  set_link(m, 1, MGD_HOST, 19);
  EXPECT_INT(target(m, h, both), MGD_HOST);
  EXPECT_OK(mgd_host_set_limit(m, 7));
  EXPECT_INT(target(m, h, both), 2); /* a far peer is better than nothing */
  EXPECT_INT(target(m, h, nobody), -1);
  EXPECT_OK(mgd_host_set_limit(m, 8));
  EXPECT_INT(target(m, h, both), MGD_HOST);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Where it goes; it comes back as it was. */
static int round_trip(struct mgd_machine *m, struct mgd_handle *h, const int64_t *room, int kind) {
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, room, &p));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], kind, 1, p.actions[0].to, 8, h);
  carry_out(m, &p);
  restore(m, h);
  return p.actions[0].to;
}

/* The host keeps a good copy of what came home, so that it leaves for nothing: what is read again and again is better off there. */
static void what_came_from_a_peer_unwritten_goes_to_the_host(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  const int64_t room[MGD_MAX_DEVICES] = {[2] = 8}, none[MGD_MAX_DEVICES] = {0};
  set_link(m, 1, MGD_HOST, 50);
  set_link(m, 1, 2, 26);
  EXPECT_INT(round_trip(m, h, room, MGD_DO_SPILL), 2); /* it never left before */
  EXPECT_OK(mgd_host_set_limit(m, 7));
  EXPECT_INT(round_trip(m, h, room, MGD_DO_SPILL), 2); /* the host has no room */
  EXPECT_OK(mgd_host_set_limit(m, 8));
  set_link(m, 1, 2, 25);
  EXPECT_INT(round_trip(m, h, room, MGD_DO_SPILL), 2); /* there and back again is no further */
  set_link(m, 1, 2, 26);
  mgd_handle_write(h);
  EXPECT_INT(round_trip(m, h, room, MGD_DO_SPILL), 2); /* written: leaving would cost as much from the host */
  EXPECT_INT(round_trip(m, h, room, MGD_DO_SPILL), MGD_HOST);
  EXPECT_INT(round_trip(m, h, room, MGD_DO_DROP), MGD_HOST);
  mgd_handle_write(h);
  EXPECT_INT(round_trip(m, h, none, MGD_DO_SPILL), MGD_HOST);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Makes the peer need its room while a guest from device 1 is there. */
static void send_a_guest_on(struct mgd_machine *m) {
  struct mgd_handle *guest = open_handle(m, 1, 8, 0);
  struct plan p;
  set_link(m, 1, 2, 10);
  spill(m, guest, 2);
  EXPECT_OK(plan_eviction(m, 2, 1, NULL, &p));
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 2, MGD_HOST, 8, guest);
  carry_out(m, &p);
  close_handle(m, guest);
  set_link(m, 1, 2, 15);
}

static void a_peer_that_needed_its_room_is_left_alone(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  const int64_t room[MGD_MAX_DEVICES] = {[2] = 99};
  const int plans[] = {1, 2, 1}, alone[] = {2, 4, 4}; /* a guest that comes home takes one of them back */
  set_link(m, 1, MGD_HOST, 10);
  set_link(m, 1, 2, 15);
  EXPECT_INT(target(m, h, room), 2);
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < plans[i]; k++) {
      send_a_guest_on(m);
    }
    for (int k = 0; k < alone[i]; k++) {
      EXPECT_INT(target(m, h, room), MGD_HOST);
    }
    EXPECT_INT(target(m, h, room), 2);
  }
  send_a_guest_on(m);
  set_link(m, 1, 2, 10);
  EXPECT_INT(target(m, h, room), 2); /* as near as the host: a guess that fails costs little */
  set_link(m, 1, 2, 15);
  EXPECT_OK(mgd_host_set_limit(m, 7));
  EXPECT_INT(target(m, h, room), 2); /* better than nothing */
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void room_of_peers_is_spent(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h[4];
  const int64_t room[MGD_MAX_DEVICES] = {[2] = 20};
  struct plan p;
  for (int i = 0; i < 4; i++) {
    h[i] = open_handle(m, 1, 8, (uint64_t)i);
  }
  EXPECT_OK(mgd_host_set_limit(m, 8));
  EXPECT_OK(plan_eviction(m, 1, 100, room, &p));
  EXPECT_INT(p.n, 3);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, 2, 8, h[0]);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, 2, 8, h[1]);
  EXPECT_ACTION(p.actions[2], MGD_DO_SPILL, 1, MGD_HOST, 8, h[2]);
  carry_out(m, &p);
  EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_NO_ROOM);
  for (int i = 0; i < 4; i++) {
    close_handle(m, h[i]);
  }
  mgd_machine_destroy(m);
}

static void guests_go_on_before_anybody_leaves(void) {
  struct mgd_machine *m = new_directory(3);
  struct mgd_handle *first = open_handle(m, 2, 8, 9), *second = open_handle(m, 2, 4, 8), *own = open_handle(m, 1, 16, 1);
  int64_t room[MGD_MAX_DEVICES] = {[1] = 100};
  struct plan p;
  EXPECT_OK(plan_eviction(m, 2, 12, room, &p));
  carry_out(m, &p);
  EXPECT_INT(residency_of(m, 1).guests, 12);
  room[3] = 100;
  EXPECT_OK(plan_eviction(m, 1, 4, room, &p));
  EXPECT_INT(p.n, 1); /* by arrival, and not to another peer */
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 4, second);
  carry_out(m, &p);
  EXPECT(second->memory);
  EXPECT_OK(plan_eviction(m, 1, 9, room, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 8, first);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, 3, 16, own); /* who was at home may */
  carry_out(m, &p);
  close_handle(m, first);
  close_handle(m, second);
  close_handle(m, own);
  mgd_machine_destroy(m);
}

/* No more than there are places for; the rest is asked for again. */
static void a_plan_is_full(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h[3], *guest[3];
  for (int i = 0; i < 3; i++) {
    h[i] = open_handle(m, 1, 1, (uint64_t)i);
    guest[i] = open_handle(m, 2, 1, 0);
    spill(m, guest[i], 1);
  }
  for (int i = 0; i < 6; i += 2) {
    struct plan p = {.n = 2};
    EXPECT_OK(mgd_evict_begin(m, 1, 6, NULL, 0, p.actions, &p.n));
    EXPECT_INT(p.n, 2);
    EXPECT(p.actions[0].handle == (i < 3 ? guest[i] : h[i - 3]));
    carry_out(m, &p);
  }
  for (int i = 0; i < 3; i++) {
    close_handle(m, h[i]);
    close_handle(m, guest[i]);
  }
  mgd_machine_destroy(m);
}

/* ---- spares */

static void spares_go_oldest_first_and_only_if_that_is_enough(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *a = open_with_spare(m, 2, 8), *b = open_with_spare(m, 2, 16), *c = open_with_spare(m, 2, 32);
  struct mgd_handle *h = open_handle(m, 1, 20, 0), *large = open_handle(m, 1, 61, 1);
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(m, 60));
  EXPECT_INT(host_used(m), 56);
  EXPECT(i_use(h, 0));
  EXPECT_CODE(evict_code(m, 1, 1, 1), MGD_E_NO_ROOM); /* one is in use, one too large: nobody's spare goes for that */
  EXPECT_INT(host_used(m), 56);
  put_back(h, 1);
  void *copy = a->memory;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.n, 3);
  EXPECT_ACTION(p.actions[0], MGD_DO_FORGET, MGD_HOST, -1, 8, NULL);
  EXPECT(p.actions[0].memory == copy);
  EXPECT_ACTION(p.actions[1], MGD_DO_FORGET, MGD_HOST, -1, 16, NULL);
  EXPECT_ACTION(p.actions[2], MGD_DO_SPILL, 1, MGD_HOST, 20, h);
  EXPECT_INT(host_used(m), 52);
  carry_out(m, &p);
  EXPECT(!a->memory && !b->memory && c->memory);
  EXPECT(mgd_handle_write(b)); /* the copy may be under way: who writes is told so */
  EXPECT_OK(mgd_host_set_limit(m, INT64_MAX));
  EXPECT_OK(plan_eviction(m, 2, 8, NULL, &p));
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 2, MGD_HOST, 8, a); /* its copy is gone */
  carry_out(m, &p);
  close_handle(m, a);
  close_handle(m, b);
  close_handle(m, c);
  close_handle(m, h);
  close_handle(m, large);
  mgd_machine_destroy(m);
}

/* Whoever has little room for actions asks again, and gets on each time. */
static void spares_go_piece_by_piece(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *spare[4], *h = open_handle(m, 1, 32, 100);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true));
  for (int i = 0; i < 4; i++) {
    spare[i] = open_with_spare(m, 1, 8);
    EXPECT_OK(mgd_handle_pin(m, spare[i], MGD_PIN_ASKED, true)); /* spares of those that cannot leave themselves */
  }
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
  EXPECT_OK(mgd_host_set_limit(m, 32));
  for (int i = 0; i < 4; i++) {
    EXPECT(is_home(h));
    struct plan p = {.n = 2};
    EXPECT_OK(mgd_evict_begin(m, 1, 32, NULL, 0, p.actions, &p.n));
    EXPECT_INT(p.n, i == 3 ? 2 : 1);
    EXPECT_INT(p.actions[0].kind, MGD_DO_FORGET);
    carry_out(m, &p);
  }
  EXPECT(!is_home(h));
  for (int i = 0; i < 4; i++) {
    close_handle(m, spare[i]);
  }
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* One that was asked before, and is used, loses its spare to one that is asked after it; one that would
 * have left next for nothing is planned as what it then is. */
static void a_spare_goes_while_its_owner_is_asked(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *used = open_with_spare(m, 1, 8), *next = open_with_spare(m, 1, 16), *h = open_handle(m, 1, 20, 0);
  struct plan p;
  used->stamp = 1;
  h->stamp = 2;
  next->stamp = 3;
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_lru, NULL)); /* sees the new stamps */
  EXPECT(i_use(used, 1));
  EXPECT_OK(mgd_host_set_limit(m, 36));
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p));
  EXPECT_INT(p.n, 3);
  EXPECT_ACTION(p.actions[0], MGD_DO_FORGET, MGD_HOST, -1, 8, NULL);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, MGD_HOST, 20, h);
  EXPECT_ACTION(p.actions[2], MGD_DO_DROP, 1, MGD_HOST, 16, next);
  carry_out(m, &p);
  put_back(used, 1);
  restore(m, next);
  restore(m, h);
  next->stamp = 9;
  write_to(h);
  EXPECT_OK(mgd_host_set_limit(m, 20)); /* h's copy is there, next's goes */
  use_at(used, 1);
  EXPECT_OK(plan_eviction(m, 1, 8, NULL, &p));
  EXPECT_INT(p.n, 3);
  EXPECT_ACTION(p.actions[0], MGD_DO_FORGET, MGD_HOST, -1, 16, NULL);
  EXPECT_ACTION(p.actions[1], MGD_DO_FORGET, MGD_HOST, -1, 20, NULL);
  EXPECT_ACTION(p.actions[2], MGD_DO_SPILL, 1, MGD_HOST, 8, used);
  carry_out(m, &p);
  EXPECT_CODE(evict_code(m, 1, 100, 0), MGD_E_NO_ROOM);
  close_handle(m, used);
  close_handle(m, next);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void a_host_without_room_is_an_answer_of_its_own(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 1);
  const int64_t room[MGD_MAX_DEVICES] = {0, 0, 8};
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(m, 7));
  EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_NO_ROOM);
  EXPECT(i_use(h, 2));
  EXPECT_CODE(evict_code(m, 1, 1, 1), MGD_E_ABSENT); /* it could not leave for a host with room either */
  EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_BUSY);
  put_back(h, 1);
  EXPECT_OK(plan_eviction(m, 1, 1, room, &p)); /* a peer will do */
  carry_out(m, &p);
  restore(m, h);
  EXPECT_OK(mgd_host_set_limit(m, 8));
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  carry_out(m, &p);
  EXPECT_INT(residency_of(m, 1).on_host, 8);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* ---- who may not */

static const struct mgd_handle *forbidden;
static struct mgd_handle *grabbed;

static bool may_leave(const struct mgd_handle *h) {
  if (h == grabbed) {
    EXPECT(i_use(grabbed, grabbed->stamp)); /* another thread, in this very moment */
  }
  return h != forbidden;
}

static void owners_may_refuse(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_handle(m, 1, 8, 1), *other = open_handle(m, 1, 4, 2);
  struct plan p;
  forbidden = h;
  EXPECT_OK(mgd_evict_veto(m, may_leave));
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p));
  EXPECT_INT(p.n, 1);
  EXPECT(p.actions[0].handle == other);
  carry_out(m, &p);
  EXPECT_CODE(evict_code(m, 1, 100, 0), MGD_E_ABSENT);
  EXPECT_INT(residency_of(m, 1).held, 8);
  EXPECT_INT(residency_of(m, 1).idle, 0);
  forbidden = NULL;
  EXPECT_INT(residency_of(m, 1).idle, 8);
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p));
  carry_out(m, &p);
  restore(m, h);
  forbidden = h;
  EXPECT_CODE(evict_code(m, 1, 100, 0), MGD_E_ABSENT); /* neither for nothing */
  EXPECT_OK(mgd_evict_veto(m, NULL));
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p));
  carry_out(m, &p);
  close_handle(m, h);
  close_handle(m, other);
  mgd_machine_destroy(m);
}

static void whoever_comes_at_the_last_moment_keeps_it(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_with_spare(m, 1, 8);
  struct plan p;
  forbidden = NULL;
  EXPECT_OK(mgd_evict_veto(m, may_leave));
  for (int dirty = 0; dirty < 2; dirty++) {
    grabbed = h;
    EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_BUSY);
    EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_BUSY);
    EXPECT_CODE(evict_code(m, 1, 1, 1), MGD_E_ABSENT);
    grabbed = NULL;
    EXPECT(is_home(h));
    EXPECT_INT(host_used(m), 8);
    put_back(h, 1);
    EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
    EXPECT_INT(p.actions[0].kind, dirty ? MGD_DO_SPILL : MGD_DO_DROP); /* it forgot nothing */
    carry_out(m, &p);
    restore(m, h);
    write_to(h);
  }
  EXPECT_OK(mgd_evict_veto(m, NULL));
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Whoever put its use back while the others were asked may leave the next time: that is no reason to give up. */
static struct mgd_handle *let_go;

static bool lets_go(const struct mgd_handle *h) {
  if (let_go && h != let_go) {
    put_back(let_go, 1);
    let_go = NULL;
  }
  return false;
}

static void whoever_goes_at_the_last_moment_is_asked_again(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_handle(m, 1, 8, 1), *other = open_handle(m, 1, 4, 2);
  EXPECT_OK(mgd_evict_veto(m, lets_go));
  EXPECT(i_use(h, 1));
  let_go = h;
  EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_BUSY);
  EXPECT(!let_go);
  EXPECT_CODE(evict_code(m, 1, 1, 0), MGD_E_ABSENT);
  close_handle(m, h);
  close_handle(m, other);
  mgd_machine_destroy(m);
}

static void busy_while_others_use_or_move(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0), *pinned = open_handle(m, 1, 4, 0), *guest = open_handle(m, 2, 2, 0);
  struct plan p;
  EXPECT_CODE(evict_code(m, 2, 0, 0), MGD_E_ABSENT); /* nothing is asked for */
  spill(m, guest, 1);
  EXPECT_OK(mgd_handle_pin(m, pinned, MGD_PIN_ASKED, true));
  EXPECT(i_use(h, 0) && i_use(h, 0) && i_use(pinned, 0) && !i_use(guest, 0));
  EXPECT_CODE(evict_code(m, 1, 1, 2), MGD_E_BUSY);
  EXPECT_CODE(evict_code(m, 1, 1, 3), MGD_E_ABSENT); /* the guest is at home elsewhere */
  EXPECT_CODE(mgd_user_others(m, 1, 2), MGD_E_BUSY);
  EXPECT_OK(mgd_user_others(m, 1, 3));
  EXPECT_CODE(mgd_user_others(m, 2, 0), MGD_E_BUSY); /* it is about to come home */
  EXPECT_OK(mgd_user_others(m, 2, 1));
  EXPECT_CODE(mgd_user_others(m, 3, 0), MGD_E_NO_DEVICE);
  put_back(h, 2);
  put_back(guest, 1);
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_CODE(evict_code(m, 1, 1, 2), MGD_E_BUSY); /* two are leaving, and one is in use */
  EXPECT_CODE(evict_code(m, 1, 1, 3), MGD_E_ABSENT);
  carry_out(m, &p);
  EXPECT(!i_use(h, 0));
  EXPECT_CODE(evict_code(m, 1, 1, 2), MGD_E_ABSENT);
  EXPECT_CODE(evict_code(m, 1, 1, 1), MGD_E_BUSY); /* who is about to bring it home; who waits for room puts it back */
  put_back(h, 1);
  put_back(pinned, 1);
  close_handle(m, h);
  close_handle(m, pinned);
  close_handle(m, guest);
  mgd_machine_destroy(m);
}

/* How many of 40 storages of 2,000 bytes leave when one byte is missing. */
static size_t leave_for_a_byte(struct mgd_machine *m) {
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  const size_t n = p.n;
  for (size_t i = 0; i < n; i++) {
    end_spill(m, p.actions[i].handle, -1, NULL);
  }
  return n;
}

/* Where copies are kept, room is made for three more like the one used last, in at most an eighth of the capacity. */
static void room_for_copies_to_come(void) {
  struct mgd_machine *m = new_machine(1, 100000);
  struct mgd_handle *h[40];
  for (int i = 0; i < 40; i++) {
    h[i] = open_handle(m, 1, 2000, (uint64_t)i);
  }
  EXPECT_INT(leave_for_a_byte(m), 1);
  const uint64_t source = open_source(m);
  keep(m, source, 1, 1, 1999);
  EXPECT_INT(leave_for_a_byte(m), 3); /* 1 + 3 * 1,999 bytes */
  keep(m, source, 1, 2, 2000);
  EXPECT_INT(leave_for_a_byte(m), 4);
  keep(m, source, 1, 3, 4167);
  EXPECT_INT(leave_for_a_byte(m), 7); /* 1 + 100,000 / 8 */
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, INT64_MAX, NULL, &p)); /* more is no number: nothing is added */
  EXPECT_INT(p.n, 40);
  carry_out(m, &p);
  for (int i = 0; i < 40; i++) {
    close_handle(m, h[i]);
  }
  EXPECT_OK(mgd_source_close(m, source));
  for (int32_t slot; mgd_replica_reap(m, &slot) == MGD_OK;) {
  }
  mgd_machine_destroy(m);
}

int main(void) {
  the_nearest_that_has_room();
  what_came_from_a_peer_unwritten_goes_to_the_host();
  a_peer_that_needed_its_room_is_left_alone();
  room_of_peers_is_spent();
  guests_go_on_before_anybody_leaves();
  a_plan_is_full();
  spares_go_oldest_first_and_only_if_that_is_enough();
  spares_go_piece_by_piece();
  a_host_without_room_is_an_answer_of_its_own();
  a_spare_goes_while_its_owner_is_asked();
  owners_may_refuse();
  whoever_comes_at_the_last_moment_keeps_it();
  whoever_goes_at_the_last_moment_is_asked_again();
  busy_while_others_use_or_move();
  room_for_copies_to_come();
  return 0;
}
