/* The invariants of internal_clock.h that take more than one wrong field, or a clock with a history: each is broken on
 * purpose, and mgd_clock_check() must see it. The state is put back afterwards. test_check.c has the others. */
#include "clock/internal_clock.h"
#include "expect.h"

#define HOST (-1)
#define ME 0

/* Sets the field and expects the check to see it, then puts the field back. */
#define EXPECT_BROKEN(c, field, ...)               \
  do {                                             \
    const __typeof__(field) before_ = (field);     \
    EXPECT_INT(mgd_clock_check(c), MGD_OK);        \
    (field) = __VA_ARGS__;                         \
    EXPECT_CODE(mgd_clock_check(c), MGD_E_BROKEN); \
    (field) = before_;                             \
    EXPECT_INT(mgd_clock_check(c), MGD_OK);        \
  } while (0)

/* Two devices; an operator of device 0 runs from 0 to 10. */
static struct mgd_clock *new_clock(void) {
  struct mgd_clock *c = NULL;
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 10.0, NULL};
  EXPECT_OK(mgd_clock_create(2, &c));
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.bytes_per_ns = 1.0}));
  EXPECT_OK(mgd_clock_run(c, ME, 0, 0, &work));
  return c;
}

static void copy(struct mgd_clock *c, int from, int to, int stream) {
  const struct mgd_transfer t = {from, stream, to, stream, 5, false, NULL};
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
}

static void merged_bytes_are_a_part(void) {
  struct mgd_clock *c = new_clock();
  struct mgd_hold *holds[2] = {NULL};
  for (int i = 0; i < 2; i++) { EXPECT_OK(mgd_clock_hold_take(c, 0, 0, 8, &holds[i])); }
  for (int i = 0; i < 2; i++) { mgd_clock_hold_give(c, holds[i], NULL); }
  EXPECT_INT(mgd_clock_place_of(c, 0)->streams[0].leaving_count, 2);
  EXPECT_BROKEN(c, holds[0]->merged, -1);
  EXPECT_BROKEN(c, holds[0]->merged, 9);
  EXPECT_BROKEN(c, holds[1]->merged, 9);
  mgd_clock_destroy(c);
}

/* The host's streams are threads: no operation waits there, and no bytes are given up there. */
static void the_host_has_no_queue(void) {
  struct mgd_clock *c = new_clock();
  struct mgd_clock_stream *s = &mgd_clock_place_of(c, HOST)->streams[ME];
  const struct mgd_clock_stream before = *s;
  struct mgd_hold hold = {.bytes = 0};
  struct mgd_task task = {.kind = MGD_TASK_WAIT, .references = 1, .streams = {s, NULL}};
  s->leaving = s->leaving_last = &hold;
  s->leaving_count = 1;
  EXPECT_CODE(mgd_clock_check(c), MGD_E_BROKEN);
  *s = before;
  s->first = s->last = &task;
  s->queued = 1;
  EXPECT_CODE(mgd_clock_check(c), MGD_E_BROKEN);
  *s = before;
  EXPECT_OK(mgd_clock_check(c));
  mgd_clock_destroy(c);
}

/* No copy leads from a device to itself. */
static void the_link_to_itself_is_unused(void) {
  struct mgd_clock *c = new_clock();
  struct mgd_clock_link *own = mgd_clock_link_of(c, 0, 0), *out = mgd_clock_link_of(c, 0, HOST);
  EXPECT_BROKEN(c, own->free_at, 1);
  copy(c, 0, HOST, 0);
  struct mgd_task *t = c->ties;
  EXPECT(t && t->link == out && out->queued == 1);
  t->link = own;
  own->queued = 1;
  out->queued = 0;
  EXPECT_CODE(mgd_clock_check(c), MGD_E_BROKEN);
  t->link = out;
  own->queued = 0;
  out->queued = 1;
  EXPECT_OK(mgd_clock_check(c));
  mgd_clock_destroy(c);
}

/* Two copies are first of their streams. A third stands behind the first, with an operator at the end. */
static void the_fronts_are_in_order(void) {
  struct mgd_clock *c = new_clock();
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 10.0, NULL};
  EXPECT_OK(mgd_clock_run(c, ME, 0, 1, &work));
  copy(c, 0, HOST, 0);
  copy(c, 0, HOST, 1);
  copy(c, 0, HOST, 0);
  struct mgd_task *first = c->fronts, *second = c->fronts_last, *third = c->ties_last;
  EXPECT(first != second && first->front_after == second && second->front_before == first && third != second);
  EXPECT_BROKEN(c, first->front_before, second);
  EXPECT_BROKEN(c, second->front_before, NULL);
  EXPECT_BROKEN(c, second->front_after, third); /* one more than there are */
  EXPECT_BROKEN(c, first->front_after, NULL);
  EXPECT_BROKEN(c, third->is_front, true);
  EXPECT_BROKEN(c, c->fronts, second);
  EXPECT_BROKEN(c, c->fronts_last, first);
  mgd_clock_destroy(c);
}

/* Turns are apart, so that each has a place of its own, up to the most that are remembered. */
static void turns_have_a_limit(void) {
  struct mgd_clock *c = new_clock();
  EXPECT_OK(mgd_clock_wiring_set_speed(c, 0, (struct mgd_speed){.issue_ns = 10, .python_ns = 5}));
  const struct mgd_work nothing = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, 0.0, NULL};
  for (int i = 0; i < MGD_CLOCK_TURNS + 100; i++) { EXPECT_OK(mgd_clock_run(c, ME, 0, 0, &nothing)); }
  EXPECT_INT(c->lock.last - c->lock.first, MGD_CLOCK_TURNS);
  EXPECT(c->lock.first > 0);
  EXPECT_BROKEN(c, c->lock.first, c->lock.first - 1); /* one more, which was forgotten */
  EXPECT_BROKEN(c, c->lock.last, c->lock.first - 1);
  EXPECT_BROKEN(c, c->lock.room, c->lock.last - 1);
  mgd_clock_destroy(c);
}

int main(void) {
  merged_bytes_are_a_part();
  the_host_has_no_queue();
  the_link_to_itself_is_unused();
  the_fronts_are_in_order();
  turns_have_a_limit();
  return 0;
}
