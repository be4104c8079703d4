/* A tensor moves to where it is needed if its home can do without it, programs
 * that repeat themselves come to rest, and others move it less and less.
 *
 * Usage: test_traffic [seed]
 */
#include "expect.h"

#define DEVICES 4
#define USES 6
#define SEGMENTS 5

/* ---- the rules, one by one */

/* One round: a copy on device 1, then what comes back. */
static bool one_round(struct mgd_traffic *t, bool home_idle) {
  bool move = mgd_traffic_needed(t, 1);
  mgd_traffic_returned(t, home_idle);
  return move;
}

static void the_state_is_small(void) { EXPECT(sizeof(struct mgd_traffic) <= 16); }

static void one_round_is_enough_before_the_first_move(void) {
  struct mgd_traffic t = {0};
  EXPECT(!mgd_traffic_needed(&t, 1));
  EXPECT(!mgd_traffic_needed(&t, 2)); /* the same round */
  mgd_traffic_returned(&t, true);
  mgd_traffic_returned(&t, true);
  EXPECT(mgd_traffic_needed(&t, 3)); /* to whoever asks */
  EXPECT(mgd_traffic_needed(&t, 1)); /* it did not move, so the advice stands */
}

static void copies_without_a_return_are_one_round(void) {
  struct mgd_traffic t = {0};
  for (int i = 0; i < 100; i++) {
    EXPECT(!mgd_traffic_needed(&t, 1));
  }
}

static void returns_without_a_copy_are_none(void) {
  struct mgd_traffic t = {0};
  mgd_traffic_returned(&t, true);
  EXPECT(!mgd_traffic_needed(&t, 1));
  mgd_traffic_returned(&t, true);
  mgd_traffic_moved(&t, true);
  mgd_traffic_returned(&t, true); /* of a copy made before it moved */
  EXPECT(!one_round(&t, true));
  EXPECT(!one_round(&t, true));
  EXPECT(one_round(&t, true)); /* two rounds before the second move */
}

static void one_use_at_home_in_a_round_is_enough_to_stay(void) {
  for (int bad = 0; bad < 3; bad++) {
    struct mgd_traffic t = {0};
    EXPECT(!mgd_traffic_needed(&t, 1));
    for (int i = 0; i < 3; i++) {
      mgd_traffic_returned(&t, i != bad);
    }
    EXPECT(!one_round(&t, true));
    EXPECT(one_round(&t, true));
  }
}

static void rounds_count_in_a_row_only(void) {
  struct mgd_traffic t = {0};
  mgd_traffic_moved(&t, true);
  mgd_traffic_moved(&t, true); /* four rounds from now on */
  for (int i = 0; i < 10; i++) {
    EXPECT(!one_round(&t, i % 4 != 3)); /* three good ones, one bad one */
  }
  EXPECT(!one_round(&t, true)); /* the last two were good */
  EXPECT(!one_round(&t, true));
  EXPECT(one_round(&t, false));
  EXPECT(!one_round(&t, true));
}

/* Nothing ever holds the tensor: 1, 2, 4, ... 1024, 1024, 1024 rounds to each move. */
static void each_move_asks_for_twice_as_many_rounds_up_to_1024(void) {
  struct mgd_traffic t = {0};
  for (int moves = 0; moves < 14; moves++) {
    int rounds = 1 << (moves < 10 ? moves : 10);
    for (int i = 0; i < rounds; i++) {
      EXPECT(!one_round(&t, true));
    }
    EXPECT(mgd_traffic_needed(&t, 1));
    mgd_traffic_moved(&t, true);
  }
}

static void a_move_that_was_asked_for_is_no_guess(void) {
  struct mgd_traffic t = {0};
  for (int i = 0; i < 5; i++) {
    EXPECT(!one_round(&t, true));
    mgd_traffic_moved(&t, false); /* the round counts no more */
  }
  EXPECT(!one_round(&t, true));
  EXPECT(one_round(&t, true)); /* one round is enough, as before the first move */
  mgd_traffic_moved(&t, true);
  mgd_traffic_moved(&t, false); /* nor is what was learnt forgotten */
  EXPECT(!one_round(&t, true));
  EXPECT(!one_round(&t, true));
  EXPECT(one_round(&t, true));
}

static void neither_count_overflows(void) {
  struct mgd_traffic t = {.idle = UINT32_MAX - 1};
  for (int i = 0; i < 5; i++) {
    EXPECT(one_round(&t, true));
  }
  for (int i = 0; i < 1000; i++) {
    mgd_traffic_moved(&t, true);
  }
  t.idle = 1022;
  t.round = MGD_ROUND_IDLE;
  EXPECT(!one_round(&t, true));
  EXPECT(one_round(&t, true));
}

/* ---- whole programs, simulated */

/* What a caller keeps: where the tensor and its copies are, and whether its home used it since the last return. */
struct tensor {
  struct mgd_traffic traffic;
  int home, moves, copies;
  bool cached[DEVICES], used_at_home, may_move;
};

static void use(struct tensor *x, int device) {
  if (device != x->home && !x->cached[device]) {
    if (mgd_traffic_needed(&x->traffic, device) && x->may_move) {
      mgd_traffic_moved(&x->traffic, true);
      x->home = device;
      x->used_at_home = false;
      x->moves++;
    } else {
      x->cached[device] = true;
      x->copies++;
    }
  }
  x->used_at_home = x->used_at_home || device == x->home;
}

/* A backward pass and an optimizer's step: each copy sends one gradient, then all are stale. */
static void step(struct tensor *x) {
  for (int d = 0; d < DEVICES; d++) {
    if (x->cached[d] && d != x->home) {
      mgd_traffic_returned(&x->traffic, !x->used_at_home);
      x->used_at_home = false;
    }
    x->cached[d] = false;
  }
}

struct program {
  int segments, uses[SEGMENTS], device[SEGMENTS][USES];
};

static struct program some_program(uint64_t *random, int segments) {
  struct program p = {.segments = segments};
  int64_t devices = 1 + pick(random, DEVICES);
  for (int s = 0; s < segments; s++) {
    p.uses[s] = 1 + (int)pick(random, USES);
    for (int i = 0; i < p.uses[s]; i++) {
      p.device[s][i] = (int)pick(random, devices);
    }
  }
  return p;
}

static void run_once(struct tensor *x, const struct program *p) {
  for (int s = 0; s < p->segments; s++) {
    for (int i = 0; i < p->uses[s]; i++) {
      use(x, p->device[s][i]);
    }
    step(x);
  }
}

static int devices_of(const struct program *p) {
  int count = 0;
  for (int d = 0; d < DEVICES; d++) {
    bool used = false;
    for (int i = 0; i < p->uses[0]; i++) {
      used = used || p->device[0][i] == d;
    }
    count += used;
  }
  return count;
}

/* From its fourth round on a fixed loop moves nothing and copies the least that one home allows. */
static void a_fixed_loop_settles_by_its_third_round(uint64_t *random) {
  for (int n = 0; n < 20000; n++) {
    struct program p = some_program(random, 1);
    struct tensor x = {.home = (int)pick(random, DEVICES), .may_move = true};
    for (int i = 0; i < 3; i++) {
      run_once(&x, &p);
    }
    int moves = x.moves;
    EXPECT(moves <= 1);
    for (int i = 0; i < 100; i++) {
      x.copies = 0;
      run_once(&x, &p);
      EXPECT_INT(x.copies, devices_of(&p) - 1);
    }
    EXPECT_INT(x.moves, moves);
  }
}

/* Also where moving was forbidden at first: two rounds after it is allowed. */
static void a_loop_settles_when_it_is_thawed(uint64_t *random) {
  for (int n = 0; n < 5000; n++) {
    struct program p = some_program(random, 1);
    struct tensor x = {.home = (int)pick(random, DEVICES)};
    for (int64_t i = pick(random, 20); i > 0; i--) {
      run_once(&x, &p);
    }
    EXPECT_INT(x.moves, 0);
    x.may_move = true;
    run_once(&x, &p);
    run_once(&x, &p);
    x.copies = 0;
    run_once(&x, &p);
    EXPECT_INT(x.copies, devices_of(&p) - 1);
    EXPECT(x.moves <= 1);
  }
}

/* With several backward passes a loop the home may be idle in some of them, never in as many
 * as the loop has in a row: it comes to rest once a move asks for more. */
static void a_loop_of_several_passes_comes_to_rest(uint64_t *random) {
  int most = 0;
  for (int n = 0; n < 20000; n++) {
    struct program p = some_program(random, 1 + (int)pick(random, SEGMENTS));
    struct tensor x = {.home = (int)pick(random, DEVICES), .may_move = true};
    for (int i = 0; i < 40; i++) {
      run_once(&x, &p);
    }
    int moves = x.moves;
    most = moves > most ? moves : most;
    EXPECT(moves == 0 || 1 << (moves - 1) <= p.segments);
    for (int i = 0; i < 100; i++) {
      run_once(&x, &p);
    }
    EXPECT_INT(x.moves, moves);
  }
  EXPECT(most > 1); /* or the case above says nothing */
}

/* A program without any rest: the moves of n rounds are no more than log2(n) + n / 1024. */
static void a_program_that_never_repeats_moves_less_and_less(uint64_t *random) {
  struct tensor x = {.may_move = true};
  for (int n = 1; n <= 100000; n++) {
    struct program p = some_program(random, 1);
    run_once(&x, &p);
    int bound = 1 + n / 1024;
    for (int m = n; m > 1; m /= 2) {
      bound++;
    }
    EXPECT(x.moves <= bound);
  }
}

int main(int argc, char **argv) {
  uint64_t random = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_traffic: seed %" PRIu64 "\n", random);
  the_state_is_small();
  one_round_is_enough_before_the_first_move();
  copies_without_a_return_are_one_round();
  returns_without_a_copy_are_none();
  one_use_at_home_in_a_round_is_enough_to_stay();
  rounds_count_in_a_row_only();
  each_move_asks_for_twice_as_many_rounds_up_to_1024();
  a_move_that_was_asked_for_is_no_guess();
  neither_count_overflows();
  a_fixed_loop_settles_by_its_third_round(&random);
  a_loop_settles_when_it_is_thawed(&random);
  a_loop_of_several_passes_comes_to_rest(&random);
  a_program_that_never_repeats_moves_less_and_less(&random);
  return 0;
}
