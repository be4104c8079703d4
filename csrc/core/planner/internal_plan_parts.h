/* internal_plan_parts.h: what the planner is built with and what knows nothing of plans: a heap, a sort, a tree over
 * ranges. For plan*.c and nobody else.
 */
#ifndef MGD_INTERNAL_PLAN_PARTS_H
#define MGD_INTERNAL_PLAN_PARTS_H

#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* ---- plan_heap.c: items 0 .. n - 1 by key, the least first */
/* Invariants: item[place[i]] is i for the `count` items that are there, place is -1 for others; no key of an item is
 * less than that of the one at (place - 1) / 2. */
struct mgd_plan_heap {
  int32_t count;
  int32_t *item, *place;
  int64_t *key;
};
int mgd_plan_heap_make(struct mgd_alloc *a, int32_t n, struct mgd_plan_heap *h);
void mgd_plan_heap_free(struct mgd_plan_heap *h);
void mgd_plan_heap_clear(struct mgd_plan_heap *h);
void mgd_plan_heap_put(struct mgd_plan_heap *h, int32_t item, int64_t key); /* new, or with another key */
void mgd_plan_heap_remove(struct mgd_plan_heap *h, int32_t item);           /* where it is there */
int32_t mgd_plan_heap_pop(struct mgd_plan_heap *h);                         /* of one that is not empty */

struct mgd_plan_entry {
  int64_t key;
  int32_t value;
};
void mgd_plan_heap_sort(struct mgd_plan_entry *entry, int32_t n); /* by key, equals by value */

/* ---- plan_profile.c: bytes in use at each operator */
/* A tree over the operators, two nodes below each. Invariant: most[i] is the most at the operators below node i, with
 * all that was added to i and below, but not above; what is beyond the operators is INT64_MIN / 2. */
struct mgd_plan_profile {
  int32_t operators, leaves;
  int64_t *most, *added;
};
int mgd_plan_profile_make(struct mgd_alloc *a, int32_t operators, struct mgd_plan_profile *p);
void mgd_plan_profile_free(struct mgd_plan_profile *p);
void mgd_plan_profile_set(struct mgd_plan_profile *p, const int64_t *bytes);
/* For operators from .. to - 1, where 0 <= from and to <= from + operators. */
void mgd_plan_profile_add(struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t bytes);
int64_t mgd_plan_profile_most(const struct mgd_plan_profile *p, int32_t from, int32_t to); /* of none: INT64_MIN */
/* The last of them with more than `limit`; from - 1 where there is none. */
int32_t mgd_plan_profile_last_above(const struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t limit);

#endif
