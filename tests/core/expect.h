/* expect.h: what every test of the core needs: expectations that say where
 * they failed, random numbers that repeat, and small machines.
 *
 * A failed expectation prints the line and ends the program with status 1: what
 * follows a wrong state proves nothing.
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock/clock_testing.h"
#include "core/internal_machine.h"
#include "core/testing.h"

#define MIB ((int64_t)1 << 20)

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#define EXPECT_INT(actual, expected) expect_int(__FILE__, __LINE__, #actual, (int64_t)(actual), (int64_t)(expected))
#define EXPECT_TEXT(actual, expected) expect_text(__FILE__, __LINE__, #actual, actual, expected)
/* Codes are compared by name, which is what a reader wants to see. */
#define EXPECT_CODE(call, code) expect_text(__FILE__, __LINE__, #call, mgd_text_error_name(call), mgd_text_error_name(code))
#define EXPECT_OK(call) EXPECT_CODE(call, MGD_OK)

static inline void expect_int(const char *file, int line, const char *what, int64_t actual, int64_t expected) {
  if (actual != expected) {
    fprintf(stderr, "%s:%d: %s is %" PRId64 ", expected %" PRId64 "\n", file, line, what, actual, expected);
    exit(1);
  }
}

static inline void expect_text(const char *file, int line, const char *what, const char *actual, const char *expected) {
  if (strcmp(actual, expected) != 0) {
    fprintf(stderr, "%s:%d: %s is %s, expected %s\n", file, line, what, actual, expected);
    exit(1);
  }
}

/* Runs the tests of a program with its seed, which is the first argument, and prints the seed. */
static inline int run_all(const char *file, int argc, char **argv, void (*const *tests)(uint64_t), size_t n) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("%s: seed %" PRIu64 "\n", file, seed);
  (void)fflush(stdout);
  for (size_t i = 0; i < n; i++) { tests[i](seed); }
  return 0;
}
#define RUN_ALL(tests) run_all(__FILE__, argc, argv, tests, sizeof tests / sizeof *tests)

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014): one word of state. */
static inline uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* A number from 0 to below `limit`. */
static inline int64_t pick(uint64_t *state, int64_t limit) { return (int64_t)(next_random(state) % (uint64_t)limit); }

/* The thread that most tests run in, as the core knows it. */
static struct mgd_user *me;

static inline bool i_use(struct mgd_handle *h, uint64_t tick) { return mgd_handle_use(h, me, tick); }

/* A machine with accelerators "sim:0", ... of the given capacity each. */
static inline struct mgd_machine *new_machine(int accelerators, int64_t capacity) {
  struct mgd_machine *m = NULL;
  EXPECT_OK(mgd_machine_create(NULL, &m));
  EXPECT_OK(mgd_user_join(m, &me));
  for (int i = 0; i < accelerators; i++) {
    char name[32];
    int id = -1;
    (void)snprintf(name, sizeof name, "sim:%d", i);
    EXPECT_OK(mgd_device_add(m, name, capacity, &id));
    EXPECT_INT(id, i + 1);
  }
  return m;
}

static inline struct mgd_usage usage_of(struct mgd_machine *m, int device) {
  struct mgd_usage u;
  EXPECT_OK(mgd_ledger_usage(m, device, &u));
  return u;
}

/* Changes the bytes that a driver reports of an owner, MANAGED or FOREIGN. */
static inline void add_bytes(struct mgd_machine *m, int device, enum mgd_owner owner, int64_t bytes) {
  struct mgd_usage u = usage_of(m, device);
  u.by_owner[owner] += bytes;
  EXPECT_OK(mgd_ledger_observe(m, device, u.by_owner[MGD_MANAGED] + u.by_owner[MGD_REPLICA], u.by_owner[MGD_FOREIGN]));
}

static inline int64_t reserved_of(struct mgd_machine *m, int device) { return usage_of(m, device).by_owner[MGD_RESERVED]; }

/* No device has storages or guests, and no storage is under way. */
static inline bool is_empty(const struct mgd_machine *m) {
  bool empty = !m->orphans.oldest;
  for (int id = 0; id < m->count; id++) {
    empty = empty && !m->devices[id].storages.first && !m->devices[id].storages.guests.oldest;
  }
  return empty;
}

static inline struct mgd_totals totals_of(struct mgd_machine *m) {
  struct mgd_totals totals;
  EXPECT_OK(mgd_trace_totals(m, false, &totals));
  return totals;
}

static inline void expect_total(const char *file, int line, struct mgd_total actual, struct mgd_total expected) {
  expect_int(file, line, "count", (int64_t)actual.count, (int64_t)expected.count);
  expect_int(file, line, "bytes", actual.bytes, expected.bytes);
  expect_int(file, line, "ns", actual.ns, expected.ns);
}
#define EXPECT_TOTAL(actual, count, bytes, ns) expect_total(__FILE__, __LINE__, actual, (struct mgd_total){(uint64_t)(count), bytes, ns})

#endif
