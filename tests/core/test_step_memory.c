/* Steps without memory: what cannot be logged or learned is left out, and all goes on.
 *
 * Usage: test_step_memory [seed]
 */
#include "trainer.h"

static struct device d;

static struct mgd_step *step(void) { return d.m->devices[1].step; }
static struct mgd_step_log *logged(void) { return &step()->log; }

static void fail_next(int more) { d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + more; }

/* The log of the first operator takes four allocations. */
static void without_memory_an_operator_is_not_logged(uint64_t seed) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  fail_next(1);
  EXPECT_CODE(mgd_step_begin(d.m, 1), MGD_E_NOMEM);
  EXPECT(!step() && !state(&d).logs && !mgd_step_logs(d.m, 1));
  for (int fail = 1; fail <= 5; fail++) {
    EXPECT_OK(mgd_step_begin(d.m, 1));
    fail_next(fail);
    EXPECT(!issue(&d, "one", &d.weights[0], 1));
    EXPECT_INT(state(&d).logged, fail > 4);
    EXPECT_INT(d.weights[0]->h.seen, fail > 4 ? 0 : -1);
    EXPECT(!issue(&d, "other", &d.weights[1], 1));
    EXPECT_INT(state(&d).logged, 1 + (fail > 4));
    EXPECT_OK(mgd_step_learn(d.m, false));
    EXPECT_OK(mgd_step_learn(d.m, true));
  }
  give_up(&d);
}

/* A result that is not logged counts as one from before the log when it is used. */
static void without_memory_a_result_is_not_logged(uint64_t seed) {
  enum { MANY = 2000 };
  static struct storage *many[MANY];
  int n = 0;
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  EXPECT_OK(mgd_step_begin(d.m, 1));
  for (int i = 0; i < MANY; i++) { many[i] = make(&d, 1); } /* so that opening one needs no memory below */
  for (int i = 0; i < MANY; i++) { drop(&d, &many[i]); }
  EXPECT(!issue(&d, "one", NULL, 0));
  fail_next(1); /* for the list of results */
  many[n++] = make(&d, 1);
  EXPECT_INT(many[0]->h.seen, -1);
  EXPECT(!issue(&d, "other", &many[0], 1));
  EXPECT_INT(logged()->seen[many[0]->h.seen].made, -1);
  while (logged()->seen_count < logged()->seen_size) {
    many[n++] = make(&d, 1);
    EXPECT_INT(logged()->seen[many[n - 1]->h.seen].made, 1);
  }
  const int32_t results = logged()->made_count;
  fail_next(1); /* for the list of storages */
  many[n++] = make(&d, 1);
  EXPECT_INT(many[n - 1]->h.seen, -1);
  EXPECT_INT(logged()->made_count, results);
  many[n++] = make(&d, 1);
  EXPECT_INT(logged()->made_count, results + 1);
  EXPECT_INT(logged()->seen[many[n - 1]->h.seen].ordinal, results);
  while (n > 0) { drop(&d, &many[--n]); }
  give_up(&d);
}

/* Each allocation fails in its turn; without memory nothing is learned, and all goes on. */
static void without_memory_all_goes_on(uint64_t seed) {
  for (int64_t fail = 1; fail < 120; fail++) {
    d = new_device(seed, 0);
    d.m->alloc.fail_at = 0;
    train(&d);
    atomic_store(&d.m->alloc.made, 0);
    d.m->alloc.fail_at = fail;
    for (int i = 0; i < 4; i++) { train(&d); }
    d.m->alloc.fail_at = 0;
    give_up(&d);
  }
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_step_memory: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  without_memory_an_operator_is_not_logged(seed);
  without_memory_a_result_is_not_logged(seed);
  without_memory_all_goes_on(seed);
  return 0;
}
