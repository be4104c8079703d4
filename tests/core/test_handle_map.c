/* A copy that lies in a file: it takes none of the host's memory, is never copied to, and ends with the first write.
 *
 * Usage: test_handle_map [seed] [steps]; in steps / 100 rounds a thread writes the bytes while they are to leave.
 */
#include <pthread.h>
#include <sched.h>

#include "handles.h"

static struct mgd_handle *open_mapped(struct mgd_machine *m, int64_t bytes) {
  struct mgd_handle *h = open_handle(m, 1, bytes, 0);
  EXPECT_OK(mgd_handle_map(m, h, malloc(1)));
  return h;
}

static void it_leaves_without_a_copy_and_without_room_on_the_host(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8);
  struct plan p;
  EXPECT_OK(mgd_host_set_limit(m, 0));
  for (int round = 0; round < 2; round++) {
    EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
    EXPECT_INT(p.n, 1);
    EXPECT_ACTION(p.actions[0], MGD_DO_DROP, 1, MGD_HOST, 8, h);
    EXPECT(p.actions[0].memory == h->memory);
    carry_out(m, &p);
    EXPECT_INT(host_used(m), 0);
    restore(m, h);
    EXPECT(h->memory && h->mapped);
    EXPECT_INT(host_used(m), 0);
  }
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void written_bytes_need_memory_of_the_host(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8);
  struct plan p;
  write_to(h);
  EXPECT_OK(mgd_host_set_limit(m, 7));
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_FORGET, MGD_HOST, -1, 8, NULL);
  carry_out(m, &p);
  EXPECT(!h->memory && !h->mapped);
  EXPECT_CODE(plan_eviction(m, 1, 1, NULL, &p), MGD_E_NO_ROOM);
  EXPECT_OK(mgd_host_set_limit(m, 8));
  spill(m, h, MGD_HOST);
  EXPECT_INT(host_used(m), 8);
  restore(m, h);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_ACTION(p.actions[0], MGD_DO_DROP, 1, MGD_HOST, 8, h);
  carry_out(m, &p);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void both_actions_fit_a_plan_or_none(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *a = open_handle(m, 1, 8, 1), *h = open_mapped(m, 8);
  struct plan p = {.n = 2};
  h->stamp = 2;
  write_to(h);
  EXPECT_OK(mgd_evict_begin(m, 1, 16, NULL, 0, p.actions, &p.n));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 8, a);
  carry_out(m, &p);
  EXPECT(h->mapped);
  EXPECT_OK(plan_eviction(m, 1, 8, NULL, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, MGD_HOST, 8, h);
  EXPECT(!p.actions[1].memory);
  carry_out(m, &p);
  close_handle(m, a);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* The executor ends a DROP so if the file was written. */
static void a_drop_that_failed_makes_the_copy_bad(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8);
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  end_spill(m, h, -1, NULL);
  EXPECT(is_home(h));
  EXPECT_INT(host_used(m), 0);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_INT(p.actions[0].kind, MGD_DO_FORGET);
  EXPECT_INT(p.actions[1].kind, MGD_DO_SPILL);
  carry_out(m, &p);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

/* Above the host's limit a copy is given up when its bytes come home; one in a file takes none of that room. */
static void it_stays_when_the_host_has_too_much(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8), *a = open_handle(m, 1, 8, 0), *b = open_handle(m, 1, 4, 0);
  spill(m, h, MGD_HOST);
  spill(m, a, MGD_HOST);
  spill(m, b, MGD_HOST);
  EXPECT_OK(mgd_host_set_limit(m, 11));
  restore(m, h);
  EXPECT(h->memory && h->mapped);
  EXPECT_INT(host_used(m), 12);
  restore(m, a);
  EXPECT(!a->memory);
  EXPECT_INT(host_used(m), 4);
  restore(m, b);
  EXPECT(b->memory);
  close_handle(m, h);
  close_handle(m, a);
  close_handle(m, b);
  mgd_machine_destroy(m);
}

static void room_on_the_host_is_not_made_of_it(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8), *a = open_handle(m, 1, 8, 0);
  struct plan p;
  EXPECT(i_use(h, 9));
  EXPECT_OK(mgd_host_set_limit(m, 7));
  p.n = PLAN;
  EXPECT_CODE(mgd_evict_begin(m, 1, 1, NULL, 1, p.actions, &p.n), MGD_E_NO_ROOM);
  EXPECT(h->mapped);
  put_back(h, 1);
  close_handle(m, a);
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void only_a_storage_at_home_without_a_copy_gets_one(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8), *spare = open_with_spare(m, 1, 8), *away = open_handle(m, 1, 8, 0);
  void *left = NULL;
  spill(m, away, MGD_HOST);
  EXPECT_CODE(mgd_handle_map(m, h, m), MGD_E_INVALID);
  EXPECT_CODE(mgd_handle_map(m, spare, m), MGD_E_INVALID);
  EXPECT_CODE(mgd_handle_map(m, away, m), MGD_E_INVALID);
  restore(m, away);
  EXPECT(i_use(h, 1));
  EXPECT_OK(mgd_handle_resize(m, h, 16, &left));
  put_back(h, 1);
  EXPECT(left && !h->mapped);
  free(left);
  EXPECT_CODE(mgd_handle_map(m, h, NULL), MGD_E_INVALID);
  close_handle(m, h);
  close_handle(m, spare);
  close_handle(m, away);
  mgd_machine_destroy(m);
}

static void the_storage_may_die_while_it_leaves(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *h = open_mapped(m, 8);
  struct plan p;
  bool moving = false;
  void *memory = NULL, *left = NULL;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_OK(mgd_handle_close(m, h, &moving, &memory));
  EXPECT(moving && !memory);
  put_back(h, MGD_ALIVE);
  EXPECT_OK(mgd_evict_end(m, h, MGD_HOST, p.actions[0].memory, &left));
  EXPECT(left == p.actions[0].memory);
  free(left);
  EXPECT(mgd_handle_put(h, 1));
  free(h);
  EXPECT_INT(host_used(m), 0);
  mgd_machine_destroy(m);
}

/* ---- a write at the same moment */

/* The storage of a round, which is written once. `asked` and `done` are numbers of rounds. How often the write falls
 * between the first look at the mark and the last depends on how far both threads run at once: on an idle machine it is
 * about one round in a hundred. */
struct contest {
  struct mgd_handle *h;
  struct mgd_user *user;
  uint64_t random;
  int64_t rounds, asked, done;
  bool wrote;
};

/* Waits for a round without giving the processor away at first, so that both threads begin at about the same time. */
static void wait_for(const int64_t *number, int64_t round) {
  for (int64_t i = 0; __atomic_load_n(number, __ATOMIC_ACQUIRE) < round; i++) {
    if (i > 5000) { (void)sched_yield(); }
  }
}

static void pass_time(uint64_t *random) {
  for (int64_t i = pick(random, 150); i > 0; i--) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
}

static void *write_once_a_round(void *context) {
  struct contest *x = context;
  for (int64_t round = 1; round <= x->rounds; round++) {
    wait_for(&x->asked, round);
    pass_time(&x->random);
    x->wrote = mgd_handle_use(x->h, x->user, 1);
    if (x->wrote) { (void)mgd_handle_write(x->h); }
    EXPECT(!mgd_handle_unuse(x->h, x->user, 1));
    __atomic_store_n(&x->done, round, __ATOMIC_RELEASE);
  }
  return NULL;
}

/* What was written at home is never left for the copy in the file, and a storage that stays keeps its mark. */
static void expect_no_write_is_lost(const struct contest *x, int code, const struct plan *p) {
  if (code != MGD_OK) {
    EXPECT_CODE(code, MGD_E_BUSY);
    EXPECT_INT(p->n, 0);
    EXPECT(is_home(x->h) && x->h->mapped && x->h->position >= 0 && (!x->wrote || x->h->dirty));
  } else if (p->actions[0].kind == MGD_DO_DROP) {
    EXPECT_INT(p->n, 1);
    EXPECT(!x->wrote && x->h->mapped);
  } else {
    EXPECT(x->wrote && !x->h->mapped);
    EXPECT_INT(p->actions[0].kind, MGD_DO_FORGET);
    EXPECT(p->n == 1 ? is_home(x->h) : p->n == 2 && p->actions[1].kind == MGD_DO_SPILL);
  }
}

static void a_write_at_the_same_moment_is_not_lost(uint64_t seed, int64_t rounds) {
  struct mgd_machine *m = new_directory(1);
  struct contest x = {.random = seed, .rounds = rounds};
  pthread_t thread;
  EXPECT_OK(mgd_user_join(m, &x.user));
  EXPECT_INT(pthread_create(&thread, NULL, write_once_a_round, &x), 0);
  for (int64_t round = 1; round <= rounds; round++) {
    struct plan p;
    x.h = open_mapped(m, 8);
    __atomic_store_n(&x.asked, round, __ATOMIC_RELEASE);
    pass_time(&seed);
    const int code = plan_eviction(m, 1, 1, NULL, &p);
    wait_for(&x.done, round);
    expect_no_write_is_lost(&x, code, &p);
    carry_out(m, &p);
    close_handle(m, x.h);
  }
  EXPECT_INT(pthread_join(thread, NULL), 0);
  mgd_machine_destroy(m);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("test_handle_map: seed %" PRIu64 ", %" PRId64 " rounds\n", seed, steps / 100);
  (void)fflush(stdout);
  it_leaves_without_a_copy_and_without_room_on_the_host();
  written_bytes_need_memory_of_the_host();
  both_actions_fit_a_plan_or_none();
  a_drop_that_failed_makes_the_copy_bad();
  it_stays_when_the_host_has_too_much();
  room_on_the_host_is_not_made_of_it();
  only_a_storage_at_home_without_a_copy_gets_one();
  the_storage_may_die_while_it_leaves();
  a_write_at_the_same_moment_is_not_lost(seed, steps / 100);
  return 0;
}
