/* policy.c: what it is worth to keep a storage where it is: one pure function for each policy.
 *
 * A policy turns what is known of one storage into a number: who has the smallest leaves
 * first. It keeps nothing, asks nobody, and knows no machine; who leaves when is
 * order.c's, and whether they may is evict.c's.
 */
#include "core/core.h"

double mgd_policy_lru(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp;
}

double mgd_policy_clean_first(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return (double)victim->stamp + (victim->clean ? 0.0 : 0x1p52); /* more than there are ticks */
}

double mgd_policy_greedy_dual(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  double bytes = victim->bytes > 0 ? (double)victim->bytes : 1.0;
  /* The division leaves the same price with other last bits for another size. A float has no place for them. */
  const float price = (float)((victim->leave_ns + victim->return_ns) / bytes);
  return victim->age + (double)price;
}
