/* What is logged, which operators are alike, and what a period of the log becomes: roles, uses, deaths and times.
 *
 * Usage: test_step_log [seed]
 */
#include "trainer.h"

#define SIZE 600000
#define ROUND 40   /* operators of a round; 16 must be alike before its period is believed */
#define FIRST 15   /* the operator of the first round with which the period begins that is found */
#define BEFORE 30  /* operators before the first round */

static struct device d;

/* A device that logs and has room enough. */
static void set_up(uint64_t seed) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  EXPECT_OK(mgd_step_begin(d.m, 1));
}

static struct mgd_step *step(void) { return d.m->devices[1].step; }
static struct mgd_step_log *logged(void) { return &step()->log; }
static struct mgd_step_learned l; /* what learn() has learned */

static int plan(int64_t free) { return mgd_step_plan(d.m, 1, free, 0, NULL); }

static void learn(void) { EXPECT_OK(mgd_step_learn_from_log_locked(d.m, step(), NULL, &l)); }

/* ---- the log */

/* Operators whose hashes are equal by chance differ by how many storages they use. */
static void colliding_hashes_are_told_apart(uint64_t seed) {
  static const char *const letters[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"};
  uint64_t value = UINT64_MAX; /* such that an operator with a use of these bytes has the hash of one without a use */
  const char *name = NULL;
  for (size_t i = 0; i < sizeof letters / sizeof *letters && value >> 61; i++) {
    name = letters[i];
    value = mgd_step_mix(1, mgd_step_mix(0, (unsigned char)*name));
  }
  EXPECT(value >> 61 == 0);
  set_up(seed);
  d.room = INT64_MAX;
  EXPECT(!issue(&d, "begin", NULL, 0));
  struct storage *large = make(&d, (int64_t)(value >> 1));
  const struct mgd_step_use use = {&large->h, value & 1};
  bool plans;
  for (int i = 0; i < MGD_STEP_WINDOW; i++) { EXPECT_OK(issue_uses(&d, name, &use, 1, &plans)); }
  EXPECT(!issue(&d, NULL, NULL, 0));
  const struct mgd_step_logged *last = &logged()->operators[MGD_STEP_WINDOW + 1];
  EXPECT(last->kind == last[-1].kind && last->place == last[-1].place);
  EXPECT_INT(logged()->period, 0);
  drop(&d, &large);
  give_up(&d);
}

/* Operators that differ by nothing but the ages of what they use: 8 of them, `between` others, and the same 8. */
static int32_t period_after(uint64_t seed, int between) {
  struct storage *used[16], *pattern[MGD_STEP_WINDOW];
  uint64_t random = 1;
  set_up(seed);
  EXPECT(!issue(&d, "begin", NULL, 0));
  for (int i = 0; i < 16; i++) { used[i] = make(&d, SIZE); }
  for (int i = 0; i < MGD_STEP_WINDOW; i++) {
    pattern[i] = used[pick(&random, 16)];
    EXPECT(!issue(&d, "use", &pattern[i], 1));
  }
  for (int i = 0; i < between; i++) { EXPECT(!issue(&d, "use", &used[pick(&random, 16)], 1)); }
  for (int i = 0; i < MGD_STEP_WINDOW; i++) { EXPECT(!issue(&d, "use", &pattern[i], 1)); }
  const int32_t period = logged()->period;
  for (int i = 0; i < 16; i++) { drop(&d, &used[i]); }
  give_up(&d);
  return period;
}

static void the_last_512_places_of_one_hash_are_compared(uint64_t seed) {
  EXPECT_INT(period_after(seed, 512 - MGD_STEP_WINDOW), 512);
  EXPECT_INT(period_after(seed, 513 - MGD_STEP_WINDOW), 0);
}

/* An operator may use thousands of storages. One with more uses than the log holds empties it. */
static void an_operator_may_have_many_uses(uint64_t seed) {
  enum { MANY = 5000 };
  struct mgd_step_use *uses = calloc(MGD_STEP_USES + 1, sizeof *uses);
  bool plans = false;
  set_up(seed);
  struct storage *one = make(&d, SIZE);
  for (int i = 0; i <= MGD_STEP_USES; i++) { uses[i].handle = &one->h; }
  for (int i = 0; i <= MGD_STEP_WINDOW; i++) {
    EXPECT(!plans);
    EXPECT_OK(issue_uses(&d, "many", uses, MANY, &plans));
  }
  EXPECT(plans);
  EXPECT_INT(logged()->uses_count, (MGD_STEP_WINDOW + 1) * MANY);
  learn();
  EXPECT_INT(l.kinds[1].first_use, MANY);
  EXPECT_INT(l.uses, 1); /* the plan has one use of one storage */
  mgd_step_learn_forget_locked(&l);
  EXPECT_OK(issue_uses(&d, "more", uses, MGD_STEP_USES + 1, &plans));
  EXPECT(!plans && state(&d).logs);
  EXPECT_INT(logged()->count, 0);
  EXPECT_INT(one->h.seen, -1);
  free(uses);
  drop(&d, &one);
  give_up(&d);
}

/* A storage gets its latest size in the log; one that is not in the log changes nothing there. */
static void a_resized_storage_has_its_last_size(uint64_t seed) {
  void *memory = NULL;
  set_up(seed);
  struct storage *pair[] = {make(&d, SIZE), make(&d, SIZE)};
  EXPECT(!issue(&d, "one", pair, 1));
  for (int i = 0; i < 2; i++) {
    (void)mgd_handle_use(&pair[i]->h, me, ++d.tick);
    EXPECT_OK(mgd_handle_resize(d.m, &pair[i]->h, SIZE + 512 + i, &memory));
    (void)mgd_handle_unuse(&pair[i]->h, me, 1);
    EXPECT(!memory);
  }
  EXPECT_INT(logged()->seen_count, 1);
  EXPECT_INT(logged()->seen[0].bytes, SIZE + 512);
  while (!issue(&d, "one", &pair[0], 1) && !issue(&d, "other", &pair[1], 1)) {}
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT_INT(step()->known[0].role[pair[0]->h.role[0]].bytes, SIZE + 512);
  EXPECT_INT(step()->known[0].role[pair[1]->h.role[0]].bytes, SIZE + 513);
  for (int i = 0; i < 2; i++) { drop(&d, &pair[i]); }
  give_up(&d);
}

/* ---- the period */

static char operators[BEFORE + ROUND][16];

/* Operator o of the log: those before the rounds have names of their own, others begin the round anew. */
static const char *name_of(int o) {
  const int i = o < BEFORE + ROUND ? o : o - ROUND;
  (void)snprintf(operators[i], sizeof operators[i], "o%d", i);
  return operators[i];
}

/* Issues the operators up to `until`, without storages. None ends a period. */
static void issue_until(int until) {
  for (int o = logged()->count; o < until; o++) { EXPECT(!issue(&d, name_of(o), NULL, 0)); }
}

static void issue_next(struct storage *s) { EXPECT(!issue(&d, name_of(logged()->count), &s, 1)); }

/* Numbers of operators in the log. */
#define IN_FIRST(o) (BEFORE + (o))
#define IN_SECOND(o) (BEFORE + ROUND + (o))
#define OF_STEP(o) ((o) - BEFORE - FIRST) /* the operator of the step, by its number in the log */

/* Issues the rest of the second round up to the operator that ends a period. */
static void issue_until_due(void) {
  issue_until(IN_SECOND(FIRST));
  EXPECT(issue(&d, name_of(IN_SECOND(FIRST)), NULL, 0));
  EXPECT_INT(logged()->period, ROUND);
}

static struct storage *lasting; /* is used in the rounds, and is older than the log */
static void begin_rounds(uint64_t seed) {
  set_up(seed);
  lasting = make(&d, SIZE);
}

/* An operator of the learned step names so many storages with a role, and uses so many by the plan. */
static void expect_uses(int o, int named, int used) {
  const struct mgd_step_kind *k = &l.kinds[OF_STEP(o)];
  int roles = 0;
  for (int32_t i = k->first_use; i < k[1].first_use; i++) { roles += l.use_roles[i] >= 0; }
  EXPECT_INT(roles, named);
  EXPECT_INT(l.plan_first[OF_STEP(o) + 1] - l.plan_first[OF_STEP(o)], used);
}

/* The only result of the step has a place from its operator to the other one. */
static void expect_result(int made, int dies) {
  EXPECT_INT(l.kinds[OF_STEP(made)].first_made, 0);
  EXPECT_INT(l.kinds[OF_STEP(made) + 1].first_made, 1);
  EXPECT_INT(l.plan_storages[l.made_roles[0]].dies, dies);
}

static void end_rounds(void) {
  mgd_step_learn_forget_locked(&l);
  drop(&d, &lasting);
  give_up(&d);
}

static void what_died_for_good_or_is_pinned_has_no_role(uint64_t seed) {
  begin_rounds(seed);
  struct storage *old = make(&d, SIZE), *pinned = make(&d, SIZE);
  EXPECT_OK(mgd_handle_pin(d.m, &pinned->h, MGD_PIN_ASKED, true));
  issue_until(IN_FIRST(20));
  issue_next(old);
  drop(&d, &old);
  issue_next(lasting);
  issue_next(pinned);
  issue_until_due();
  learn();
  expect_uses(IN_FIRST(20), 0, 0);
  expect_uses(IN_FIRST(21), 1, 1);
  expect_uses(IN_FIRST(22), 0, 0);
  EXPECT_INT(l.roles, 1);
  EXPECT(l.role[0].lasting && l.role[0].bytes == SIZE && l.plan_storages[0].dies == -1);
  drop(&d, &pinned);
  end_rounds();
}

/* A result of an earlier round is used and dies in the period. Its role is that of the result one round later, if the
 * same operator makes one of that size then; the roles that the use has by the plan are returned. */
static void expect_successor(uint64_t seed, int made_at, int64_t bytes, bool is_one) {
  begin_rounds(seed);
  issue_until(made_at + 1);
  struct storage *earlier = make(&d, SIZE), *later = NULL;
  issue_until(IN_FIRST(20));
  issue_next(earlier);
  issue_until(IN_FIRST(26));
  drop(&d, &earlier);
  issue_until(made_at + ROUND + 1);
  if (bytes > 0) { later = make(&d, bytes); }
  issue_until(IN_SECOND(FIRST));
  if (later && !is_one) { drop(&d, &later); }
  issue_until_due();
  learn();
  expect_uses(IN_FIRST(20), is_one, is_one);
  if (is_one) { expect_result(IN_SECOND(3), OF_STEP(IN_FIRST(25))); }
  if (later) { drop(&d, &later); }
  end_rounds();
}

static void a_result_has_the_role_of_its_successor(uint64_t seed) {
  expect_successor(seed, IN_FIRST(3), SIZE, true);
  expect_successor(seed, IN_FIRST(3), SIZE + 1, false);
  expect_successor(seed, IN_FIRST(3), 0, false);
  expect_successor(seed, 2, SIZE, false); /* two rounds earlier: its successor is older than the period, too */
}

/* What the same operator made one round later is older than the period, too. It has a role of its own, and gives none
 * to the storage before. */
static void the_role_of_a_lasting_storage_is_its_own(uint64_t seed) {
  begin_rounds(seed);
  issue_until(3);
  struct storage *earlier = make(&d, SIZE);
  issue_until(ROUND + 3);
  struct storage *later = make(&d, SIZE);
  issue_until(IN_FIRST(20));
  issue_next(later);
  issue_next(earlier);
  drop(&d, &earlier);
  issue_until_due();
  learn();
  expect_uses(IN_FIRST(20), 1, 1);
  expect_uses(IN_FIRST(21), 0, 0);
  EXPECT(l.roles == 1 && l.role[0].lasting);
  drop(&d, &later);
  end_rounds();
}

/* The successor has died before the last use of the storage, so the plan cannot have that use. */
static void a_use_after_the_death_of_the_successor_is_not_planned(uint64_t seed) {
  begin_rounds(seed);
  issue_until(IN_FIRST(4));
  struct storage *earlier = make(&d, SIZE);
  issue_until(IN_FIRST(8));
  issue_next(earlier);
  issue_until(IN_SECOND(4));
  struct storage *later = make(&d, SIZE);
  issue_until(IN_SECOND(6));
  drop(&d, &later);
  issue_until(IN_SECOND(8));
  issue_next(earlier);
  drop(&d, &earlier);
  issue_until_due();
  learn();
  expect_uses(IN_SECOND(8), 1, 0);
  expect_result(IN_SECOND(3), OF_STEP(IN_SECOND(5)));
  end_rounds();
}

/* An operator makes a result in each of two rounds. The second one is alive, the first one died at operator `died`. */
static void expect_death(uint64_t seed, int made, int died, int dies) {
  begin_rounds(seed);
  issue_until(made - ROUND + 1);
  struct storage *earlier = make(&d, SIZE), *later = NULL;
  for (int o = made - ROUND + 1; o < IN_SECOND(FIRST); o++) {
    issue_until(o + 1);
    if (o == made) { later = make(&d, SIZE); }
    if (o == died) { drop(&d, &earlier); }
  }
  issue_until_due();
  learn();
  expect_result(made, dies);
  drop(&d, &later);
  end_rounds();
}

/* A result that is alive dies when its predecessor did, or right before its successor is made. If that was not in the
 * period, or is after its successor has been made, it lives to the end of the step. */
static void a_result_dies_when_its_predecessor_did(uint64_t seed) {
  expect_death(seed, IN_SECOND(3), IN_FIRST(25), OF_STEP(IN_FIRST(25)));
  expect_death(seed, IN_SECOND(4), IN_SECOND(4), OF_STEP(IN_SECOND(3)));
  expect_death(seed, IN_SECOND(3), IN_FIRST(10), ROUND - 1);
  expect_death(seed, IN_SECOND(4), IN_SECOND(6), ROUND - 1);
  expect_death(seed, IN_FIRST(FIRST), IN_FIRST(FIRST), ROUND - 1); /* there is no operator before */
}

/* The operator that makes a result uses its predecessor, too, which dies then. By the plan it only makes the result. */
static void the_predecessor_has_no_use_where_the_result_is_made(uint64_t seed) {
  begin_rounds(seed);
  issue_until(IN_FIRST(20) - ROUND + 1);
  struct storage *earlier = make(&d, SIZE);
  issue_until(IN_FIRST(20));
  issue_next(earlier);
  struct storage *later = make(&d, SIZE);
  drop(&d, &earlier);
  issue_until_due();
  learn();
  expect_uses(IN_FIRST(20), 1, 1);
  expect_result(IN_FIRST(20), OF_STEP(IN_FIRST(19)));
  EXPECT_INT(l.plan_uses[l.plan_first[OF_STEP(IN_FIRST(20))]].flags, MGD_PLAN_MADE | MGD_PLAN_WRITTEN);
  drop(&d, &later);
  end_rounds();
}

/* A result that dies after the last operator of the log lives to the end of the step. */
static void a_late_death_is_the_end_of_the_step(uint64_t seed) {
  begin_rounds(seed);
  issue_until(IN_SECOND(4));
  struct storage *later = make(&d, SIZE);
  issue_until_due();
  drop(&d, &later); /* after the last operator of the log */
  learn();
  expect_result(IN_SECOND(3), ROUND - 1);
  end_rounds();
}

/* Neither the result nor its predecessor has died: it is too soon to learn the step. */
static void a_result_that_stays_is_waited_for(uint64_t seed) {
  begin_rounds(seed);
  issue_until(IN_FIRST(FIRST) - ROUND + 1);
  struct storage *earlier = make(&d, SIZE);
  issue_until(IN_FIRST(FIRST) + 1);
  struct storage *later = make(&d, SIZE);
  issue_until_due();
  EXPECT_CODE(plan(0), MGD_E_WAIT);
  EXPECT_INT(state(&d).known, 0);
  EXPECT(!issue(&d, name_of(IN_SECOND(FIRST + 1)), NULL, 0)); /* not for each operator */
  drop(&d, &earlier);
  EXPECT(issue(&d, name_of(IN_SECOND(FIRST + 2)), NULL, 0));
  learn();
  drop(&d, &later);
  end_rounds();
}

static int64_t between(void *context, int64_t from, int64_t to) {
  EXPECT(!context && from >= 0 && from <= to);
  return 7 * (to - from);
}

/* A duration is unknown if the time at either end is, or if the second one is less. Then the bytes decide, and a clock
 * is not asked. */
static void unknown_times_are_estimated(uint64_t seed) {
  static const int64_t expected[] = {700, SIZE / 1000, SIZE / 1000, 700, SIZE / 1000, 700};
  const struct mgd_step_clock clock = {NULL, between};
  begin_rounds(seed);
  issue_until(IN_FIRST(18));
  for (int o = 18; o < 25; o++) {
    d.untimed = o == 20;
    d.worked -= o == 23 ? 500 : 0;
    issue_next(lasting);
  }
  issue_until_due();
  EXPECT_OK(mgd_step_learn_from_log_locked(d.m, step(), &clock, &l));
  for (int o = 18; o < 24; o++) { EXPECT_INT(l.ns[OF_STEP(IN_FIRST(o))], expected[o - 18]); }
  end_rounds();
}

/* ---- periods within periods */

/* A part of 10 operators and two of 20 that are alike, twice: up to so many operators of the last but one. */
static void issue_parts(int last) {
  static const char *const part[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o",
                                     "p", "q", "r", "s", "t", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  for (int k = 0; k < 2; k++) {
    for (int i = 20; i < 30; i++) { (void)issue(&d, part[i], NULL, 0); }
    for (int i = 0; i < (k == 0 ? 40 : last); i++) { (void)issue(&d, part[i % 20], NULL, 0); }
  }
}

static void expect_period_after_failure(uint64_t seed, int last, int32_t period, int32_t fresh) {
  set_up(seed);
  issue_parts(last);
  EXPECT_INT(logged()->period, 50);
  EXPECT_INT(logged()->fresh, 10 + last);
  d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + 1;
  EXPECT_CODE(plan(0), MGD_E_NOMEM);
  EXPECT_INT(logged()->period, period);
  EXPECT_INT(logged()->fresh, fresh);
  give_up(&d);
}

/* If the long period cannot be planned, one that its last 8 operators have within it takes its place. */
static void a_shorter_period_takes_the_place(uint64_t seed) {
  expect_period_after_failure(seed, 6, 50, 16); /* the last 8 operators are in no other place */
  expect_period_after_failure(seed, 8, 30, 8);
}

/* A followed step is a part of a round, whose other operators are too few to lose the plan. When as many of them have
 * repeated as prove a period, the round is planned. */
static void a_longer_round_is_found_while_its_part_is_followed(uint64_t seed) {
  enum { PART = 20, TIMES = 3, OTHERS = 4, PROOF = 32 };
  static char part[PART][16];
  static const char *const others[OTHERS] = {"w", "x", "y", "z"};
  int rounds = 0;
  set_up(seed);
  struct storage *pair[] = {make(&d, SIZE), make(&d, SIZE)};
  bool plans = false;
  for (int i = 0; !plans; i = (i + 1) % PART) {
    (void)snprintf(part[i], sizeof part[i], "p%d", i);
    plans = issue(&d, part[i], &pair[i % 2], 1);
  }
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT_INT(state(&d).operators, PART);
  for (int at = 16; at < PART; at++) { EXPECT(!issue(&d, part[at], &pair[at % 2], 1)); }
  for (plans = false; !plans; rounds++) {
    for (int i = 0; i < TIMES * PART; i++) { (void)issue(&d, part[i % PART], &pair[i % 2], 1); }
    for (int i = 0; i < OTHERS && !plans; i++) {
      EXPECT(!mgd_step_logs(d.m, 1));
      plans = issue(&d, others[i], NULL, 0);
    }
  }
  EXPECT_INT(rounds, PROOF / OTHERS + 1);
  EXPECT(state(&d).follows && mgd_step_logs(d.m, 1));
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT_INT(state(&d).operators, TIMES * PART + OTHERS);
  EXPECT_INT(state(&d).known, 2);
  EXPECT_INT(state(&d).lost, 0);
  for (int i = 0; i < 2; i++) { drop(&d, &pair[i]); }
  give_up(&d);
}

/* A plan is taken up again although the operator at that place names a storage without a role first. */
static void a_pinned_storage_does_not_hide_the_place(uint64_t seed) {
  enum { STRANGERS = 7 };
  static const char *const part[] = {"a", "b", "c", "d"}, *const strangers[STRANGERS] = {"1", "2", "3", "4",
                                                                                         "5", "6", "7"};
  set_up(seed);
  struct storage *three[] = {make(&d, SIZE), make(&d, SIZE), make(&d, SIZE)};
  EXPECT_OK(mgd_handle_pin(d.m, &three[2]->h, MGD_PIN_ASKED, true));
  int i = 0;
  for (bool plans = false; !plans; i++) {
    struct storage *const two[] = {three[2], three[i % 2]};
    plans = issue(&d, part[i % 4], two, 2);
  }
  EXPECT_OK(plan(-SIZE / 2));
  EXPECT_INT(three[2]->h.role[0], -1);
  for (int k = 0; k < STRANGERS; k++) { EXPECT(!issue(&d, strangers[k], NULL, 0)); }
  EXPECT(state(&d).logs && state(&d).lost == 1);
  for (const int end = i + MGD_STEP_WINDOW; i < end; i++) {
    struct storage *const two[] = {three[2], three[i % 2]};
    EXPECT(!state(&d).follows);
    EXPECT(!issue(&d, part[i % 4], two, 2));
  }
  EXPECT(state(&d).follows && state(&d).lost == 1);
  for (int k = 0; k < 3; k++) { drop(&d, &three[k]); }
  give_up(&d);
}

int main(int argc, char **argv) {
  static void (*const tests[])(uint64_t) = {
      colliding_hashes_are_told_apart,
      the_last_512_places_of_one_hash_are_compared,
      an_operator_may_have_many_uses,
      a_resized_storage_has_its_last_size,
      what_died_for_good_or_is_pinned_has_no_role,
      a_result_has_the_role_of_its_successor,
      the_role_of_a_lasting_storage_is_its_own,
      a_use_after_the_death_of_the_successor_is_not_planned,
      a_result_dies_when_its_predecessor_did,
      the_predecessor_has_no_use_where_the_result_is_made,
      a_late_death_is_the_end_of_the_step,
      a_result_that_stays_is_waited_for,
      unknown_times_are_estimated,
      a_shorter_period_takes_the_place,
      a_longer_round_is_found_while_its_part_is_followed,
      a_pinned_storage_does_not_hide_the_place,
  };
  return RUN_ALL(tests);
}
