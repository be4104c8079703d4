/* What one operator needs comes home together, or nothing changes: and the
 * answer tells whether it is worth waiting. */
#include "handles.h"

static struct mgd_handle *open_spilled(struct mgd_machine *m, int home, int64_t bytes, int to) {
  struct mgd_handle *h = open_handle(m, home, bytes, 0);
  spill(m, h, to);
  return h;
}

/* The plan is not written, nor the device; states, lists and counts are as before, which mgd_check sees to. */
static void expect_refused(struct mgd_machine *m, struct mgd_handle *const *h, size_t n, const int64_t *room, int code, int where) {
  struct plan p;
  int device = -7;
  enum mgd_residency before[8];
  for (size_t i = 0; i < n; i++) {
    before[i] = (enum mgd_residency)h[i]->state;
  }
  EXPECT_CODE(acquire(m, h, n, room, &p, &device), code);
  EXPECT_INT(device, where);
  EXPECT_INT(p.n, PLAN);
  for (size_t i = 0; i < n; i++) {
    EXPECT_INT(h[i]->state, before[i]);
  }
}

static void end_restores(struct mgd_machine *m, const struct plan *p) {
  for (size_t i = 0; i < p->n; i++) {
    void *left = NULL;
    if (p->actions[i].kind == MGD_DO_RESTORE) {
      EXPECT_OK(mgd_restore_end(m, p->actions[i].handle, MGD_RESIDENT, &left));
      free(left);
    }
  }
}

static void who_is_home_needs_nothing(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h[] = {open_handle(m, 1, 8, 0), open_handle(m, 1, 4, 0)};
  const int64_t room[MGD_MAX_DEVICES] = {0, -50}; /* too full, but nothing is asked of it */
  struct plan p;
  int device = -7;
  EXPECT_OK(acquire(m, h, 2, room, &p, &device));
  EXPECT_INT(p.n, 0);
  EXPECT_OK(acquire(m, NULL, 0, room, &p, &device));
  EXPECT_INT(p.n, 0);
  EXPECT_INT(device, -7);
  p.n = 1 + MGD_MAX_DEVICES;
  EXPECT_CODE(mgd_restore_begin(m, h, 2, room, p.actions, &p.n, &device), MGD_E_INVALID);
  close_handle(m, h[0]);
  close_handle(m, h[1]);
  mgd_machine_destroy(m);
}

static void room_first_and_then_every_restore(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *idle = open_handle(m, 1, 64, 0);
  EXPECT_OK(mgd_handle_pin(m, idle, MGD_PIN_ASKED, true));
  struct mgd_handle *h[] = {open_spilled(m, 1, 8, MGD_HOST), open_spilled(m, 2, 4, MGD_HOST), open_spilled(m, 1, 16, 2), open_handle(m, 1, 1, 0)};
  const int64_t room[MGD_MAX_DEVICES] = {0, 3, 4};
  struct plan p;
  int device = -7;
  EXPECT_OK(mgd_handle_pin(m, idle, MGD_PIN_ASKED, false));
  for (int i = 0; i < 4; i++) {
    EXPECT(i_use(h[i], 1) == (i == 3));
  }
  EXPECT_OK(acquire(m, h, 4, room, &p, &device));
  EXPECT_INT(p.n, 4);
  EXPECT_ACTION(p.actions[0], MGD_DO_MAKE_ROOM, 1, -1, 21, NULL);
  EXPECT_ACTION(p.actions[1], MGD_DO_RESTORE, MGD_HOST, 1, 8, h[0]);
  EXPECT_ACTION(p.actions[2], MGD_DO_RESTORE, MGD_HOST, 2, 4, h[1]);
  EXPECT_ACTION(p.actions[3], MGD_DO_RESTORE, 2, 1, 16, h[2]);
  EXPECT(p.actions[1].memory == h[0]->memory && p.actions[1].memory);
  EXPECT(!p.actions[3].memory);
  end_restores(m, &p);
  EXPECT_OK(acquire(m, h, 4, room, &p, &device));
  EXPECT_INT(p.n, 0);
  for (int i = 0; i < 4; i++) {
    put_back(h[i], 1);
    close_handle(m, h[i]);
  }
  close_handle(m, idle);
  mgd_machine_destroy(m);
}

static void one_named_twice_counts_once(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *one = open_spilled(m, 1, 8, MGD_HOST), *const h[] = {one, one, one};
  const int64_t room[MGD_MAX_DEVICES] = {0, 8};
  struct plan p;
  int device = -7;
  for (int i = 0; i < 3; i++) {
    EXPECT(!i_use(one, 1));
  }
  EXPECT_OK(acquire(m, h, 3, room, &p, &device));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_RESTORE, MGD_HOST, 1, 8, one);
  end_restores(m, &p);
  EXPECT(!mgd_handle_unuse(one, me, 3));
  close_handle(m, one);
  mgd_machine_destroy(m);
}

static void somebody_else_moves_one_of_them(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h[] = {open_spilled(m, 1, 8, MGD_HOST), open_spilled(m, 1, 4, MGD_HOST)};
  const int64_t room[MGD_MAX_DEVICES] = {0, 100};
  struct plan p;
  void *left = NULL;
  begin_restore(m, h[1]);
  EXPECT(!i_use(h[0], 1));
  expect_refused(m, h, 2, room, MGD_E_WAIT, -7);
  EXPECT_OK(mgd_restore_end(m, h[1], MGD_RESIDENT, &left));
  put_back(h[1], 1);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  expect_refused(m, h, 2, room, MGD_E_WAIT, -7);
  carry_out(m, &p);
  put_back(h[0], 1);
  close_handle(m, h[0]);
  close_handle(m, h[1]);
  mgd_machine_destroy(m);
}

/* 8 bytes are asked for where nothing is free. */
static void expect_answer(struct mgd_machine *m, struct mgd_handle *const *h, size_t n, int code) {
  const int64_t room[MGD_MAX_DEVICES] = {0};
  struct plan p;
  int device = -7;
  for (size_t i = 0; i < n; i++) {
    (void)i_use(h[i], 1);
  }
  if (code != MGD_OK) {
    expect_refused(m, h, n, room, code, 1);
  } else {
    void *left;
    EXPECT_OK(acquire(m, h, n, room, &p, &device));
    EXPECT_ACTION(p.actions[0], MGD_DO_MAKE_ROOM, 1, -1, 8, NULL);
    EXPECT_OK(mgd_restore_end(m, h[0], MGD_SPILLED, &left));
  }
  for (size_t i = 0; i < n; i++) {
    put_back(h[i], 1);
  }
}

static void who_may_leave_makes_hope(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_spilled(m, 1, 8, MGD_HOST), *const one[] = {h};
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  struct mgd_handle *small = open_handle(m, 1, 7, 0), *far = open_handle(m, 2, 64, 0);
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  struct mgd_handle *last = open_handle(m, 1, 1, 0);
  expect_answer(m, one, 1, MGD_OK);
  EXPECT(i_use(last, 1));
  expect_answer(m, one, 1, MGD_E_BUSY); /* later */
  EXPECT_OK(mgd_handle_pin(m, last, MGD_PIN_ASKED, true));
  expect_answer(m, one, 1, MGD_E_NO_ROOM); /* never */
  put_back(last, 1);
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  EXPECT_OK(mgd_handle_pin(m, last, MGD_PIN_ASKED, false));
  struct mgd_handle *const all[] = {h, last};
  expect_answer(m, all, 2, MGD_E_NO_ROOM); /* its own operands must stay */
  close_handle(m, last);
  spill(m, small, MGD_HOST);
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  close_handle(m, small);
  close_handle(m, far);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static bool refuses(const struct mgd_handle *unused) {
  (void)unused;
  return false;
}

/* Nobody is told to come home where evict.c then finds nobody to leave. */
static void who_is_refused_makes_no_room(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_spilled(m, 1, 8, MGD_HOST), *const one[] = {h}, *own = open_handle(m, 1, 4, 0);
  struct mgd_handle *guest = open_spilled(m, 2, 4, 1);
  struct plan p;
  expect_answer(m, one, 1, MGD_OK);
  EXPECT_OK(mgd_evict_veto(m, refuses));
  EXPECT_CODE(plan_eviction(m, 1, 8, NULL, &p), MGD_E_ABSENT);
  expect_answer(m, one, 1, MGD_E_BUSY); /* until their owners let go */
  EXPECT_OK(mgd_evict_veto(m, NULL));
  expect_answer(m, one, 1, MGD_OK);
  close_handle(m, own);
  close_handle(m, guest);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void what_is_on_its_way_makes_hope(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_spilled(m, 1, 8, MGD_HOST), *const one[] = {h}, *leaver = open_handle(m, 1, 8, 0);
  struct plan p;
  void *left = NULL;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_OK(mgd_handle_pin(m, leaver, MGD_PIN_ASKED, true)); /* too late */
  expect_answer(m, one, 1, MGD_E_BUSY);
  carry_out(m, &p);
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  begin_restore(m, leaver);
  expect_answer(m, one, 1, MGD_E_NO_ROOM); /* it comes to stay */
  EXPECT_OK(mgd_handle_pin(m, leaver, MGD_PIN_ASKED, false));
  expect_answer(m, one, 1, MGD_E_BUSY);
  EXPECT_OK(mgd_restore_end(m, leaver, MGD_SPILLED, &left));
  put_back(leaver, 1);
  close_handle(m, leaver);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void guests_make_hope(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_spilled(m, 1, 8, MGD_HOST), *const one[] = {h}, *guest = open_spilled(m, 2, 8, 1);
  struct mgd_handle *late = open_spilled(m, 2, 1, 1);
  struct plan p;
  void *left = NULL;
  expect_answer(m, one, 1, MGD_OK); /* the first guest is enough */
  close_handle(m, late);
  EXPECT(!i_use(guest, 1));
  expect_answer(m, one, 1, MGD_E_BUSY); /* somebody wants it home */
  struct mgd_handle *const both[] = {h, guest};
  expect_answer(m, both, 2, MGD_E_NO_ROOM);
  put_back(guest, 1);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT(p.actions[0].handle == guest);
  expect_answer(m, one, 1, MGD_E_BUSY); /* on to the host */
  end_spill(m, guest, -1, NULL);
  begin_restore(m, guest);
  expect_answer(m, one, 1, MGD_E_BUSY); /* or home */
  EXPECT_OK(mgd_restore_end(m, guest, MGD_RESIDENT, &left));
  put_back(guest, 1);
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  close_handle(m, guest);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void replicas_make_room(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_spilled(m, 1, 8, MGD_HOST), *const one[] = {h};
  uint64_t source;
  int32_t slot;
  EXPECT_OK(mgd_source_open(m, &source));
  EXPECT_OK(mgd_replica_add(m, source, 0, 1, 0, 8, &slot));
  expect_answer(m, one, 1, MGD_OK);
  EXPECT_OK(mgd_source_close(m, source));
  EXPECT_OK(mgd_replica_reap(m, &slot));
  expect_answer(m, one, 1, MGD_E_NO_ROOM);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* No more than MGD_LOOKS storages are looked at. If there are more, the rest counts as idle, as far as its bytes go. */
static void few_of_many_are_looked_at(void) {
  for (int guests = 0; guests < 2; guests++) {
    struct mgd_machine *m = new_directory(2);
    struct mgd_handle *const one[] = {open_spilled(m, 1, 8, MGD_HOST)}, *used[MGD_LOOKS + 1];
    for (int i = 0; i <= MGD_LOOKS; i++) {
      used[i] = guests ? open_spilled(m, 2, 1, 1) : open_handle(m, 1, 1, 0);
      EXPECT(i_use(used[i], 1) == !guests);
      expect_answer(m, one, 1, i < 7 ? MGD_E_NO_ROOM : i < MGD_LOOKS ? MGD_E_BUSY : MGD_OK);
    }
    for (int i = 0; i <= MGD_LOOKS; i++) {
      put_back(used[i], 1);
      close_handle(m, used[i]);
    }
    close_handle(m, one[0]);
    mgd_machine_destroy(m);
  }
}

/* They are 17, and have less than the 18 bytes that are asked for: what was not looked at does not help. */
static void many_without_bytes_make_no_room(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *const one[] = {open_spilled(m, 1, 8, MGD_HOST)}, *used[MGD_LOOKS + 1];
  const int64_t room[MGD_MAX_DEVICES] = {0, -10};
  for (int i = 0; i <= MGD_LOOKS; i++) {
    used[i] = open_handle(m, 1, 1, 0);
    EXPECT(i_use(used[i], 1));
  }
  EXPECT(!i_use(one[0], 1));
  expect_refused(m, one, 1, room, MGD_E_NO_ROOM, 1);
  put_back(one[0], 1);
  for (int i = 0; i <= MGD_LOOKS; i++) {
    put_back(used[i], 1);
    close_handle(m, used[i]);
  }
  close_handle(m, one[0]);
  mgd_machine_destroy(m);
}

/* Sums beyond what a number can say are too much, not little. */
static void sizes_that_cannot_be_added(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *a = open_spilled(m, 1, INT64_MAX / 2, MGD_HOST), *b = open_spilled(m, 1, INT64_MAX / 2, MGD_HOST);
  struct mgd_handle *c = open_handle(m, 1, 1, 0);
  EXPECT_OK(mgd_host_set_limit(m, INT64_MAX));
  spill(m, c, MGD_HOST);
  struct mgd_handle *x = open_handle(m, 1, INT64_MAX, 0), *y = open_handle(m, 1, INT64_MAX, 0), *const all[] = {a, b, c};
  int64_t room[MGD_MAX_DEVICES] = {0, INT64_MIN};
  struct plan p;
  int device = -7;
  EXPECT_INT(residency_of(m, 1).idle, INT64_MAX);
  EXPECT_OK(acquire(m, all, 0, room, &p, &device));
  for (int i = 0; i < 3; i++) {
    EXPECT(!i_use(all[i], 1));
  }
  EXPECT_OK(acquire(m, all, 3, room, &p, &device));
  EXPECT_INT(p.n, 4);
  EXPECT_ACTION(p.actions[0], MGD_DO_MAKE_ROOM, 1, -1, INT64_MAX, NULL);
  for (int i = 0; i < 3; i++) {
    void *left;
    EXPECT_OK(mgd_restore_end(m, all[i], MGD_SPILLED, &left));
    put_back(all[i], 1);
    close_handle(m, all[i]);
  }
  close_handle(m, x);
  close_handle(m, y);
  mgd_machine_destroy(m);
}

/* The bytes of all guests may be more than a number holds; then they are shown as the largest number. */
static void guests_that_cannot_be_added(void) {
  struct mgd_machine *m = new_directory(3);
  struct mgd_handle *a = open_spilled(m, 1, INT64_MAX - 1, 2);
  EXPECT_INT(residency_of(m, 2).guests, INT64_MAX - 1);
  struct mgd_handle *b = open_spilled(m, 3, INT64_MAX, 2);
  EXPECT_INT(residency_of(m, 2).guests, INT64_MAX);
  EXPECT_INT(residency_of(m, 3).spilled, INT64_MAX);
  close_handle(m, a);
  EXPECT_INT(residency_of(m, 2).guests, INT64_MAX);
  close_handle(m, b);
  EXPECT_INT(residency_of(m, 2).guests, 0);
  mgd_machine_destroy(m);
}

static void nothing_changes_on_the_second_device_either(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *const h[] = {open_spilled(m, 1, 8, MGD_HOST), open_spilled(m, 2, 8, 1), open_spilled(m, 2, 4, 1)};
  const int64_t room[MGD_MAX_DEVICES] = {0, 8, 11};
  for (int i = 0; i < 3; i++) {
    EXPECT(!i_use(h[i], 1));
  }
  expect_refused(m, h, 3, room, MGD_E_NO_ROOM, 2);
  for (int i = 0; i < 3; i++) {
    put_back(h[i], 1);
  }
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 12, NULL, &p)); /* the guests are in their old order */
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 8, h[1]);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, MGD_HOST, 4, h[2]);
  carry_out(m, &p);
  for (int i = 0; i < 3; i++) {
    close_handle(m, h[i]);
  }
  mgd_machine_destroy(m);
}

int main(void) {
  who_is_home_needs_nothing();
  room_first_and_then_every_restore();
  one_named_twice_counts_once();
  somebody_else_moves_one_of_them();
  who_may_leave_makes_hope();
  who_is_refused_makes_no_room();
  what_is_on_its_way_makes_hope();
  guests_make_hope();
  replicas_make_room();
  few_of_many_are_looked_at();
  many_without_bytes_make_no_room();
  sizes_that_cannot_be_added();
  guests_that_cannot_be_added();
  nothing_changes_on_the_second_device_either();
  return 0;
}
