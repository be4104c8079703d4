/* How moves end: done, failed or elsewhere than planned; what becomes of the copy
 * on the host, and of those who write. */
#include "handles.h"

/* ---- ends of moves */

static void a_failed_spill_leaves_everything_as_it_was(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT(!is_home(h));
  EXPECT_INT(residency_of(m, 1).moving, 8);
  end_spill(m, h, -1, NULL);
  EXPECT(is_home(h));
  EXPECT_INT(host_used(m), 0);
  spill(m, h, 2);
  EXPECT_OK(plan_eviction(m, 2, 1, NULL, &p)); /* the guest goes on */
  EXPECT_INT(residency_of(m, 2).guests, 8);
  EXPECT_INT(host_used(m), 8);
  end_spill(m, h, -1, NULL);
  EXPECT_INT(residency_of(m, 2).guests, 8);
  EXPECT_INT(host_used(m), 0);
  restore(m, h);
  spill(m, h, MGD_HOST);
  restore(m, h);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.actions[0].kind, MGD_DO_DROP);
  end_spill(m, h, -1, NULL);
  EXPECT_INT(host_used(m), 8);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.actions[0].kind, MGD_DO_SPILL); /* nobody knows any more what is in the copy */
  EXPECT(p.actions[0].memory == h->memory);
  carry_out(m, &p);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void a_failed_restore_leaves_it_where_it_was(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  void *left = &m;
  for (int to = 0; to < 3; to += 2) {
    spill(m, h, to);
    begin_restore(m, h);
    EXPECT_INT(residency_of(m, 1).moving, 8);
    EXPECT_OK(mgd_restore_end(m, h, MGD_SPILLED, &left));
    EXPECT(!left);
    put_back(h, 1);
    EXPECT_INT(residency_of(m, 1).spilled, 8);
    EXPECT_INT(h->away, to);
    EXPECT_INT(host_used(m), to ? 0 : 8);
    restore(m, h);
    EXPECT(i_use(h, 1));
    EXPECT_OK(mgd_handle_resize(m, h, 8, &left));
    put_back(h, 1);
    free(left);
    left = &m;
  }
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void moves_end_once_and_where_they_can(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  char block[2];
  void *left = block;
  EXPECT_CODE(mgd_evict_end(m, h, MGD_HOST, block, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_restore_end(m, h, MGD_RESIDENT, &left), MGD_E_INVALID);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_CODE(mgd_evict_end(m, h, 1, NULL, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_end(m, h, 3, NULL, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_end(m, h, 2, block, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_end(m, h, MGD_HOST, NULL, &left), MGD_E_INVALID);
  EXPECT_CODE(mgd_restore_end(m, h, MGD_RESIDENT, &left), MGD_E_INVALID);
  EXPECT(left == block);
  end_spill(m, h, MGD_HOST, malloc(1));
  EXPECT_CODE(mgd_evict_end(m, h, MGD_HOST, h->memory, &left), MGD_E_INVALID);
  restore(m, h);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_CODE(mgd_evict_end(m, h, MGD_HOST, block, &left), MGD_E_INVALID); /* the plan named another */
  end_spill(m, h, 2, NULL); /* elsewhere than planned: the copy is given back */
  EXPECT_INT(host_used(m), 0);
  EXPECT_INT(residency_of(m, 2).guests, 8);
  EXPECT(!h->memory);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* It was to go to a peer that had no room after all. */
static void the_host_serves_for_a_peer(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  const int64_t room[MGD_MAX_DEVICES] = {[2] = 8};
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(m, 0));
  EXPECT_OK(plan_eviction(m, 1, 1, room, &p));
  EXPECT_INT(p.actions[0].to, 2);
  EXPECT_INT(host_used(m), 0);
  end_spill(m, h, MGD_HOST, malloc(1));
  EXPECT_INT(host_used(m), 8); /* above the limit, but that is where it is */
  restore(m, h);
  EXPECT_INT(host_used(m), 0);
  EXPECT(!h->memory);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* ---- written or not */

static int kind_of_leaving(struct mgd_machine *m, struct plan *p) {
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, p));
  EXPECT_INT(p->n, 1);
  return (int)p->actions[0].kind;
}

static void only_what_was_written_is_copied_again(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  EXPECT_INT(kind_of_leaving(m, &p), MGD_DO_SPILL); /* it has no copy */
  carry_out(m, &p);
  restore(m, h);
  EXPECT_INT(kind_of_leaving(m, &p), MGD_DO_DROP);
  carry_out(m, &p);
  restore(m, h);
  EXPECT(i_use(h, 1));
  mgd_handle_write(h);
  put_back(h, 1);
  EXPECT_INT(kind_of_leaving(m, &p), MGD_DO_SPILL);
  EXPECT(p.actions[0].memory == h->memory); /* over the old copy */
  EXPECT_INT(host_used(m), 8);
  carry_out(m, &p);
  restore(m, h);
  EXPECT_INT(kind_of_leaving(m, &p), MGD_DO_DROP);
  carry_out(m, &p);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Whoever finds the bytes away may say at once that it will write them. */
static void a_write_announced_while_waiting_is_not_forgotten(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  for (int moment = 0; moment < 3; moment++) {
    void *left = NULL;
    EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
    if (moment == 0) {
      EXPECT(!i_use(h, 1)); /* while it leaves */
      mgd_handle_write(h);
    }
    carry_out(m, &p);
    if (moment == 1) {
      EXPECT(!i_use(h, 1)); /* while it is away */
      mgd_handle_write(h);
    }
    begin_restore(m, h);
    if (moment == 2) {
      EXPECT(!i_use(h, 1)); /* while it comes */
      mgd_handle_write(h);
    }
    EXPECT_OK(mgd_restore_end(m, h, MGD_RESIDENT, &left));
    EXPECT(!left);
    EXPECT(!mgd_handle_unuse(h, me, 2));
    EXPECT_INT(kind_of_leaving(m, &p), MGD_DO_SPILL);
    end_spill(m, h, MGD_HOST, h->memory);
    restore(m, h);
  }
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* ---- the host's room */

static void copies_stay_while_the_host_has_room(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *a = open_handle(m, 1, 8, 1), *b = open_handle(m, 1, 16, 2);
  int64_t used, limit, peak;
  struct plan p;
  EXPECT_OK(mgd_host_usage(m, &used, &limit, &peak));
  EXPECT_INT(limit, INT64_MAX);
  EXPECT_OK(plan_eviction(m, 1, 24, NULL, &p));
  carry_out(m, &p);
  EXPECT_OK(mgd_host_set_limit(m, 23)); /* lower than what is there */
  restore(m, a);
  EXPECT(!a->memory);
  EXPECT_INT(host_used(m), 16);
  restore(m, b);
  EXPECT(b->memory); /* 16 of 23 */
  EXPECT_OK(mgd_host_set_limit(m, 8));
  EXPECT(b->memory); /* until somebody else needs the room */
  EXPECT_OK(plan_eviction(m, 1, 8, NULL, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_ACTION(p.actions[0], MGD_DO_FORGET, MGD_HOST, -1, 16, NULL);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, MGD_HOST, 8, a);
  carry_out(m, &p);
  EXPECT_CODE(plan_eviction(m, 1, 8, NULL, &p), MGD_E_NO_ROOM); /* no room for b anywhere */
  EXPECT_OK(mgd_host_set_limit(m, 24));
  spill(m, b, MGD_HOST);
  EXPECT_OK(mgd_host_usage(m, &used, &limit, &peak));
  EXPECT_INT(used, 24);
  EXPECT_INT(limit, 24);
  EXPECT_INT(peak, 24);
  close_handle(m, a);
  close_handle(m, b);
  mgd_machine_destroy(m);
}

int main(void) {
  a_failed_spill_leaves_everything_as_it_was();
  a_failed_restore_leaves_it_where_it_was();
  moves_end_once_and_where_they_can();
  the_host_serves_for_a_peer();
  only_what_was_written_is_copied_again();
  a_write_announced_while_waiting_is_not_forgotten();
  copies_stay_while_the_host_has_room();
  return 0;
}
