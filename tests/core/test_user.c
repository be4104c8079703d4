/* The threads that use storages: each has its counts, and the counts of one that has left serve the next. */
#include "handles.h"

static int count(const struct mgd_machine *m) {
  int n = 0;
  for (const struct mgd_user *u = m->users; u; u = u->next) { n++; }
  return n;
}

static void the_counts_of_one_that_left_are_used_again(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct mgd_user *second = NULL, *third = NULL, *next = NULL;
  EXPECT_OK(mgd_user_join(m, &second));
  EXPECT_OK(mgd_user_join(m, &third));
  EXPECT(second != me && third != me && second != third);
  EXPECT_INT(count(m), 3);
  EXPECT(mgd_handle_use(h, second, 1));
  EXPECT(!mgd_handle_unuse(h, second, 1));
  mgd_user_leave(m, second);
  EXPECT_OK(mgd_user_join(m, &next));
  EXPECT(next == second);
  EXPECT_INT(next->begun[1], 1); /* they only grow, so that no use is overlooked */
  EXPECT_INT(next->ended[1], 1);
  EXPECT_OK(mgd_user_join(m, &next));
  EXPECT(next != me && next != second && next != third);
  EXPECT_INT(count(m), 4);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void without_memory_none_joins(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_user *const before = m->users, *user = me;
  m->alloc.fail_at = atomic_load(&m->alloc.made) + 1;
  EXPECT_CODE(mgd_user_join(m, &user), MGD_E_NOMEM);
  EXPECT(user == me && m->users == before);
  EXPECT_INT(count(m), 1);
  m->alloc.fail_at = atomic_load(&m->alloc.made) + 1;
  mgd_user_leave(m, me);
  EXPECT_OK(mgd_user_join(m, &user)); /* it needs no memory */
  EXPECT(user == me);
  m->alloc.fail_at = 0;
  EXPECT_OK(mgd_user_join(m, &user));
  EXPECT(user != me);
  EXPECT_INT(count(m), 2);
  mgd_machine_destroy(m);
}

/* A use by any thread counts until it ends, also one of a thread that has left. */
static void uses_of_all_threads_count(void) {
  struct mgd_machine *m = new_machine(2, 100);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct mgd_user *second = NULL;
  EXPECT_OK(mgd_user_join(m, &second));
  EXPECT_OK(mgd_user_others(m, 1, 0));
  EXPECT(i_use(h, 1) && mgd_handle_use(h, second, 2));
  EXPECT_CODE(mgd_user_others(m, 1, 1), MGD_E_BUSY);
  EXPECT_OK(mgd_user_others(m, 1, 2));
  EXPECT_OK(mgd_user_others(m, 2, 0));
  mgd_user_leave(m, second);
  EXPECT_CODE(mgd_user_others(m, 1, 1), MGD_E_BUSY);
  EXPECT(!mgd_handle_unuse(h, second, 1));
  EXPECT_OK(mgd_user_others(m, 1, 1));
  EXPECT_CODE(mgd_user_others(m, -1, 0), MGD_E_NO_DEVICE);
  put_back(h, 1);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

int main(void) {
  the_counts_of_one_that_left_are_used_again();
  without_memory_none_joins();
  uses_of_all_threads_count();
  return 0;
}
