/* internal_plan_parts.h: the planner's tools that know nothing of plans: a heap, a sort, a tree over ranges.
 *
 * Private to plan*.c.
 */
#ifndef MGD_INTERNAL_PLAN_PARTS_H
#define MGD_INTERNAL_PLAN_PARTS_H

#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* ---- plan_heap.c: items 0 .. n - 1 by key, the least first */
/* Invariants: item[place[i]] is i for the `count` items in the heap, place is -1 for all other items; no item's key is
 * less than that of the item at (place - 1) / 2. */
struct mgd_plan_heap {
  int32_t count;
  int32_t *item, *place;
  int64_t *key;
};
int mgd_plan_heap_make(struct mgd_alloc *a, int32_t n, struct mgd_plan_heap *h);
void mgd_plan_heap_free(struct mgd_plan_heap *h);
void mgd_plan_heap_clear(struct mgd_plan_heap *h);
void mgd_plan_heap_put(struct mgd_plan_heap *h, int32_t item, int64_t key); /* adds it, or changes its key */
void mgd_plan_heap_remove(struct mgd_plan_heap *h, int32_t item);           /* if it is there */
int32_t mgd_plan_heap_pop(struct mgd_plan_heap *h);                         /* must not be empty */

struct mgd_plan_entry {
  int64_t key;
  int32_t value;
};
void mgd_plan_heap_sort(struct mgd_plan_entry *entry, int32_t n); /* by key, then by value */

/* ---- plan_profile.c: bytes in use at each operator */
/* A binary tree over the operators. Invariant: most[i] is the maximum over the operators below node i, including all
 * that was added to i and below, but not above; leaves beyond the operators are about INT64_MIN / 2. */
struct mgd_plan_profile {
  int32_t operators, leaves;
  int64_t *most, *added;
};
int mgd_plan_profile_make(struct mgd_alloc *a, int32_t operators, struct mgd_plan_profile *p);
void mgd_plan_profile_free(struct mgd_plan_profile *p);
void mgd_plan_profile_set(struct mgd_plan_profile *p, const int64_t *bytes);
/* Adds to operators from .. to - 1, counted on over the end of the step: 0 <= from and to <= from + operators. */
void mgd_plan_profile_add(struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t bytes);
int64_t mgd_plan_profile_most(const struct mgd_plan_profile *p, int32_t from, int32_t to); /* INT64_MIN: none */
/* Returns the last of them with more than `limit`, or from - 1. */
int32_t mgd_plan_profile_last_above(const struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t limit);

#endif
