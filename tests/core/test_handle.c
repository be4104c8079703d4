/* Each storage is in one place, and every way from one state to the next gives
 * back exactly what is no longer needed. Sizes are powers of two, so that a sum of bytes
 * says what is in it. */
#include "handles.h"

/* ---- birth and death */

static void a_new_storage_is_home_and_idle(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 5);
  EXPECT(is_home(h));
  EXPECT_INT(h->stamp, 5);
  EXPECT_INT(h->home, 1);
  EXPECT_INT(residency_of(m, 1).idle, 8);
  EXPECT_INT(residency_of(m, 1).storages, 1);
  EXPECT_INT(residency_of(m, 2).storages, 0);
  EXPECT(i_use(h, 6));
  EXPECT_INT(h->stamp, 6);
  EXPECT_INT(residency_of(m, 1).in_use, 8);
  EXPECT(!mgd_handle_unuse(h, me, 1));
  close_handle(m, h);
  EXPECT_INT(residency_of(m, 1).storages, 0);
  mgd_machine_destroy(m);
}

static void storages_that_cannot_be(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle h = {0};
  struct mgd_residency_usage u;
  EXPECT_CODE(mgd_handle_open(m, &h, 1, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_handle_open(m, &h, MGD_HOST, 1), MGD_E_INVALID);
  EXPECT_CODE(mgd_handle_open(m, &h, 2, 1), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_handle_open(m, &h, -1, 1), MGD_E_NO_DEVICE);
  EXPECT_INT(h.in_use, 0);
  EXPECT_CODE(mgd_residency_read(m, 2, &u), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_host_set_limit(m, -1), MGD_E_INVALID);
  mgd_machine_destroy(m);
}

static void no_memory_changes_nothing(void) {
  const struct mgd_config config = {.fail_allocation = 4}; /* after the machine's own three */
  struct mgd_machine *m = NULL;
  struct mgd_handle h = {0};
  int id;
  EXPECT_OK(mgd_machine_create(&config, &m));
  EXPECT_OK(mgd_device_add(m, "sim:0", 100, &id));
  EXPECT_CODE(mgd_handle_open(m, &h, id, 1), MGD_E_NOMEM);
  EXPECT_INT(h.in_use, 0);
  EXPECT_INT(residency_of(m, id).storages, 0);
  struct mgd_handle *later = open_handle(m, id, 1, 0);
  close_handle(m, later);
  mgd_machine_destroy(m);
}

static void many_storages_close_in_any_order(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h[200];
  for (int i = 0; i < 200; i++) {
    h[i] = open_handle(m, 1, 1, (uint64_t)(i * 7 % 200));
  }
  EXPECT_INT(residency_of(m, 1).idle, 200);
  for (int i = 0; i < 200; i++) {
    close_handle(m, h[i * 77 % 200]);
  }
  EXPECT(is_empty(m));
  mgd_machine_destroy(m);
}

/* In each state in which nobody moves it: what the closer is told to free. */
static void closing_at_rest(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *spared = open_with_spare(m, 1, 1), *spilled = open_handle(m, 1, 2, 0), *guest = open_handle(m, 1, 4, 1);
  EXPECT_INT(host_used(m), 1);
  EXPECT(i_use(spared, 9));
  spill(m, spilled, MGD_HOST);
  spill(m, guest, 2);
  EXPECT_INT(host_used(m), 3);
  EXPECT_INT(residency_of(m, 1).spilled, 6);
  EXPECT_INT(residency_of(m, 2).guests, 4);
  bool moving = true;
  void *memory = NULL;
  EXPECT_OK(mgd_handle_close(m, spared, &moving, &memory));
  EXPECT(!moving && memory);
  free(memory);
  EXPECT(!mgd_handle_put(spared, MGD_ALIVE)); /* an operator still uses it */
  EXPECT(mgd_handle_unuse(spared, me, 1));
  free(spared);
  EXPECT_INT(host_used(m), 2);
  EXPECT_OK(mgd_handle_close(m, guest, &moving, &memory));
  EXPECT(!moving && !memory);
  EXPECT(mgd_handle_put(guest, MGD_ALIVE));
  free(guest);
  EXPECT_INT(residency_of(m, 2).guests, 0);
  close_handle(m, spilled);
  EXPECT_INT(host_used(m), 0);
  mgd_machine_destroy(m);
}

/* The closer learns that others free the bytes, and leaves. */
static void close_moving(struct mgd_machine *m, struct mgd_handle *h) {
  bool moving = false;
  void *memory = &moving;
  EXPECT_OK(mgd_handle_close(m, h, &moving, &memory));
  EXPECT(moving && !memory);
  EXPECT(!mgd_handle_put(h, MGD_ALIVE));
  EXPECT(!is_empty(m)); /* its bytes are still on their way */
}

static void closing_on_the_way_out(int to, bool has_spare) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = has_spare ? open_with_spare(m, 1, 8) : open_handle(m, 1, 8, 0);
  struct plan p;
  void *left = NULL, *memory = to != MGD_HOST ? NULL : has_spare ? h->memory
                                                                 : malloc(1),
       *expected = has_spare ? h->memory : memory;
  EXPECT_OK(plan_eviction(m, 1, 8, NULL, &p));
  EXPECT_INT(host_used(m), 8); /* promised */
  close_moving(m, h);
  EXPECT_INT(host_used(m), 8);
  EXPECT_OK(mgd_evict_end(m, h, to, memory, &left));
  EXPECT(left == expected);
  EXPECT(!h->memory);
  free(left);
  EXPECT_INT(host_used(m), 0);
  EXPECT(mgd_handle_put(h, 1));
  free(h);
  EXPECT(is_empty(m));
  mgd_machine_destroy(m);
}

static void closing_on_the_way_home(int from, bool done, int64_t limit) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  void *left = NULL;
  spill(m, h, from);
  begin_restore(m, h);
  EXPECT_INT(residency_of(m, 2).guests, from == 2 ? 8 : 0);
  close_moving(m, h);
  EXPECT_OK(mgd_host_set_limit(m, limit));
  EXPECT_OK(mgd_restore_end(m, h, done ? MGD_RESIDENT : MGD_SPILLED, &left));
  EXPECT((left != NULL) == (from == MGD_HOST));
  free(left);
  EXPECT_INT(host_used(m), 0);
  EXPECT_INT(residency_of(m, 2).guests, 0);
  EXPECT(mgd_handle_unuse(h, me, 1));
  free(h);
  EXPECT(is_empty(m));
  mgd_machine_destroy(m);
}

/* Several orphans at once, ended in another order. */
static void orphans(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h[3];
  struct plan p;
  for (int i = 0; i < 3; i++) {
    h[i] = open_handle(m, 1, 1 << i, (uint64_t)i);
  }
  EXPECT_OK(plan_eviction(m, 1, 7, NULL, &p));
  EXPECT_INT(p.n, 3);
  for (int i = 0; i < 3; i++) {
    close_moving(m, h[i]);
    EXPECT_INT(residency_of(m, 1).storages, 2 - i);
  }
  EXPECT_INT(host_used(m), 7);
  end_spill(m, h[1], -1, NULL);
  EXPECT_INT(host_used(m), 5);
  end_spill(m, h[0], MGD_HOST, malloc(1)); /* frees the copy and the handle */
  EXPECT_INT(host_used(m), 4);
  end_spill(m, h[2], 2, NULL);
  EXPECT_INT(host_used(m), 0);
  EXPECT_INT(residency_of(m, 2).guests, 0);
  mgd_machine_destroy(m);
}

/* ---- first bytes that are on their way */

static void a_new_storage_may_wait_for_its_first_bytes(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_handle(m, 1, 8, 1);
  int64_t room[MGD_MAX_DEVICES] = {0};
  struct plan p;
  int device = -1;
  void *left = NULL;
  EXPECT(i_use(h, 1));
  EXPECT_CODE(mgd_handle_arrive(m, h), MGD_E_INVALID); /* somebody uses what is not there */
  put_back(h, 1);
  EXPECT_OK(mgd_handle_arrive(m, h));
  EXPECT_INT(h->state, MGD_ARRIVING);
  EXPECT_CODE(mgd_handle_arrive(m, h), MGD_E_INVALID);
  EXPECT_INT(residency_of(m, 1).idle, 8);
  EXPECT(!i_use(h, 2));
  EXPECT_OK(acquire(m, &h, 1, room, &p, &device));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_JOIN, 1, 1, 8, h);
  EXPECT_OK(mgd_restore_end(m, h, MGD_RESIDENT, &left));
  EXPECT(!left && h->state == MGD_RESIDENT);
  put_back(h, 1);
  EXPECT_OK(mgd_handle_arrive(m, h));
  spill(m, h, MGD_HOST); /* it may leave before anybody has used it */
  EXPECT_CODE(mgd_handle_arrive(m, h), MGD_E_INVALID);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* ---- another block, pins */

static void another_block_makes_the_copy_worthless(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_with_spare(m, 1, 8);
  void *memory = NULL, *copy = h->memory;
  struct plan p;
  EXPECT(i_use(h, 1));
  EXPECT_CODE(mgd_handle_resize(m, h, -1, &memory), MGD_E_INVALID);
  EXPECT_OK(mgd_handle_resize(m, h, 16, &memory));
  EXPECT(memory == copy && !h->memory);
  free(memory);
  EXPECT_INT(host_used(m), 0);
  EXPECT_INT(residency_of(m, 1).in_use, 16);
  EXPECT_OK(mgd_handle_resize(m, h, 0, &memory));
  EXPECT(!memory);
  put_back(h, 1);
  EXPECT_CODE(plan_eviction(m, 1, 1, NULL, &p), MGD_E_ABSENT); /* an empty one makes no room */
  EXPECT_OK(mgd_handle_resize(m, h, 4, &memory));
  spill(m, h, MGD_HOST);
  EXPECT_CODE(mgd_handle_resize(m, h, 2, &memory), MGD_E_INVALID);
  EXPECT_INT(h->bytes, 4);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void pins_count(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_with_spare(m, 1, 8);
  struct plan p;
  EXPECT_CODE(mgd_handle_pin(m, h, MGD_PIN_ASKED, false), MGD_E_INVALID);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true));
  EXPECT_INT(residency_of(m, 1).pinned[MGD_PIN_ASKED], 8);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
  EXPECT_CODE(plan_eviction(m, 1, 1, NULL, &p), MGD_E_ABSENT);
  EXPECT_INT(p.n, 0);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
  EXPECT_INT(residency_of(m, 1).idle, 8);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  carry_out(m, &p);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Each kind counts by itself; the first of those there are says why the bytes stay. */
static void pins_have_kinds(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_with_spare(m, 1, 8);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_GRAPH, true));
  EXPECT_CODE(mgd_handle_pin(m, h, MGD_PIN_ASKED, false), MGD_E_INVALID);
  EXPECT_INT(residency_of(m, 1).pinned[MGD_PIN_GRAPH], 8);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_POINTER, true));
  EXPECT_INT(residency_of(m, 1).pinned[MGD_PIN_GRAPH], 0);
  EXPECT_INT(residency_of(m, 1).pinned[MGD_PIN_POINTER], 8);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_POINTER, false));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_GRAPH, false));
  EXPECT_INT(residency_of(m, 1).idle, 8);
  for (int kind = MGD_PIN_KINDS - 1; kind >= 0; kind--) {
    EXPECT(mgd_handle_is_pinned(m, h) == (kind < MGD_PIN_KINDS - 1));
    EXPECT_OK(mgd_handle_pin(m, h, (enum mgd_pin)kind, true));
    EXPECT_INT(residency_of(m, 1).pinned[kind], 8);
  }
  for (int kind = 0; kind < MGD_PIN_KINDS; kind++) { EXPECT_OK(mgd_handle_pin(m, h, (enum mgd_pin)kind, false)); }
  EXPECT(!mgd_handle_is_pinned(m, h));
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* A pin does not bring home, but once home the bytes stay. */
static void pins_away_from_home(int to) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  void *left = NULL;
  const int64_t room[MGD_MAX_DEVICES] = {[2] = 8};
  EXPECT_OK(plan_eviction(m, 1, 1, to ? room : NULL, &p));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true)); /* while it leaves */
  carry_out(m, &p);
  EXPECT(!is_home(h));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true)); /* while it is away */
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
  begin_restore(m, h);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false)); /* while it comes */
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true));
  EXPECT_OK(mgd_restore_end(m, h, MGD_RESIDENT, &left));
  EXPECT(!left);
  put_back(h, 1);
  EXPECT_CODE(plan_eviction(m, 1, 1, NULL, &p), MGD_E_ABSENT);
  EXPECT_INT(residency_of(m, 1).pinned[MGD_PIN_ASKED], 8);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
  spill(m, h, MGD_HOST);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* ---- after fork */

/* A child's operators have ended before they began; what somebody carries is not theirs. */
static void a_child_forgets_uses(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *here = open_handle(m, 1, 1, 0), *away = open_handle(m, 1, 2, 0), *moved = open_handle(m, 2, 4, 0);
  struct plan p;
  spill(m, away, MGD_HOST);
  EXPECT(i_use(here, 1));
  EXPECT(i_use(here, 1));
  EXPECT(!i_use(away, 1));
  EXPECT_OK(plan_eviction(m, 2, 4, NULL, &p));
  mgd_handle_forget_uses(m, me);
  EXPECT_OK(mgd_user_others(m, 1, 0));
  EXPECT_CODE(mgd_user_others(m, 2, 0), MGD_E_BUSY); /* what is carried away */
  EXPECT_INT(here->in_use, MGD_ALIVE);
  EXPECT_INT(away->in_use, MGD_ALIVE);
  EXPECT_INT(moved->in_use, MGD_ALIVE + 1);
  EXPECT_INT(residency_of(m, 1).idle, 1);
  carry_out(m, &p);
  spill(m, here, MGD_HOST);
  close_handle(m, here);
  close_handle(m, away);
  close_handle(m, moved);
  mgd_machine_destroy(m);
}

int main(void) {
  a_new_storage_is_home_and_idle();
  storages_that_cannot_be();
  no_memory_changes_nothing();
  many_storages_close_in_any_order();
  closing_at_rest();
  for (int to = -1; to < 3; to++) {
    if (to != 1) {
      closing_on_the_way_out(to, false);
      closing_on_the_way_out(to, true);
    }
  }
  for (int i = 0; i < 4; i++) {
    closing_on_the_way_home(i & 2, i & 1, INT64_MAX);
    closing_on_the_way_home(i & 2, i & 1, 0);
  }
  orphans();
  a_new_storage_may_wait_for_its_first_bytes();
  another_block_makes_the_copy_worthless();
  pins_count();
  pins_have_kinds();
  pins_away_from_home(MGD_HOST);
  pins_away_from_home(2);
  a_child_forgets_uses();
  return 0;
}
