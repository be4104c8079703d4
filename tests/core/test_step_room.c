/* The room that a plan is made for: what the allocator could give now, a part of its pieces that is found by trial, and
 * what is left free.
 *
 * Usage: test_step_room [seed]
 */
#include "trainer.h"

#define SIZE 600000
#define HOME (2 * SIZE + LAYERS * WEIGHT) /* bytes of storages that are home and may leave */

static struct device d;
static struct storage *two[2];
static int next; /* the operator that comes next */

static bool issue_one(void) {
  next = 1 - next;
  return issue(&d, next ? "one" : "other", &two[1 - next], 1);
}

/* A device on which a step that repeats has just ended. */
static void set_up(uint64_t seed) {
  d = new_device(seed, 0);
  d.room = INT64_C(1) << 40;
  next = 0;
  for (int i = 0; i < 2; i++) { two[i] = make(&d, SIZE); }
  EXPECT_OK(mgd_step_begin(d.m, 1));
  while (!issue_one()) {}
}

static void tear_down(void) {
  for (int i = 0; i < 2; i++) { drop(&d, &two[i]); }
  give_up(&d);
}

static int plan(int64_t free, int64_t pieces) { return mgd_step_plan(d.m, 1, free, pieces, NULL); }

static void expect_plan(int64_t free, int64_t pieces, int64_t plans, int64_t room) {
  EXPECT_OK(plan(free, pieces));
  EXPECT(state(&d).follows);
  EXPECT_INT(state(&d).plans, plans);
  EXPECT_INT(state(&d).room, room);
}

/* Follows the plan through two periods, in which bytes had to leave for what is not planned. */
static void be_short_of_room(void) {
  bool plans = false;
  for (int i = 0; i < 4; i++) {
    plans = issue_one() || plans;
    d.m->devices[1].storages.pressed += SIZE;
  }
  EXPECT(plans && d.m->devices[1].step->known[0].missed > 0);
}

/* ---- the limits */

/* An operator's own storage does not fit: the step is not followed, and is planned again 16 periods later. */
static void a_step_without_room_is_not_followed(uint64_t seed) {
  set_up(seed);
  EXPECT_CODE(plan(-HOME - 1, 0), MGD_E_NO_ROOM);
  EXPECT(state(&d).logs && state(&d).known == 0);
  for (int i = 1; i < 2 * 16; i++) { EXPECT(!issue_one()); }
  EXPECT(issue_one());
  expect_plan(-SIZE / 2, 0, 1, HOME - SIZE / 2 - (HOME - SIZE / 2) / 1024);
  tear_down();
}

/* A plan that cannot be made again stays as it was. */
static void a_plan_stays_if_there_is_no_room_for_another(uint64_t seed) {
  const int64_t room = HOME - SIZE / 2 - (HOME - SIZE / 2) / 1024;
  set_up(seed);
  expect_plan(-SIZE / 2, 0, 1, room);
  const struct mgd_plan *made = d.m->devices[1].step->known[0].plan;
  EXPECT_CODE(plan(-HOME, 0), MGD_E_NO_ROOM);
  EXPECT(state(&d).follows && d.m->devices[1].step->known[0].plan == made);
  EXPECT_INT(state(&d).room, room);
  EXPECT_INT(state(&d).plans, 2);
  tear_down();
}

/* There is room enough, so there is nothing to plan; unless bytes had to leave all the same. */
static void a_step_with_room_is_followed_if_bytes_had_to_leave(uint64_t seed) {
  set_up(seed);
  EXPECT_CODE(plan(INT64_MAX, 0), MGD_E_WAIT);
  EXPECT(state(&d).logs && state(&d).known == 0);
  EXPECT(!issue_one());
  d.m->devices[1].storages.pressed += SIZE;
  EXPECT(issue_one());
  expect_plan(INT64_MAX, 0, 1, INT64_MAX - INT64_MAX / 1024 + HOME);
  EXPECT_INT(state(&d).bytes_in, 0);
  tear_down();
}

/* ---- pieces */

/* 400,000 bytes less than all are certain, and pieces of 300,000 may help. The room is raised half of the way to all as
 * long as it is enough, by at least a 32nd of all. */
#define LESS 400000
#define PIECES 300000
#define WHOLE (HOME - LESS + PIECES)
#define CERTAIN (HOME - LESS - WHOLE / 1024)

static void more_room_is_tried_while_it_is_enough(uint64_t seed) {
  int64_t room = CERTAIN, plans = 1;
  set_up(seed);
  expect_plan(-LESS, PIECES, 1, room);
  while ((WHOLE - room) / 2 >= WHOLE / 32) {
    room += (WHOLE - room) / 2;
    expect_plan(-LESS, PIECES, ++plans, room);
  }
  EXPECT_INT(plans, 4);
  expect_plan(-LESS, PIECES, plans, room);
  tear_down();
}

/* The last room that was enough is taken again; what was too much bounds the next try. If none was enough yet, the room
 * shrinks by half of what is not certain, or by a 16th of all. */
static void less_room_is_taken_when_it_was_too_much(uint64_t seed) {
  const int64_t more = CERTAIN + (WHOLE - CERTAIN) / 2;
  set_up(seed);
  expect_plan(-LESS, PIECES, 1, CERTAIN);
  expect_plan(-LESS, PIECES, 2, more);
  be_short_of_room();
  expect_plan(-LESS, PIECES, 3, CERTAIN);
  expect_plan(-LESS, PIECES, 4, CERTAIN + (more - CERTAIN) / 2);
  tear_down();

  set_up(seed);
  expect_plan(-LESS, PIECES, 1, CERTAIN);
  be_short_of_room();
  expect_plan(-LESS, PIECES, 2, CERTAIN - WHOLE / 16);
  tear_down();
}

/* Eight plans are made to find the room: the ninth is not, although there is more to try. */
static void the_search_for_room_ends(uint64_t seed) {
  int64_t plans = 1;
  set_up(seed);
  expect_plan(-LESS, PIECES, plans, CERTAIN);
  for (int64_t less = LESS; plans < MGD_STEP_TRIES - 1; plans++) {
    less += less > LESS ? -SIZE / 8 : SIZE / 8; /* the room has changed */
    const int64_t whole = HOME - less + PIECES;
    expect_plan(-less, PIECES, plans + 1, HOME - less - WHOLE / 1024);
    EXPECT_INT(d.m->devices[1].step->known[0].whole, whole);
  }
  const int64_t room = state(&d).room, whole = d.m->devices[1].step->known[0].whole, free = whole - PIECES - HOME;
  expect_plan(free, PIECES, MGD_STEP_TRIES, room + (whole - room) / 2);
  EXPECT((whole - state(&d).room) / 2 >= whole / 32);
  expect_plan(free, PIECES, MGD_STEP_TRIES, room + (whole - room) / 2);
  tear_down();
}

int main(int argc, char **argv) {
  static void (*const tests[])(uint64_t) = {
      a_step_without_room_is_not_followed,
      a_plan_stays_if_there_is_no_room_for_another,
      a_step_with_room_is_followed_if_bytes_had_to_leave,
      more_room_is_tried_while_it_is_enough,
      less_room_is_taken_when_it_was_too_much,
      the_search_for_room_ends,
  };
  return RUN_ALL(tests);
}
