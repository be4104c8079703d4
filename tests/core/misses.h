/* misses.h: how often a storage is not there when it is used, by who leaves for it:
 * a sequence of uses that repeats, on a device that holds some of the storages.
 * The core is asked as by an executor; `furthest` is an independent count of the least
 * that there can be for equal sizes (Belady 1966). */
#ifndef MISSES_H
#define MISSES_H

#include "handles.h"

struct sequence {
  int storages, uses, repeats, fit;
  int *of, *next_same; /* of[i]: the storage of use i; the next use of the same storage, in the endless repetition, from i on */
};

static inline struct sequence new_sequence(int storages, int uses, int repeats, uint64_t seed) {
  struct sequence q = {.storages = storages, .uses = uses, .repeats = repeats};
  q.of = calloc((size_t)uses, sizeof *q.of);
  q.next_same = calloc((size_t)uses, sizeof *q.next_same);
  int *last = calloc((size_t)storages, sizeof *last);
  EXPECT(q.of && q.next_same && last);
  for (int i = 0; i < uses; i++) {
    q.of[i] = (int)pick(&seed, storages);
  }
  for (int i = 2 * uses - 1; i >= 0; i--) {
    int s = q.of[i % uses];
    q.next_same[i % uses] = last[s] ? last[s] - i : 2 * uses;
    last[s] = i;
  }
  free(last);
  return q;
}

static inline void free_sequence(struct sequence *q) {
  free(q->of);
  free(q->next_same);
}

/* Misses a repetition, after the first. */
static inline double furthest(const struct sequence *q) {
  int64_t *next = calloc((size_t)q->storages, sizeof *next), misses = 0; /* 0: not there */
  int there = 0;
  EXPECT(next);
  for (int64_t t = 0; t < (int64_t)q->uses * q->repeats; t++) {
    int s = q->of[t % q->uses], victim = -1;
    misses += !next[s] && t >= q->uses;
    for (int i = 0; !next[s] && there == q->fit && i < q->storages; i++) {
      victim = next[i] && (victim < 0 || next[i] > next[victim]) ? i : victim;
    }
    there += !next[s] && victim < 0;
    next[victim < 0 ? s : victim] = 0;
    next[s] = t + q->next_same[t % q->uses];
  }
  free(next);
  return (double)misses / (q->repeats - 1);
}

struct seen {
  struct mgd_handle h;
  int64_t next;
};

static inline double by_foresight(void *unused, const struct mgd_victim *victim) {
  (void)unused;
  return -(double)((const struct seen *)(const void *)victim->handle)->next;
}

/* A storage that is pinned leaves the order of victims, and has a new key when it comes back. */
static inline void ask_again(struct mgd_machine *m, struct mgd_handle *h) {
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, true));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_ASKED, false));
}

static inline void make_way(struct mgd_machine *m) {
  struct plan p = {.n = 2};
  EXPECT_OK(mgd_evict_begin(m, 1, 1, NULL, 0, p.actions, &p.n));
  carry_out(m, &p);
}

/* The same with the core's order; `rekeys`: the policy is asked again for each key that changed. */
static inline double core_misses(const struct sequence *q, mgd_victim_fn policy, bool rekeys) {
  struct mgd_machine *m = new_machine(1, 100);
  struct seen *s = calloc((size_t)q->storages, sizeof *s);
  int64_t misses = 0, there = 0;
  EXPECT(s);
  EXPECT_OK(mgd_order_set_policy(m, policy, NULL));
  for (int64_t t = 0; t < (int64_t)q->uses * q->repeats; t++) {
    struct seen *now = &s[q->of[t % q->uses]];
    bool is_new = now->next == 0;
    if (is_new || !is_home(&now->h)) {
      misses += t >= q->uses;
      if (there == q->fit) {
        make_way(m);
      }
      there += there < q->fit;
    }
    now->next = t + q->next_same[t % q->uses];
    if (is_new) {
      EXPECT_OK(mgd_handle_open(m, &now->h, 1, 8));
    } else if (!is_home(&now->h)) {
      restore(m, &now->h);
    }
    EXPECT(i_use(&now->h, (uint64_t)t + 1));
    EXPECT(!mgd_handle_unuse(&now->h, me, 1));
    if (rekeys) { ask_again(m, &now->h); }
  }
  for (int i = 0; i < q->storages; i++) {
    bool moving;
    void *memory = NULL;
    if (s[i].next) {
      EXPECT_OK(mgd_handle_close(m, &s[i].h, &moving, &memory));
    }
    free(memory);
  }
  mgd_machine_destroy(m);
  free(s);
  return (double)misses / (q->repeats - 1);
}

#endif
