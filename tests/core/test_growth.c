/* What waits on the host is counted, and one warning is due when it has grown in many steps in a row. */
#include "core/internal_machine.h"
#include "handles.h"

#define MOST 1000

/* A machine with one device and a limit of the host's memory, and the storages that the test has made there. */
struct program {
  struct mgd_machine *m;
  struct mgd_handle *kept[MOST];
  int first, count;
};

static struct program begin(int64_t limit) {
  struct program p = {.m = new_directory(1)};
  EXPECT_OK(mgd_host_set_limit(p.m, limit));
  return p;
}

static void keep(struct program *p, int64_t bytes) {
  p->kept[p->count] = open_handle(p->m, 1, bytes, (uint64_t)p->count + 1);
  p->kept[p->count]->site = mgd_growth_notes(p->m) ? (uint32_t)p->count + 1 : 0;
  spill(p->m, p->kept[p->count++], MGD_HOST);
}

static void drop(struct program *p) { close_handle(p->m, p->kept[p->first++]); }

static void end(struct program *p) {
  while (p->first < p->count) { drop(p); }
  EXPECT_INT(p->m->host.growth.waiting, 0);
  mgd_machine_destroy(p->m);
}

/* Ends steps, before each of which a storage is kept. Returns how many ended until a warning was due, or 0. */
static int steps(struct program *p, enum mgd_growth_end kind, int n, struct mgd_growth_found *found) {
  for (int i = 1; i <= n; i++) {
    keep(p, 10);
    if (mgd_growth_end_step(p->m, kind, found)) { return i; }
  }
  return 0;
}

static void fifty_steps_in_a_row_are_due_once(void) {
  for (int kind = MGD_GROWTH_BACKWARD; kind <= MGD_GROWTH_OPTIMIZER; kind++) {
    struct program p = begin(INT64_MAX);
    struct mgd_growth_found found = {0};
    EXPECT_INT(steps(&p, (enum mgd_growth_end)kind, 100, &found), 50);
    EXPECT_INT(found.bytes_a_step, 10);
    EXPECT_INT(found.waiting, 500);
    EXPECT_INT(found.site, 9); /* the first that was noted */
    EXPECT(!mgd_growth_notes(p.m));
    EXPECT_INT(steps(&p, (enum mgd_growth_end)kind, 100, &found), 0);
    end(&p);
  }
}

static void a_step_without_growth_begins_anew(void) {
  struct program p = begin(INT64_MAX);
  struct mgd_growth_found found = {0};
  for (int i = 0; i < 5; i++) {
    EXPECT_INT(steps(&p, MGD_GROWTH_OPTIMIZER, 49, &found), 0);
    EXPECT(mgd_growth_notes(p.m));
    EXPECT(!mgd_growth_end_step(p.m, MGD_GROWTH_OPTIMIZER, &found));
    EXPECT(!mgd_growth_notes(p.m));
  }
  keep(&p, 7);
  EXPECT(!mgd_growth_end_step(p.m, MGD_GROWTH_OPTIMIZER, &found));
  EXPECT_INT(steps(&p, MGD_GROWTH_OPTIMIZER, 50, &found), 49);
  EXPECT_INT(found.bytes_a_step, (49 * 10 + 7) / 50);
  end(&p);
}

static void a_list_of_constant_size_is_not_due(void) {
  struct program p = begin(200);
  struct mgd_growth_found found;
  for (int i = 0; i < 500; i++) {
    keep(&p, 10);
    if (i >= 10) { drop(&p); }
    EXPECT(!mgd_growth_end_step(p.m, (enum mgd_growth_end)(i % 3), &found));
  }
  end(&p);
}

static void parts_of_a_longer_step_are_not_steps(void) {
  struct program p = begin(2000);
  struct mgd_growth_found found;
  for (int i = 0; i < 10; i++) {
    EXPECT_INT(steps(&p, MGD_GROWTH_CALL, 45, &found), 0);
    while (p.first < p.count) { drop(&p); }
    EXPECT(!mgd_growth_end_step(p.m, MGD_GROWTH_BACKWARD, &found));
  }
  EXPECT_INT(steps(&p, MGD_GROWTH_CALL, 200, &found), 91);
  end(&p);
}

static void calls_are_due_when_a_quarter_of_the_host_is_used(void) {
  struct program p = begin(4000);
  struct mgd_growth_found found;
  EXPECT_INT(steps(&p, MGD_GROWTH_CALL, 200, &found), 100);
  EXPECT_INT(found.waiting, 1000);
  end(&p);
}

/* What comes home in each call and leaves again is a cache: it may grow. */
static void what_is_used_in_each_call_is_not_due(void) {
  struct program p = begin(2000);
  struct mgd_growth_found found;
  for (int i = 0; i < 200; i++) {
    keep(&p, 10);
    for (int k = 0; k < p.count; k++) {
      restore(p.m, p.kept[k]);
      spill(p.m, p.kept[k], MGD_HOST);
    }
    EXPECT(!mgd_growth_end_step(p.m, MGD_GROWTH_CALL, &found));
  }
  end(&p);
}

static void only_what_is_on_the_host_and_not_at_home_waits(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 10, 1), *guest = open_handle(m, 1, 20, 2);
  spill(m, guest, 2);
  EXPECT_INT(m->host.growth.waiting, 0);
  spill(m, h, MGD_HOST);
  EXPECT_INT(m->host.growth.waiting, 10);
  restore(m, h);
  EXPECT(h->memory); /* a spare */
  EXPECT_INT(m->host.growth.waiting, 0);
  close_handle(m, h);
  close_handle(m, guest);
  mgd_machine_destroy(m);
}

/* A warning is due after the next step; 49 of the storages that wait were made by then. */
static struct program almost_due(void) {
  struct program p = {.m = new_directory(2)};
  struct mgd_growth_found found;
  EXPECT_INT(steps(&p, MGD_GROWTH_OPTIMIZER, MGD_GROWTH_STEPS - 1, &found), 0);
  return p;
}

static struct mgd_growth_found found_with(struct program *p, int64_t bytes) {
  struct mgd_growth_found found = {.site = 77};
  keep(p, bytes);
  EXPECT(mgd_growth_end_step(p->m, MGD_GROWTH_OPTIMIZER, &found));
  return found;
}

/* The oldest storage by its last use, which may be another than the one that was made first. */
static void the_oldest_by_use_has_the_line(void) {
  struct program p = almost_due();
  p.kept[8]->stamp = MOST;
  EXPECT_INT(found_with(&p, 10).site, 10);
  end(&p);
}

/* If no storage that waits on the host has a site, one at home or on a peer has to do; and if none has any, it is 0. */
static void storages_that_do_not_wait_come_last(void) {
  const uint32_t at_home[] = {500, 500, 500, 0}, on_peer[] = {501, 501, 501, 0}, expected[] = {9, 500, 501, 0};
  for (int i = 0; i < 4; i++) {
    struct program p = almost_due();
    struct mgd_handle *home = open_handle(p.m, 1, 10, i == 1 ? 0 : 5), *guest = open_handle(p.m, 1, 10, 3);
    spill(p.m, guest, 2);
    home->site = at_home[i];
    guest->site = on_peer[i];
    for (int k = 0; k < p.count && i > 0; k++) { p.kept[k]->site = 0; }
    __atomic_store_n(&p.m->host.growth.notes, i == 0, __ATOMIC_RELAXED); /* the last one gets no site either */
    EXPECT_INT(found_with(&p, 10).site, expected[i]);
    close_handle(p.m, home);
    close_handle(p.m, guest);
    end(&p);
  }
}

static void the_most_bytes_that_a_number_holds(void) {
  struct program p = almost_due();
  const struct mgd_growth_found found = found_with(&p, INT64_MAX - 10 * (MGD_GROWTH_STEPS - 1));
  EXPECT_INT(found.waiting, INT64_MAX);
  EXPECT_INT(found.bytes_a_step, INT64_MAX / MGD_GROWTH_STEPS);
  end(&p);
}

int main(void) {
  fifty_steps_in_a_row_are_due_once();
  a_step_without_growth_begins_anew();
  a_list_of_constant_size_is_not_due();
  parts_of_a_longer_step_are_not_steps();
  calls_are_due_when_a_quarter_of_the_host_is_used();
  what_is_used_in_each_call_is_not_due();
  only_what_is_on_the_host_and_not_at_home_waits();
  the_oldest_by_use_has_the_line();
  storages_that_do_not_wait_come_last();
  the_most_bytes_that_a_number_holds();
  return 0;
}
