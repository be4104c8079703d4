/* scale.c: how long one call keeps the core's lock, by how many storages there are; scale.py
 * compiles it with the core and runs it.
 *
 *   scale N       for each kind of call: its name, how often the lock was held, and nanoseconds of the
 *                 thread's CPU time with which it was held, at the median, at 99.9 % and at most
 *   scale misses  a repeating random sequence of uses, by who leaves: misses a repetition
 *
 * The lock's two functions are wrapped by the linker: a call that lets others in between counts as often as it does.
 */
#include <time.h>

#include "../tests/core/misses.h"

#define CALLS 20000 /* of each kind, but for opening and closing */

static struct mgd_machine *m;
static int64_t entered, *held;
static size_t times, most;

static int64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void __real_mgd_state_enter(struct mgd_machine *machine);
int __real_mgd_state_leave(struct mgd_machine *machine, int code);
void __wrap_mgd_state_enter(struct mgd_machine *machine);
int __wrap_mgd_state_leave(struct mgd_machine *machine, int code);

void __wrap_mgd_state_enter(struct mgd_machine *machine) {
  __real_mgd_state_enter(machine);
  entered = now_ns();
}

int __wrap_mgd_state_leave(struct mgd_machine *machine, int code) {
  int64_t ns = now_ns() - entered;
  if (times < most) {
    held[times++] = ns;
  }
  return __real_mgd_state_leave(machine, code);
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void report(const char *name) {
  qsort(held, times, sizeof *held, by_size);
  if (times) {
    printf("%s %zu %" PRId64 " %" PRId64 " %" PRId64 "\n", name, times, held[times / 2], held[(times - 1) * 999 / 1000], held[times - 1]);
  }
  (void)fflush(stdout);
  times = 0;
}

static void touch_all(struct mgd_handle *h, size_t n, uint64_t *tick, uint64_t *random) {
  uint64_t step = 2 * (next_random(random) % 1000000) + 1; /* shares no factor with a power of ten: each is met */
  step += step % 5 == 0 ? 2 : 0;
  for (size_t i = 0; i < n; i++) {
    struct mgd_handle *one = &h[i * step % n];
    (void)i_use(one, ++*tick);
    (void)mgd_handle_unuse(one, me, 1);
  }
}

/* `bytes` of them leave, and come home again. */
static void evict(int64_t bytes, struct plan *p) {
  p->n = PLAN;
  EXPECT_OK(mgd_evict_begin(m, 1, bytes, NULL, 0, p->actions, &p->n));
}

static void go_and_come(const struct plan *p) {
  size_t before = times;
  carry_out(m, p);
  for (size_t i = 0; i < p->n; i++) {
    if (p->actions[i].handle) {
      restore(m, p->actions[i].handle);
    }
  }
  times = before;
}

static void evictions(struct mgd_handle *h, size_t n, uint64_t *tick, uint64_t *random) {
  struct plan p;
  evict(1, &p);
  report("first_victim");
  go_and_come(&p);
  touch_all(h, n, tick, random);
  for (int i = 0; i < CALLS; i++) {
    evict(1, &p);
    go_and_come(&p);
    if (i % 2000 == 1999) {
      touch_all(h, n, tick, random);
    }
  }
  report("evict_one");
}

static void take_away(struct mgd_handle *h) {
  struct plan p;
  EXPECT_OK(mgd_handle_advise(m, h, MGD_ADVICE_FIRST));
  evict(1, &p);
  EXPECT(p.actions[0].handle == h);
  carry_out(m, &p);
  EXPECT_OK(mgd_handle_advise(m, h, 0));
}

/* Home again, where room has to be made and where there is none. */
static void acquisitions(struct mgd_handle *h, size_t n, uint64_t *random) {
  const int64_t full[MGD_MAX_DEVICES] = {0}, hopeless[MGD_MAX_DEVICES] = {0, INT64_MIN / 2};
  for (int wanted = 0; wanted < 2; wanted++) {
    for (int i = 0; i < CALLS; i++) {
      struct mgd_handle *one = &h[next_random(random) % n];
      struct plan p;
      int device;
      size_t before = times;
      void *left = NULL;
      take_away(one);
      times = before;
      (void)i_use(one, one->stamp);
      EXPECT_CODE(acquire(m, &one, 1, wanted ? hopeless : full, &p, &device), wanted ? MGD_E_NO_ROOM : MGD_OK);
      before = times;
      if (!wanted) { EXPECT_OK(mgd_restore_end(m, one, MGD_RESIDENT, &left)); }
      (void)mgd_handle_unuse(one, me, 1);
      if (wanted) {
        restore(m, one);
      }
      times = before;
      free(left);
    }
    report(wanted ? "no_room" : "acquire");
  }
}

static void busy(struct mgd_handle *h, size_t n) {
  struct plan p;
  for (size_t i = 0; i < n; i++) {
    (void)i_use(&h[i], h[i].stamp);
  }
  for (int i = 0; i < 10; i++) {
    p.n = PLAN;
    EXPECT_CODE(mgd_evict_begin(m, 1, 1, NULL, 0, p.actions, &p.n), MGD_E_BUSY);
  }
  report("busy");
  for (int i = 0; i < CALLS; i++) {
    EXPECT_CODE(mgd_user_others(m, 1, 0), MGD_E_BUSY);
  }
  report("others_use");
  for (size_t i = 0; i < n; i++) {
    (void)mgd_handle_unuse(&h[i], me, 1);
  }
}

static void measure(size_t n) {
  struct mgd_handle *h = calloc(n, sizeof *h);
  uint64_t tick = 0, random = 1;
  most = 64 * CALLS + 2 * n;
  held = calloc(most, sizeof *held);
  EXPECT(h && held);
  m = new_machine(1, 100);
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_lru, NULL));
  times = 0;
  for (size_t i = 0; i < n; i++) {
    h[i].stamp = ++tick;
    EXPECT_OK(mgd_handle_open(m, &h[i], 1, 8));
  }
  report("open");
  evictions(h, n, &tick, &random);
  acquisitions(h, n, &random);
  busy(h, n);
  for (size_t i = 0; i < CALLS; i++) {
    int64_t before = now_ns();
    (void)i_use(&h[next_random(&random) % n], ++tick);
    held[times++] = now_ns() - before;
  }
  report("use");
  for (size_t i = 0; i < n; i++) { /* in any order: the step shares no factor with a power of ten */
    bool moving;
    void *memory = NULL;
    EXPECT_OK(mgd_handle_close(m, &h[i * 7919 % n], &moving, &memory));
    free(memory);
  }
  report("close");
  mgd_machine_destroy(m);
  free(held);
  free(h);
}

static void misses(void) {
  struct sequence q = new_sequence(1000, 5000, 20, 1);
  const int fits[] = {950, 800, 650};
  for (int i = 0; i < 3; i++) {
    q.fit = fits[i];
    printf("%d %.0f %.0f %.0f %.0f\n", q.fit, furthest(&q), core_misses(&q, by_foresight, true), core_misses(&q, by_foresight, false),
           core_misses(&q, mgd_policy_lru, false));
  }
  free_sequence(&q);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "misses") == 0) {
    misses();
  } else {
    measure(argc == 2 ? strtoul(argv[1], NULL, 10) : 1000);
  }
  return 0;
}
