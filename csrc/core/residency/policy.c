/* policy.c: how much it is worth to keep a storage where it is: one pure function for each policy.
 *
 * A policy maps the known facts of one storage to a number; the storage with the smallest number leaves first. It has
 * no state and does not see the machine. order.c keeps the order, evict.c decides whether a storage may leave.
 */
#include "core/testing.h"

double mgd_policy_lru(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp;
}

#if MANAGED_TEST_HOOKS
double mgd_policy_clean_first(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp + (victim->clean ? 0.0 : 0x1p52); /* more than there are ticks */
}
#endif

double mgd_policy_greedy_dual(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  double bytes = victim->bytes > 0 ? (double)victim->bytes : 1.0;
  /* For another size the division gives the same price with other last bits; rounding to float removes them. */
  const float price = (float)((victim->leave_ns + victim->return_ns) / bytes);
  return victim->age + (double)price;
}
