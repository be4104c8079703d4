/* What the planner is built with, against the slow way: the heap, the sort, and the tree over the operators.
 *
 * Usage: test_plan_parts [seed] [steps]
 */
#include "core/planner/internal_plan_parts.h"
#include "expect.h"

#define MOST 40

static struct mgd_alloc healthy(void) {
  struct mgd_alloc a;
  mgd_alloc_init(&a, 0);
  return a;
}

/* ---- the tree */

struct slow {
  int32_t operators, from, to;
  int64_t bytes[MOST];
};

static void expect_same_answers(const struct mgd_plan_profile *p, const struct slow *s, int64_t limit) {
  int64_t most = INT64_MIN;
  int32_t last = s->from - 1;
  for (int32_t i = s->from; i < s->to; i++) {
    const int64_t here = s->bytes[i % s->operators];
    most = here > most ? here : most;
    last = here > limit ? i : last;
  }
  EXPECT_INT(mgd_plan_profile_most(p, s->from, s->to), most);
  EXPECT_INT(mgd_plan_profile_last_above(p, s->from, s->to, limit), last);
}

static void the_tree_says_what_the_array_says(uint64_t *random) {
  struct mgd_alloc a = healthy();
  struct mgd_plan_profile p;
  struct slow s = {.operators = 1 + (int32_t)pick(random, MOST)};
  for (int32_t o = 0; o < s.operators; o++) {
    s.bytes[o] = pick(random, 100);
  }
  EXPECT_OK(mgd_plan_profile_make(&a, s.operators, &p));
  mgd_plan_profile_set(&p, s.bytes);
  for (int i = 0; i < 50; i++) {
    const int64_t more = pick(random, 100) - 50;
    s.from = (int32_t)pick(random, 2 * s.operators);
    s.to = s.from - 2 + (int32_t)pick(random, s.operators + 3);
    mgd_plan_profile_add(&p, s.from, s.to, more);
    for (int32_t o = s.from; o < s.to; o++) {
      s.bytes[o % s.operators] += more;
    }
    s.from = (int32_t)pick(random, 2 * s.operators);
    s.to = s.from + (int32_t)pick(random, s.operators + 1);
    expect_same_answers(&p, &s, pick(random, 200) - 50);
  }
  mgd_plan_profile_free(&p);
}

/* ---- the heap */

static void the_heap_pops_the_least(uint64_t *random) {
  struct mgd_alloc a = healthy();
  struct mgd_plan_heap h;
  int64_t key[MOST];
  bool is_there[MOST] = {false};
  EXPECT_OK(mgd_plan_heap_make(&a, MOST, &h));
  for (int i = 0; i < 200; i++) {
    const int32_t item = (int32_t)pick(random, MOST);
    if (pick(random, 3) > 0) {
      key[item] = pick(random, 30) - 15;
      mgd_plan_heap_put(&h, item, key[item]);
      is_there[item] = true;
    } else if (pick(random, 2) || h.count == 0) {
      mgd_plan_heap_remove(&h, item);
      is_there[item] = false;
    } else {
      const int32_t top = mgd_plan_heap_pop(&h);
      for (int32_t j = 0; j < MOST; j++) {
        EXPECT(!is_there[j] || key[top] <= key[j]);
      }
      EXPECT(is_there[top]);
      is_there[top] = false;
    }
    int32_t count = 0;
    for (int32_t j = 0; j < MOST; j++) {
      count += is_there[j];
      EXPECT_INT(h.place[j] >= 0, is_there[j]);
    }
    EXPECT_INT(h.count, count);
  }
  mgd_plan_heap_clear(&h);
  EXPECT_INT(h.count, 0);
  for (int32_t j = 0; j < MOST; j++) {
    EXPECT_INT(h.place[j], -1);
  }
  mgd_plan_heap_free(&h);
}

static void the_sort_sorts(uint64_t *random) {
  struct mgd_plan_entry entry[MOST];
  const int32_t n = (int32_t)pick(random, MOST + 1);
  int32_t sum = 0;
  for (int32_t i = 0; i < n; i++) {
    entry[i] = (struct mgd_plan_entry){pick(random, 10), i};
    sum += i;
  }
  mgd_plan_heap_sort(entry, n);
  for (int32_t i = 0; i < n; i++) {
    sum -= entry[i].value;
    EXPECT(i == 0 || entry[i - 1].key < entry[i].key ||
           (entry[i - 1].key == entry[i].key && entry[i - 1].value < entry[i].value));
  }
  EXPECT_INT(sum, 0);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const long steps = argc > 2 ? strtol(argv[2], NULL, 10) : 1000000;
  uint64_t random = seed;
  for (long i = 0; i < steps / 1000; i++) {
    the_tree_says_what_the_array_says(&random);
    the_heap_pops_the_least(&random);
    the_sort_sorts(&random);
  }
  printf("test_plan_parts: seed %" PRIu64 ", %ld rounds\n", seed, steps / 1000);
  return 0;
}
