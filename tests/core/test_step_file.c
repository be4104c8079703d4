/* Learned steps in files: they are followed in another process, whatever is in the file does no harm, and what does not
 * fit the program is given up.
 *
 * Usage: test_step_file [seed]
 */
#include "core/steps/step_file.h"
#include "trainer.h"

#define SIZE 600000
#define QUIET 65536 /* operators without need after which a device with a step from a file logs no more */

/* What a device that trains has learned. The caller frees it. */
static int64_t *saved(uint64_t seed, size_t *n, int64_t *planned) {
  struct device d = new_device(seed, 0);
  int64_t *numbers = NULL;
  int steps = 0;
  for (int i = 0; i < 8; i++) {
    d.planned = d.needed = 0;
    train(&d);
  }
  EXPECT_INT(d.needed, 0);
  *planned = d.planned;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &numbers, n, &steps));
  EXPECT(steps == 1 && numbers);
  give_up(&d);
  return numbers;
}

/* Another process: the plan is followed in its first step, and its second copies what any step does. */
static void a_step_goes_through_a_file(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed + 1, 0);
  int steps = 0;
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  EXPECT_INT(steps, 1);
  EXPECT(state(&d).logs && !state(&d).follows && state(&d).known == 1);
  train(&d);
  EXPECT(state(&d).follows && d.planned > 0);
  EXPECT_INT(state(&d).plans, 1);
  d.planned = d.needed = 0;
  train(&d);
  EXPECT_INT(d.planned, planned);
  EXPECT_INT(d.needed, 0);
  EXPECT_INT(state(&d).lost, 0);
  int64_t *again = NULL;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &again, &n, &steps));
  EXPECT(memcmp(again, numbers, n * sizeof *again) == 0);
  free(again);
  free(numbers);
  give_up(&d);
}

/* Steps of another program are never met, and do not keep this one from being learned. */
static void another_program_learns_its_own(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  for (int i = 0; i < 6; i++) { look(&d); }
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).operators, 2 * LAYERS);
  EXPECT_INT(state(&d).known, 2);
  for (int i = 0; i < 3; i++) { /* as many as there is place for; the one that is followed is kept or lost whole */
    EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
    train(&d);
  }
  EXPECT_INT(state(&d).known, MGD_STEP_PLANS);
  free(numbers);
  give_up(&d);
}

/* The step is planned for the room that is there. */
static void a_file_is_planned_for_the_room(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  for (int64_t room = ROOM - 20; room <= ROOM + 400; room += 20) {
    struct device d = new_device(seed, 0);
    int steps;
    d.room = room;
    EXPECT_OK(mgd_device_set_capacity(d.m, 1, room));
    EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
    train(&d);
    EXPECT(state(&d).follows);
    EXPECT_INT(state(&d).lost, 0);
    d.needed = d.planned = 0;
    train(&d);
    EXPECT_INT(d.needed, 0);
    EXPECT((d.planned == 0) == (room >= ROOM + 100)); /* 12 * 20 and a result: all that is ever there at once */
    give_up(&d);
  }
  free(numbers);
}

/* Each byte in turn is another one, and the file ends at each place: it is refused, or costs time. */
static void a_damaged_file_is_harmless(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  for (size_t cut = 1; cut < n; cut++) {
    EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, cut, &steps), MGD_E_INVALID);
    EXPECT_INT(steps, 0);
  }
  int64_t refused = 0;
  for (size_t at = 0; at < n * sizeof *numbers; at++) {
    const int64_t good = numbers[at / sizeof *numbers];
    ((unsigned char *)numbers)[at] ^= (unsigned char)(1 + pick(&d.random, 255));
    const int code = mgd_step_file_load(d.m, 1, numbers, n, &steps);
    EXPECT(code == MGD_OK || code == MGD_E_INVALID || code == MGD_E_NO_ROOM || code == MGD_E_OVERFLOW);
    refused += code != MGD_OK;
    if (code == MGD_OK && at % 16 == 0) {
      train(&d);
      train(&d);
    }
    numbers[at / sizeof *numbers] = good;
    EXPECT_OK(mgd_step_learn(d.m, false));
    EXPECT_OK(mgd_step_learn(d.m, true));
  }
  EXPECT(refused > (int64_t)n);
  EXPECT_OK(mgd_step_learn(d.m, false));
  EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, n, &steps), MGD_E_ABSENT);
  EXPECT_CODE(mgd_step_file_load(d.m, 2, numbers, n, &steps), MGD_E_NO_DEVICE);
  int64_t *none = numbers;
  EXPECT_OK(mgd_step_file_save(d.m, 1, &none, &n, &steps));
  EXPECT(!none && n == 0 && steps == 0);
  EXPECT_CODE(mgd_step_file_save(d.m, 2, &none, &n, &steps), MGD_E_NO_DEVICE);
  free(numbers);
  give_up(&d);
}

/* ---- each number of the head */

enum { OPERATORS, NAMED, MADE, ROLES, USES, FOR_PLAN, CAPACITY, MARGIN, HEAD };

static void each_number_of_the_head_is_checked(uint64_t seed) {
  static const struct {
    int at;
    int64_t wrong;
  } cases[] = {
      {OPERATORS, 0}, {OPERATORS, MGD_STEP_OPERATORS + 1},
      {NAMED, -1},    {NAMED, MGD_STEP_USES + 1},
      {MADE, -1},     {MADE, (int64_t)MGD_PLAN_MOST + 1},
      {ROLES, -1},    {ROLES, INT64_MAX},
      {USES, -1},     {USES, INT64_MAX},
      {FOR_PLAN, -1}, {FOR_PLAN, INT64_MAX / 4 + 1},
      {CAPACITY, -1}, {CAPACITY, INT64_MIN},
      {MARGIN, -1},   {MARGIN, ROOM + 1},
  };
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  EXPECT_INT(numbers[CAPACITY], ROOM);
  EXPECT(numbers[FOR_PLAN] <= ROOM);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t good = numbers[cases[i].at];
    numbers[cases[i].at] = cases[i].wrong;
    EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, n, &steps), MGD_E_INVALID);
    EXPECT_INT(steps, 0);
    EXPECT_INT(state(&d).known, 0);
    numbers[cases[i].at] = good;
  }
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  EXPECT_INT(steps, 1);
  free(numbers);
  give_up(&d);
}

/* The largest numbers that are allowed do not overflow. */
static void the_largest_room_is_planned(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned);
  struct device d = new_device(seed, 0);
  int steps;
  numbers[FOR_PLAN] = numbers[MARGIN] = INT64_MAX / 4;
  numbers[CAPACITY] = 0;
  EXPECT_OK(mgd_device_set_capacity(d.m, 1, INT64_MAX));
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  train(&d);
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).room, INT64_MAX);
  EXPECT_INT(state(&d).bytes_in + state(&d).bytes_out, 0);
  free(numbers);
  give_up(&d);
}

/* What was loaded before the failure stays. */
static void steps_before_a_damaged_one_are_loaded(uint64_t seed) {
  size_t n;
  int64_t planned, *numbers = saved(seed, &n, &planned), *twice = malloc(2 * n * sizeof *twice);
  struct device d = new_device(seed, 0);
  int steps;
  EXPECT(twice);
  memcpy(twice, numbers, n * sizeof *twice);
  memcpy(twice + n, numbers, n * sizeof *twice);
  EXPECT_CODE(mgd_step_file_load(d.m, 1, twice, 2 * n - 1, &steps), MGD_E_INVALID);
  EXPECT_INT(steps, 1);
  EXPECT_INT(state(&d).known, 1);
  EXPECT_OK(mgd_step_file_load(d.m, 1, twice, 2 * n, &steps));
  EXPECT_INT(steps, 2);
  EXPECT_INT(state(&d).known, 3);
  free(twice);
  free(numbers);
  give_up(&d);
}

/* A step takes nine allocations, and a device that does not log yet one more. */
static void without_memory_nothing_is_loaded_or_saved(uint64_t seed) {
  size_t n, untouched = 77;
  int64_t planned, *numbers = saved(seed, &n, &planned), *none = numbers;
  struct device d = new_device(seed, 0);
  int steps;
  for (int fail = 1; fail <= 10; fail++) {
    d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + fail;
    EXPECT_CODE(mgd_step_file_load(d.m, 1, numbers, n, &steps), MGD_E_NOMEM);
    EXPECT_INT(steps, 0);
    EXPECT_INT(state(&d).known, 0);
    EXPECT(state(&d).logs == (fail > 1));
    EXPECT_OK(mgd_step_learn(d.m, false));
    EXPECT_OK(mgd_step_learn(d.m, true));
  }
  d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + 11;
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  EXPECT_INT(state(&d).known, 1);
  d.m->alloc.fail_at = atomic_load(&d.m->alloc.made) + 1;
  steps = 77;
  EXPECT_CODE(mgd_step_file_save(d.m, 1, &none, &untouched, &steps), MGD_E_NOMEM);
  EXPECT(none == numbers && untouched == 77 && steps == 77);
  EXPECT_OK(mgd_step_file_save(d.m, 1, &none, &untouched, &steps));
  EXPECT(none != numbers && untouched == n && steps == 1);
  free(none);
  free(numbers);
  give_up(&d);
}

/* ---- which storage has which role */

/* Storages that were pinned when the step was learned have no role, in another process too. */
static void what_was_pinned_has_no_role(uint64_t seed) {
  struct device d = new_device(seed, 0);
  int64_t *numbers;
  size_t n;
  int steps;
  for (int i = 0; i < 2; i++) { EXPECT_OK(mgd_handle_pin(d.m, &d.weights[i]->h, MGD_PIN_ASKED, true)); }
  for (int i = 0; i < 8; i++) { train(&d); }
  EXPECT(state(&d).follows);
  EXPECT_INT(d.m->devices[1].step->known[0].alive, LAYERS - 2);
  EXPECT_OK(mgd_step_file_save(d.m, 1, &numbers, &n, &steps));
  give_up(&d);
  d = new_device(seed + 1, 0);
  EXPECT_OK(mgd_step_file_load(d.m, 1, numbers, n, &steps));
  train(&d);
  train(&d);
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).lost, 0);
  for (int i = 0; i < LAYERS; i++) { EXPECT((d.weights[i]->h.role[0] >= 0) == (i >= 2)); }
  free(numbers);
  give_up(&d);
}

/* ---- steps of operators "o0", "o1" and so on, each of which uses two of three storages */

#define PART 20 /* operators of each of two parts */

static struct storage *three[3];

static bool issue_part(struct device *d, int o) {
  static char name[2 * PART][16];
  struct storage *const two[] = {three[o % 3], three[(o + 1) % 3]};
  (void)snprintf(name[o], sizeof name[o], "o%d", o);
  return issue(d, name[o], two, 2);
}

/* Operators of no step, each with a name of its own, and as many as lose the plan. */
static void issue_strangers(struct device *d) {
  static char name[7 * 8][16];
  static int named;
  for (int i = 0; i < 7; i++, named = (named + 1) % (7 * 8)) {
    (void)snprintf(name[named], sizeof name[named], "x%d", named);
    EXPECT(!issue(d, name[named], NULL, 0));
  }
}

static struct device with_three(uint64_t seed) {
  struct device d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  for (int i = 0; i < 3; i++) { three[i] = make(&d, SIZE); }
  EXPECT_OK(mgd_step_begin(d.m, 1));
  return d;
}

static void give_up_three(struct device *d) {
  for (int i = 0; i < 3; i++) { drop(d, &three[i]); }
  give_up(d);
}

static const struct mgd_step_learned *known(const struct device *d, int slot) {
  return &d->m->devices[1].step->known[slot];
}

/* The step of so many operators in numbers. The caller frees them. */
static int64_t *saved_parts(uint64_t seed, int operators, size_t *n) {
  struct device d = with_three(seed);
  int64_t *numbers = NULL;
  int steps, o = 0;
  for (bool plans = false; !plans; o = (o + 1) % operators) { plans = issue_part(&d, o); }
  EXPECT_OK(mgd_step_plan(d.m, 1, -SIZE / 2, 0, NULL));
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).operators, operators);
  EXPECT_OK(mgd_step_file_save(d.m, 1, &numbers, n, &steps));
  EXPECT_INT(steps, 1);
  give_up_three(&d);
  return numbers;
}

static void load(struct device *d, const int64_t *numbers, size_t n) {
  int steps;
  EXPECT_OK(mgd_step_file_load(d->m, 1, numbers, n, &steps));
  EXPECT_INT(steps, 1);
}

/* The operator at which the step is recognized names one storage twice. It takes the first role, and the second one
 * stays free for another storage. */
static void a_storage_takes_one_role(uint64_t seed) {
  size_t n;
  int64_t *numbers = saved_parts(seed, PART, &n);
  struct device d = with_three(seed);
  load(&d, numbers, n);
  const struct mgd_step_learned *l = known(&d, 0);
  for (int o = 0; o < MGD_STEP_WINDOW - 1; o++) { EXPECT(!issue_part(&d, o)); }
  EXPECT(!state(&d).follows);
  struct storage *const same[] = {three[0], three[0]};
  EXPECT(!issue(&d, "o7", same, 2));
  EXPECT(state(&d).follows);
  const int32_t o = (state(&d).at + PART - 1) % PART, *roles = &l->use_roles[l->kinds[o].first_use];
  EXPECT(roles[0] >= 0 && roles[1] >= 0 && roles[0] != roles[1]);
  EXPECT_INT(three[0]->h.role[0], roles[0]);
  EXPECT(l->role[roles[0]].handle == &three[0]->h && !l->role[roles[0]].unseen);
  EXPECT(!l->role[roles[1]].handle && l->role[roles[1]].unseen);
  EXPECT_INT(l->alive, 3);
  issue_strangers(&d); /* and both are free again when the plan is lost */
  EXPECT(state(&d).logs && !l->role[roles[0]].handle && l->role[roles[0]].unseen && l->role[roles[1]].unseen);
  EXPECT_INT(three[0]->h.role[0], -1);
  EXPECT_INT(l->alive, 3);
  free(numbers);
  give_up_three(&d);
}

/* A loaded plan that is lost in its first two periods may have been taken up at another place: no storage keeps its
 * role, and the step is recognized again. Later its roles are certain. */
static void a_lost_loaded_step_gives_its_roles_back(uint64_t seed) {
  size_t n;
  int64_t *numbers = saved_parts(seed, PART, &n);
  struct device d = with_three(seed);
  load(&d, numbers, n);
  const struct mgd_step_learned *l = known(&d, 0);
  for (int k = 1; k <= 2; k++) {
    for (int o = 0; o < PART; o++) { EXPECT(!issue_part(&d, o)); }
    EXPECT(state(&d).follows);
    for (int i = 0; i < 3; i++) { EXPECT(three[i]->h.role[0] >= 0); }
    issue_strangers(&d);
    EXPECT(state(&d).logs);
    EXPECT_INT(state(&d).lost, k);
    EXPECT_INT(state(&d).laps, k);
    for (int i = 0; i < 3; i++) { EXPECT((three[i]->h.role[0] >= 0) == (k == 2)); }
    EXPECT_INT(l->alive, 3);
  }
  free(numbers);
  give_up_three(&d);
}

/* Plans that are lost again and again are compared with what the program does without any. If that was never measured,
 * they stay. */
static void what_was_never_measured_keeps_the_plan(uint64_t seed) {
  enum { WINDOW = 4 * PART };
  size_t n;
  int64_t *numbers = saved_parts(seed, PART, &n);
  struct device d = with_three(seed);
  load(&d, numbers, n);
  const struct mgd_step_trial *t = &d.m->devices[1].step->trial;
  int issued = 0;
  for (; issued < WINDOW; issued += PART + 7) {
    for (int o = 0; o < PART; o++) { EXPECT(!issue_part(&d, o)); }
    issue_strangers(&d);
  }
  EXPECT_INT(state(&d).lost, 3);
  EXPECT_INT(t->length, WINDOW);
  EXPECT_INT(t->operators, issued - WINDOW - 1); /* the first operator begins a window and is not in it */
  EXPECT(t->with.used > 0 && t->without.used <= 0);
  EXPECT(t->away == 0 && t->doublings == 0);
  for (int o = 0; o < PART; o++) { EXPECT(!issue_part(&d, o)); }
  EXPECT(state(&d).follows);
  free(numbers);
  give_up_three(&d);
}

/* ---- places for steps */

/* Steps are loaded into empty places first, and then into that of the step taken up longest ago. If that is the one
 * that is followed, it is lost. */
static void a_followed_step_gives_its_place_up(uint64_t seed) {
  size_t n;
  int64_t *numbers = saved_parts(seed, PART, &n);
  struct device d = with_three(seed);
  for (int o = 0, due = 0; !due; o = (o + 1) % PART) { due = issue_part(&d, o); }
  EXPECT_OK(mgd_step_plan(d.m, 1, -SIZE / 2, 0, NULL));
  for (int i = 2; i <= MGD_STEP_PLANS; i++) {
    load(&d, numbers, n);
    EXPECT(state(&d).follows);
    EXPECT_INT(state(&d).known, i);
  }
  load(&d, numbers, n);
  EXPECT(state(&d).logs);
  EXPECT_INT(state(&d).lost, 1);
  EXPECT_INT(state(&d).known, MGD_STEP_PLANS);
  for (int i = 0; i < 3; i++) { EXPECT_INT(three[i]->h.role[0], -1); }
  free(numbers);
  give_up_three(&d);
}

/* A period is found, and the known step is recognized at the same operator: the period is planned only if it is longer
 * than that step. */
static void a_known_step_is_preferred_to_a_shorter_period(uint64_t seed) {
  for (int is_longer = 0; is_longer < 2; is_longer++) {
    const int operators = is_longer ? PART : 2 * PART, period = is_longer ? 2 * PART : PART;
    size_t n;
    int64_t *numbers = saved_parts(seed, operators, &n);
    struct device d = with_three(seed);
    for (int i = 0; i < 2 * period; i++) { (void)issue_part(&d, i % period); }
    EXPECT(mgd_step_logs(d.m, 1));
    load(&d, numbers, n);
    bool plans = true;
    int o = 0;
    for (; !state(&d).follows; o++) {
      EXPECT(plans);
      plans = issue_part(&d, o);
    }
    EXPECT(plans == is_longer);
    EXPECT_INT(o, MGD_STEP_WINDOW);
    EXPECT_INT(state(&d).operators, operators);
    EXPECT_OK(mgd_step_plan(d.m, 1, -SIZE / 2, 0, NULL));
    EXPECT_INT(state(&d).operators, 2 * PART);
    EXPECT_INT(state(&d).known, 1 + is_longer);
    free(numbers);
    give_up_three(&d);
  }
}

/* A program may come to the step from the file long after its begin. */
static void a_step_from_a_file_is_waited_for(uint64_t seed) {
  size_t n;
  int64_t *numbers = saved_parts(seed, PART, &n);
  struct device d = with_three(seed);
  int issued = 0;
  load(&d, numbers, n);
  for (; state(&d).logs; issued++) { (void)issue(&d, "strange", NULL, 0); }
  EXPECT_INT(issued, QUIET + 1);
  EXPECT_INT(state(&d).known, 0);
  EXPECT_INT(state(&d).logged, 0);
  free(numbers);
  give_up_three(&d);
}

int main(int argc, char **argv) {
  static void (*const tests[])(uint64_t) = {
      a_step_goes_through_a_file,
      another_program_learns_its_own,
      a_file_is_planned_for_the_room,
      a_damaged_file_is_harmless,
      each_number_of_the_head_is_checked,
      the_largest_room_is_planned,
      steps_before_a_damaged_one_are_loaded,
      without_memory_nothing_is_loaded_or_saved,
      what_was_pinned_has_no_role,
      a_storage_takes_one_role,
      a_lost_loaded_step_gives_its_roles_back,
      what_was_never_measured_keeps_the_plan,
      a_followed_step_gives_its_place_up,
      a_known_step_is_preferred_to_a_shorter_period,
      a_step_from_a_file_is_waited_for,
  };
  return RUN_ALL(tests);
}
