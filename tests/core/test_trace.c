/* The ring holds the newest events, totals remember all of them. */
#include "expect.h"

static struct mgd_machine *small_ring(size_t events, int accelerators) {
  struct mgd_machine *m = NULL;
  const struct mgd_config config = {.trace_events = events};
  char name[2] = "a";
  int id;
  EXPECT_OK(mgd_machine_create(&config, &m));
  for (int i = 0; i < accelerators; i++, name[0]++) {
    EXPECT_OK(mgd_device_add(m, name, MIB, &id));
  }
  return m;
}

static void add(struct mgd_machine *m, int kind, uint64_t object, int from, int to, int64_t bytes) {
  const struct mgd_event e = {.kind = (int16_t)kind,
                              .object = object,
                              .from = (int16_t)from,
                              .to = (int16_t)to,
                              .bytes = bytes,
                              .duration = 2,
                              .time = 5,
                              .operator_name = "aten::add",
                              .reason = MGD_WHY_COST};
  EXPECT_OK(mgd_trace_add(m, &e));
}

static void events_come_back_whole_and_newest_last(void) {
  struct mgd_machine *m = small_ring(8, 2);
  struct mgd_event out[8];
  size_t n = 8;
  uint64_t dropped = 77;
  add(m, MGD_EV_MOVE, 4, 1, 2, 10);
  add(m, MGD_EV_COPY, 5, 2, 1, 20);
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped));
  EXPECT_INT(n, 2);
  EXPECT_INT(dropped, 0);
  EXPECT_INT(out[0].sequence, 1);
  EXPECT_INT(out[1].sequence, 2);
  EXPECT_INT(out[1].object, 5);
  EXPECT_INT(out[1].time, 5);
  EXPECT_INT(out[1].duration, 2);
  EXPECT_INT(out[1].bytes, 20);
  EXPECT_TEXT(out[1].operator_name, "aten::add");
  EXPECT_INT(out[1].kind, MGD_EV_COPY);
  EXPECT_INT(out[1].reason, MGD_WHY_COST);
  EXPECT_INT(out[1].from, 2);
  EXPECT_INT(out[1].to, 1);
  EXPECT_INT(out[1].site, 0);
  mgd_machine_destroy(m);
}

static void a_full_ring_forgets_the_oldest_and_says_so(void) {
  struct mgd_machine *m = small_ring(4, 1);
  struct mgd_event out[8];
  size_t n = 8;
  uint64_t dropped = 0;
  for (int i = 1; i <= 10; i++) {
    add(m, MGD_EV_PLACE, (uint64_t)(i % 2 + 1), -1, 1, i);
  }
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped));
  EXPECT_INT(n, 4);
  EXPECT_INT(dropped, 6);
  EXPECT_INT(out[0].bytes, 7);
  EXPECT_INT(out[3].bytes, 10);
  n = 8;
  EXPECT_OK(mgd_trace_read(m, 2, out, &n, &dropped)); /* object 2: odd events */
  EXPECT_INT(n, 2);
  EXPECT_INT(out[0].bytes, 7);
  EXPECT_INT(out[1].bytes, 9);
  n = 1;
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped)); /* little room: the newest */
  EXPECT_INT(n, 1);
  EXPECT_INT(out[0].bytes, 10);
  n = 0;
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped));
  EXPECT_INT(n, 0);
  n = 8;
  EXPECT_OK(mgd_trace_read(m, 99, out, &n, &dropped));
  EXPECT_INT(n, 0);
  mgd_machine_destroy(m);
}

#define EXPECT_LINK(m, from, to, bytes, count) EXPECT_TOTAL(totals_of(m).by_link[from][to], count, bytes, 2 * (count))

static void totals_never_forget(void) {
  struct mgd_machine *m = small_ring(2, 2);
  for (int i = 0; i < 100; i++) {
    add(m, MGD_EV_COPY, 1, 0, 1, 3);
    add(m, MGD_EV_MOVE, 1, 1, 2, 5);
    add(m, MGD_EV_WRITE_BACK, 1, 1, 0, 7);
    add(m, MGD_EV_PLACE, 1, 0, 1, 11); /* carries nothing over the link */
  }
  add(m, MGD_EV_COPY, 1, -1, 1, 13); /* no known source, no link */
  add(m, MGD_EV_COPY, 1, 1, -1, 17);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_COPY], 102, 330, 204);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_MOVE], 100, 500, 200);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_PLACE], 100, 1100, 200);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_PIN], 0, 0, 0);
  EXPECT_LINK(m, 0, 1, 300, 100);
  EXPECT_LINK(m, 1, 2, 500, 100);
  EXPECT_LINK(m, 1, 0, 700, 100);
  EXPECT_LINK(m, 2, 1, 0, 0);
  mgd_machine_destroy(m);
}

static void a_reset_begins_totals_again_and_keeps_history(void) {
  struct mgd_machine *m = small_ring(4, 1);
  struct mgd_event out[4];
  size_t n = 4;
  uint64_t dropped;
  add(m, MGD_EV_COPY, 1, 0, 1, 3);
  struct mgd_totals before;
  EXPECT_OK(mgd_trace_totals(m, true, &before));
  EXPECT_TOTAL(before.by_kind[MGD_EV_COPY], 1, 3, 2);
  EXPECT_TOTAL(before.by_link[0][1], 1, 3, 2);
  EXPECT_INT(before.events, 1);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_COPY], 0, 0, 0);
  EXPECT_LINK(m, 0, 1, 0, 0);
  EXPECT_INT(totals_of(m).events, 1); /* what is in the ring is told apart by it */
  add(m, MGD_EV_COPY, 1, 0, 1, 4);
  EXPECT_OK(mgd_trace_read(m, 1, out, &n, &dropped));
  EXPECT_INT(n, 2);
  EXPECT_INT(out[1].sequence, 2);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_COPY], 1, 4, 2);
  mgd_machine_destroy(m);
}

static void objects_get_ids_from_1_on(void) {
  struct mgd_machine *m = small_ring(4, 0);
  EXPECT_INT(mgd_trace_new_object(m), 1);
  EXPECT_INT(mgd_trace_new_object(m), 2);
  struct mgd_totals totals;
  EXPECT_OK(mgd_trace_totals(m, true, &totals));
  EXPECT_INT(mgd_trace_new_object(m), 3);
  mgd_machine_destroy(m);
}

static void nonsense_is_refused_and_changes_nothing(void) {
  struct mgd_machine *m = small_ring(4, 1);
  const struct mgd_event invalid[] = {{.kind = -1}, {.kind = MGD_EV_KINDS}, {.reason = -1}, {.reason = MGD_WHY_KINDS}, {.bytes = -1}, {.duration = -1}, {.site = 1}};
  const struct mgd_event nowhere[] = {{.from = 2}, {.to = 2}, {.from = -2}, {.to = -2}};
  for (size_t i = 0; i < 7; i++) {
    EXPECT_CODE(mgd_trace_add(m, &invalid[i]), MGD_E_INVALID);
  }
  for (size_t i = 0; i < 4; i++) {
    EXPECT_CODE(mgd_trace_add(m, &nowhere[i]), MGD_E_NO_DEVICE);
  }
  EXPECT_INT(totals_of(m).events, 0);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_MOVE], 0, 0, 0);
  mgd_machine_destroy(m);
}

static void totals_beyond_int64_overflow_and_stay_as_they_were(void) {
  struct mgd_machine *m = small_ring(4, 1);
  const struct mgd_event most = {.kind = MGD_EV_COPY, .from = 0, .to = 1, .bytes = INT64_MAX, .duration = 1};
  const struct mgd_event long_one = {.kind = MGD_EV_PIN, .duration = INT64_MAX, .from = -1, .to = -1};
  const struct mgd_event move = {.kind = MGD_EV_MOVE, .from = 0, .to = 1, .bytes = 1};
  EXPECT_OK(mgd_trace_add(m, &most));
  EXPECT_CODE(mgd_trace_add(m, &most), MGD_E_OVERFLOW);
  EXPECT_CODE(mgd_trace_add(m, &move), MGD_E_OVERFLOW); /* the link's total, not the kind's */
  EXPECT_OK(mgd_trace_add(m, &long_one));
  EXPECT_CODE(mgd_trace_add(m, &long_one), MGD_E_OVERFLOW);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_COPY], 1, INT64_MAX, 1);
  EXPECT_TOTAL(totals_of(m).by_kind[MGD_EV_MOVE], 0, 0, 0);
  EXPECT_TOTAL(totals_of(m).by_link[0][1], 1, INT64_MAX, 1);
  mgd_machine_destroy(m);
}

/* While all is kept nothing is forgotten, and afterwards the newest are there. */
static void a_ring_that_keeps_all_grows(void) {
  struct mgd_machine *m = small_ring(4, 1);
  struct mgd_event out[200];
  size_t n = 200;
  uint64_t dropped = 77;
  for (int i = 1; i <= 6; i++) {
    add(m, MGD_EV_PLACE, 1, -1, 1, i);
  }
  EXPECT_OK(mgd_trace_keep(m, true));
  EXPECT_OK(mgd_trace_keep(m, true)); /* as it is */
  for (int i = 7; i <= 100; i++) {
    add(m, MGD_EV_PLACE, 1, -1, 1, i);
  }
  EXPECT_INT(mgd_trace_held(m), 98); /* two had been forgotten */
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped));
  EXPECT_INT(n, 98);
  EXPECT_INT(dropped, 2);
  for (int i = 0; i < 98; i++) {
    EXPECT_INT(out[i].bytes, i + 3);
    EXPECT_INT(out[i].sequence, i + 3);
  }
  EXPECT_OK(mgd_trace_keep(m, false));
  EXPECT_OK(mgd_trace_keep(m, false));
  EXPECT_INT(mgd_trace_held(m), 4);
  add(m, MGD_EV_PLACE, 1, -1, 1, 101);
  n = 200;
  EXPECT_OK(mgd_trace_read(m, 0, out, &n, &dropped));
  EXPECT_INT(n, 4);
  EXPECT_INT(dropped, 97);
  EXPECT_INT(out[0].bytes, 98);
  EXPECT_INT(out[3].bytes, 101);
  mgd_machine_destroy(m);
}

/* It forgets as it did before. */
static void a_ring_that_cannot_grow_stays_as_it_is(void) {
  struct mgd_machine *m = NULL;
  int refused = 0;
  for (int64_t failing = 1; refused < 2; failing++) {
    const struct mgd_config config = {.trace_events = 4, .fail_allocation = failing};
    if (mgd_machine_create(&config, &m) != MGD_OK) {
      continue;
    }
    EXPECT_OK(mgd_trace_keep(m, true));
    for (int i = 1; i <= 6; i++) {
      add(m, MGD_EV_PLACE, 1, -1, -1, i);
    }
    const size_t held = mgd_trace_held(m);
    refused += held != 6;
    EXPECT(held == 6 || held == 5 || held == 4); /* the next one asks again */
    EXPECT_OK(mgd_trace_keep(m, false));
    EXPECT_OK(mgd_check(m));
    mgd_machine_destroy(m);
    if (failing > 40) {
      break;
    }
  }
  EXPECT(refused >= 1);
}

int main(void) {
  events_come_back_whole_and_newest_last();
  a_full_ring_forgets_the_oldest_and_says_so();
  a_ring_that_keeps_all_grows();
  a_ring_that_cannot_grow_stays_as_it_is();
  totals_never_forget();
  a_reset_begins_totals_again_and_keeps_history();
  objects_get_ids_from_1_on();
  nonsense_is_refused_and_changes_nothing();
  totals_beyond_int64_overflow_and_stay_as_they_were();
  return 0;
}
