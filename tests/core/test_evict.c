/* Who leaves: by the policy, at a cost that does not grow with the number of
 * those that stay. */
#include <math.h>

#include "handles.h"

/* ---- policies */

/* Four storages leave one by one; their names in that order, in base ten. */
static int order_of(struct mgd_machine *m, struct mgd_handle *const h[4]) {
  int order = 0;
  for (int i = 0; i < 4; i++) {
    struct plan p;
    EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
    EXPECT_INT(p.n, 1);
    for (int k = 0; k < 4; k++) {
      order = p.actions[0].handle == h[k] ? order * 10 + k + 1 : order;
    }
    carry_out(m, &p);
  }
  for (int i = 0; i < 4; i++) {
    restore(m, h[i]);
  }
  return order;
}

static void open_four(struct mgd_machine *m, struct mgd_handle *h[4]) {
  const int64_t bytes[] = {30, 1000000, 40, 2000000};
  for (int i = 0; i < 4; i++) {
    h[i] = open_handle(m, 1, bytes[i], (uint64_t)(10 - i));
  }
}

static double largest_first(void *context, const struct mgd_victim *victim) {
  EXPECT(victim->return_ns > 0.0 && (victim->leave_ns > 0.0) == !victim->clean && victim->age <= 0.0);
  ++*(int *)context;
  return -(double)victim->bytes;
}

static void four_policies(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *h[4];
  int asked = 0;
  open_four(m, h);
  EXPECT_INT(order_of(m, h), 4231); /* the largest cost least a byte */
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_lru, NULL));
  EXPECT_INT(order_of(m, h), 4321);
  use_at(h[3], 11);
  EXPECT_INT(order_of(m, h), 3214);
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_clean_first, NULL));
  EXPECT_INT(order_of(m, h), 3214); /* all are clean */
  write_to(h[1]);
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_clean_first, NULL)); /* looks again at everybody */
  EXPECT_INT(order_of(m, h), 3142);
  EXPECT_OK(mgd_order_set_policy(m, largest_first, &asked));
  EXPECT_INT(asked, 0); /* nobody has to leave yet */
  EXPECT_INT(order_of(m, h), 4231);
  EXPECT_INT(asked, 4);
  EXPECT_INT(order_of(m, h), 4231);
  EXPECT_INT(asked, 8); /* once for each that had come home */
  EXPECT_OK(mgd_order_set_policy(m, NULL, NULL));
  EXPECT_INT(order_of(m, h), 4231);
  for (int i = 0; i < 4; i++) {
    close_handle(m, h[i]);
  }
  mgd_machine_destroy(m);
}

/* What a policy sees of the cost is what the links say. */
static void what_policies_are_told(void) {
  const struct mgd_victim dirty = {.stamp = 3, .bytes = 4, .age = 10.0, .leave_ns = 6.0, .return_ns = 2.0};
  struct mgd_victim clean = dirty, empty = {.age = 1.0, .leave_ns = 5.0};
  clean.clean = true;
  EXPECT(mgd_policy_lru(NULL, &dirty) == 3.0);
  EXPECT(mgd_policy_clean_first(NULL, &clean) == 3.0);
  EXPECT(mgd_policy_clean_first(NULL, &dirty) > 1e15);
  EXPECT(mgd_policy_greedy_dual(NULL, &dirty) == 12.0);
  EXPECT(mgd_policy_greedy_dual(NULL, &empty) == 6.0);
}

/* A guest takes no room that was promised to somebody else. */
static void promises_are_kept(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 40, 1), *other = open_handle(m, 1, 60, 0);
  const int64_t room[MGD_MAX_DEVICES] = {0, 0, 100};
  struct mgd_ticket ticket;
  struct plan p;
  EXPECT_OK(mgd_admit_request(m, 2, 50, 0.0, 0, 0, &ticket));
  EXPECT_OK(plan_eviction(m, 1, 100, room, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 60, other);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, 2, 40, h);
  carry_out(m, &p);
  EXPECT_OK(mgd_admit_release(m, &ticket));
  close_handle(m, h);
  close_handle(m, other);
  mgd_machine_destroy(m);
}

/* What stays while others leave ages: who comes later is worth more by what left. */
static void age_grows_with_those_that_left(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *old = open_handle(m, 1, 1000, 1), *large = open_handle(m, 1, 2000, 2);
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT(p.actions[0].handle == large);
  carry_out(m, &p);
  struct mgd_handle *late = open_handle(m, 1, 1010, 3); /* costs less a byte than the old one */
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT(p.actions[0].handle == old);
  carry_out(m, &p);
  close_handle(m, old);
  close_handle(m, large);
  close_handle(m, late);
  mgd_machine_destroy(m);
}

/* The latency of a copy makes small storages dearer by the byte. Where that is next to nothing, age decides. */
static void a_price_that_is_hardly_less_does_not_count(void) {
  const int64_t bytes[2] = {149, 151}; /* 10 ns are more than a 16th of 10 + 149, not of 10 + 151 */
  for (int i = 0; i < 2; i++) {
    struct mgd_machine *m = new_machine(1, 10000);
    EXPECT_OK(mgd_link_set(m, 1, MGD_HOST, (struct mgd_link){10, 1.0}));
    EXPECT_OK(mgd_link_set(m, MGD_HOST, 1, (struct mgd_link){10, 1.0}));
    struct mgd_handle *old = open_handle(m, 1, bytes[i], 1), *large = open_handle(m, 1, 400, 2);
    struct plan p;
    EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
    EXPECT(p.actions[0].handle == (i == 0 ? large : old));
    carry_out(m, &p);
    close_handle(m, old);
    close_handle(m, large);
    mgd_machine_destroy(m);
  }
}

/* An operator is told that the bytes are home before it writes them: what came back counts as written when it is. */
static void who_is_written_after_the_return_is_dirty(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *written = open_with_spare(m, 1, 1000), *read = open_with_spare(m, 1, 1000);
  struct plan p;
  mgd_handle_write(written);
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(p.n, 1);
  EXPECT(p.actions[0].handle == read); /* it leaves for nothing */
  EXPECT_INT(p.actions[0].kind, MGD_DO_DROP);
  carry_out(m, &p);
  close_handle(m, written);
  close_handle(m, read);
  mgd_machine_destroy(m);
}

static double no_number(void *context, const struct mgd_victim *victim) {
  (void)context;
  return victim->bytes % 2 ? (double)NAN : 1.0;
}

static void keys_that_are_no_numbers(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *h[20];
  EXPECT_OK(mgd_order_set_policy(m, no_number, NULL));
  for (int i = 0; i < 20; i++) {
    h[i] = open_handle(m, 1, 1 + i, (uint64_t)(i * 7 % 20));
  }
  struct plan p;
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  carry_out(m, &p);
  for (int i = 0; i < 20; i++) {
    close_handle(m, h[i * 13 % 20]);
  }
  mgd_machine_destroy(m);
}

/* ---- keys that are out of date */

static struct mgd_handle *restless;

static double used_while_looked_at(void *context, const struct mgd_victim *victim) {
  ++*(int *)context;
  if (restless) {
    restless->stamp++;
  }
  return (double)victim->stamp;
}

static void who_was_used_meanwhile_stays(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_handle *a = open_handle(m, 1, 1, 1), *b = open_handle(m, 1, 2, 2), *c = open_handle(m, 1, 4, 3);
  int asked = 0;
  struct plan p;
  use_at(a, 10);
  use_at(c, 9);
  EXPECT_OK(plan_eviction(m, 1, 3, NULL, &p));
  EXPECT_INT(p.n, 2);
  EXPECT_ACTION(p.actions[0], MGD_DO_SPILL, 1, MGD_HOST, 2, b);
  EXPECT_ACTION(p.actions[1], MGD_DO_SPILL, 1, MGD_HOST, 4, c);
  carry_out(m, &p);
  restore(m, b);
  restore(m, c);
  EXPECT_OK(mgd_order_set_policy(m, used_while_looked_at, &asked));
  restless = a;
  a->stamp++;
  asked = 0;
  EXPECT_OK(plan_eviction(m, 1, 100, NULL, &p)); /* somebody goes on using one of them: it comes to an end all the same */
  EXPECT(asked > 0 && asked < 20);
  EXPECT_INT(p.n, 3);
  restless = NULL;
  carry_out(m, &p);
  close_handle(m, a);
  close_handle(m, b);
  close_handle(m, c);
  mgd_machine_destroy(m);
}

/* Among many storages each is looked at once, and again when it was used: an eviction costs what came and what leaves, not what is there. */
static void an_eviction_looks_at_few(void) {
  struct mgd_machine *m = new_machine(1, 100);
  struct mgd_handle *h[1000];
  int asked = 0;
  struct plan p;
  EXPECT_OK(mgd_order_set_policy(m, used_while_looked_at, &asked));
  for (int i = 0; i < 1000; i++) {
    h[i] = open_handle(m, 1, 1, (uint64_t)i);
  }
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_INT(asked, 1000);
  EXPECT(p.actions[0].handle == h[0]);
  carry_out(m, &p);
  use_at(h[1], 2000);
  EXPECT(i_use(h[2], 2));
  asked = 0;
  EXPECT_OK(plan_eviction(m, 1, 10, NULL, &p));
  EXPECT_INT(p.n, 10);
  EXPECT(p.actions[0].handle == h[3] && p.actions[9].handle == h[12]);
  EXPECT_INT(asked, 1); /* one that was used; one that is in use waits for the next who asks */
  carry_out(m, &p);
  put_back(h[2], 1);
  for (int i = 0; i < 1000; i++) {
    close_handle(m, h[i]);
  }
  mgd_machine_destroy(m);
}

/* ---- by chance */

static void requests_that_cannot_be(void) {
  struct mgd_machine *m = new_directory(1);
  struct plan p = {.n = PLAN};
  uint64_t seed = 1;
  EXPECT_CODE(mgd_evict_begin(m, 1, -1, NULL, 0, p.actions, &p.n), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_begin(m, MGD_HOST, 1, NULL, 0, p.actions, &p.n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_evict_begin(m, 2, 1, NULL, 0, p.actions, &p.n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_evict_random(m, 2, 1, &seed, p.actions, &p.n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_evict_random(m, 1, 0, &seed, p.actions, &p.n), MGD_E_INVALID);
  EXPECT_INT(p.n, PLAN);
  p.n = 1;
  EXPECT_CODE(mgd_evict_begin(m, 1, 1, NULL, 0, p.actions, &p.n), MGD_E_INVALID);
  EXPECT_CODE(mgd_evict_random(m, 1, 1, &seed, p.actions, &p.n), MGD_E_INVALID);
  EXPECT_INT(p.n, 1);
  EXPECT_INT(seed, 1);
  mgd_machine_destroy(m);
}

static void open_forty(struct mgd_machine *m, struct mgd_handle *h[40]) {
  for (int i = 0; i < 40; i++) {
    h[i] = open_handle(m, 1, 8, (uint64_t)i);
  }
  EXPECT_OK(mgd_handle_pin(m, h[0], MGD_PIN_ASKED, true));
  EXPECT(i_use(h[1], 1));
}

static void close_forty(struct mgd_machine *m, struct mgd_handle *h[40]) {
  put_back(h[1], 1);
  for (int i = 0; i < 40; i++) {
    close_handle(m, h[i]);
  }
  mgd_machine_destroy(m);
}

static void the_same_chance_chooses_the_same(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h[40];
  uint64_t seed = 7, again = 7;
  struct plan p = {.n = PLAN}, same = {.n = PLAN};
  open_forty(m, h);
  EXPECT_OK(mgd_evict_random(m, 1, 4, &seed, p.actions, &p.n));
  EXPECT(p.n > 3 && p.n < 20 && seed != again);
  carry_out(m, &p);
  for (size_t i = 0; i < p.n; i++) {
    EXPECT(p.actions[i].to == MGD_HOST && p.actions[i].handle != h[0] && p.actions[i].handle != h[1]);
    restore(m, p.actions[i].handle);
  }
  EXPECT_OK(mgd_evict_random(m, 1, 4, &again, same.actions, &same.n));
  EXPECT_INT(same.n, p.n);
  EXPECT(again == seed);
  for (size_t i = 0; i < p.n; i++) {
    EXPECT(same.actions[i].handle == p.actions[i].handle);
    EXPECT_INT(same.actions[i].kind, MGD_DO_DROP);
  }
  carry_out(m, &same);
  close_forty(m, h);
}

static void odds_of_one_choose_all_that_fit(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h[40];
  uint64_t seed = 7;
  struct plan few = {.n = 5}, rest = {.n = PLAN}, none = {.n = PLAN};
  open_forty(m, h);
  EXPECT_OK(mgd_evict_random(m, 1, 1, &seed, few.actions, &few.n));
  EXPECT_INT(few.n, 4); /* one place is kept for a spare that may have to go */
  carry_out(m, &few);
  EXPECT_OK(mgd_evict_random(m, 1, 1, &seed, rest.actions, &rest.n));
  EXPECT_INT(rest.n, 34); /* not the pinned one, nor the one in use */
  carry_out(m, &rest);
  EXPECT_CODE(mgd_evict_random(m, 1, 1, &seed, none.actions, &none.n), MGD_E_ABSENT);
  EXPECT_INT(none.n, 0);
  close_forty(m, h);
}

int main(void) {
  four_policies();
  what_policies_are_told();
  promises_are_kept();
  age_grows_with_those_that_left();
  a_price_that_is_hardly_less_does_not_count();
  who_is_written_after_the_return_is_dirty();
  keys_that_are_no_numbers();
  who_was_used_meanwhile_stays();
  an_eviction_looks_at_few();
  requests_that_cannot_be();
  the_same_chance_chooses_the_same();
  odds_of_one_choose_all_that_fit();
  return 0;
}
