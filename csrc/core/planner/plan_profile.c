/* plan_profile.c: how many bytes are in use at each operator of a step: add to a range, the most of a range.
 *
 * A segment tree for the planner; it does not depend on plans. Every call but make and set takes O(log operators).
 */
#include "core/planner/internal_plan.h"

#define NOWHERE (INT64_MIN / 2) /* the value beyond the operators: it stays below all of them whatever is added */

int mgd_plan_profile_make(struct mgd_alloc *a, int32_t operators, struct mgd_plan_profile *p) {
  p->operators = operators;
  p->leaves = 1;
  while (p->leaves < operators) {
    p->leaves *= 2;
  }
  p->most = mgd_alloc_new(a, 2 * (size_t)p->leaves, sizeof *p->most);
  p->added = mgd_alloc_new(a, 2 * (size_t)p->leaves, sizeof *p->added);
  return p->most && p->added ? MGD_OK : MGD_E_NOMEM;
}

void mgd_plan_profile_free(struct mgd_plan_profile *p) {
  mgd_alloc_free(p->most);
  mgd_alloc_free(p->added);
}

void mgd_plan_profile_set(struct mgd_plan_profile *p, const int64_t *bytes) {
  for (int32_t i = 0; i < p->leaves; i++) {
    p->most[p->leaves + i] = i < p->operators ? bytes[i] : NOWHERE;
    p->added[p->leaves + i] = 0;
  }
  for (int32_t i = p->leaves - 1; i > 0; i--) {
    p->most[i] = mgd_max(p->most[2 * i], p->most[2 * i + 1]);
    p->added[i] = 0;
  }
}

/* A node and the operators from .. to - 1 below it. */
struct node {
  int32_t number, from, to;
};

static struct node left_of(struct node v) { return (struct node){2 * v.number, v.from, v.from + (v.to - v.from) / 2}; }
static struct node right_of(struct node v) {
  return (struct node){2 * v.number + 1, v.from + (v.to - v.from) / 2, v.to};
}
static bool is_outside(struct node v, int32_t from, int32_t to) { return v.to <= from || to <= v.from; }
static bool is_inside(struct node v, int32_t from, int32_t to) { return from <= v.from && v.to <= to; }

static void add_below(struct mgd_plan_profile *p, struct node v, int32_t from, int32_t to, int64_t bytes) {
  if (is_outside(v, from, to)) {
    return;
  }
  if (is_inside(v, from, to)) {
    p->most[v.number] += bytes;
    p->added[v.number] += bytes;
    return;
  }
  add_below(p, left_of(v), from, to, bytes);
  add_below(p, right_of(v), from, to, bytes);
  p->most[v.number] = mgd_max(p->most[2 * v.number], p->most[2 * v.number + 1]) + p->added[v.number];
}

static int64_t most_below(const struct mgd_plan_profile *p, struct node v, int32_t from, int32_t to) {
  if (is_outside(v, from, to)) {
    return INT64_MIN;
  }
  if (is_inside(v, from, to)) {
    return p->most[v.number];
  }
  const int64_t most = mgd_max(most_below(p, left_of(v), from, to), most_below(p, right_of(v), from, to));
  return most == INT64_MIN ? most : most + p->added[v.number];
}

/* Returns the last operator of the range with more than `limit`, or -1. It enters a node that is inside the range only
 * if there is one in it, so it takes O(log operators). */
static int32_t last_below(const struct mgd_plan_profile *p, struct node v, int32_t from, int32_t to, int64_t limit) {
  if (is_outside(v, from, to) || p->most[v.number] <= limit) {
    return -1;
  }
  if (v.to - v.from == 1) {
    return v.from;
  }
  const int64_t rest = limit - p->added[v.number];
  const int32_t found = last_below(p, right_of(v), from, to, rest);
  return found >= 0 ? found : last_below(p, left_of(v), from, to, rest);
}

static struct node top_of(const struct mgd_plan_profile *p) { return (struct node){1, 0, p->leaves}; }

/* A range over the end of the step, as two ranges: from .. before - 1, and 0 .. behind - 1. */
struct ranges {
  int32_t from, before, behind;
};

static struct ranges split_range(const struct mgd_plan_profile *p, int32_t from, int32_t to) {
  const int32_t start = from % p->operators, end = start + (to - from);
  return (struct ranges){start, end < p->operators ? end : p->operators, end - p->operators};
}

void mgd_plan_profile_add(struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t bytes) {
  const struct ranges r = split_range(p, from, to);
  add_below(p, top_of(p), r.from, r.before, bytes);
  add_below(p, top_of(p), 0, r.behind, bytes);
}

int64_t mgd_plan_profile_most(const struct mgd_plan_profile *p, int32_t from, int32_t to) {
  const struct ranges r = split_range(p, from, to);
  return mgd_max(most_below(p, top_of(p), r.from, r.before), most_below(p, top_of(p), 0, r.behind));
}

int32_t mgd_plan_profile_last_above(const struct mgd_plan_profile *p, int32_t from, int32_t to, int64_t limit) {
  const struct ranges r = split_range(p, from, to);
  int32_t found = last_below(p, top_of(p), 0, r.behind, limit);
  if (found >= 0) {
    return found + p->operators - r.from + from;
  }
  found = last_below(p, top_of(p), r.from, r.before, limit);
  return found >= 0 ? found - r.from + from : from - 1;
}
