/* What a holder of memory reports is checked, and a report that is refused changes nothing. */
#include "expect.h"

static struct mgd_holding only_holding(struct mgd_machine *m) {
  struct mgd_holding all[MGD_MAX_HOLDERS];
  int n = -1;
  EXPECT_OK(mgd_holders_read(m, 1, all, &n));
  EXPECT_INT(n, 1);
  return all[0];
}

static void expect_holding(struct mgd_machine *m, int64_t live, int64_t cached, int64_t rest) {
  const struct mgd_holding is = only_holding(m);
  EXPECT_INT(is.live, live);
  EXPECT_INT(is.cached, cached);
  EXPECT_INT(is.rest, rest);
  EXPECT_INT(is.asks, 0);
}

static void reports_in_a_round(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  struct mgd_holder_round r;
  int id = 0, asked = -1;
  int64_t bytes = -1;
  EXPECT_OK(mgd_holders_add(m, "cache", 10, &id));
  EXPECT_OK(mgd_holders_begin(m, 1, 0, &r));
  EXPECT_CODE(mgd_holders_reported(m, &r, id, -1, 50), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_reported(m, &r, id, 50, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_reported(m, &r, id + 1, 50, 50), MGD_E_INVALID);
  EXPECT(r.count == 1 && r.entries[0].spare < 0); /* it has not reported yet */
  expect_holding(m, 0, 0, 0);
  EXPECT_OK(mgd_holders_reported(m, &r, id, 30, 50));
  expect_holding(m, 30, 50, 0);
  EXPECT_CODE(mgd_holders_reported(m, &r, id, 31, 51), MGD_E_INVALID); /* once in a round */
  expect_holding(m, 30, 50, 0);
  EXPECT_OK(mgd_holders_next(m, &r, 100, &asked, &bytes));
  EXPECT_INT(asked, id);
  EXPECT_INT(bytes, 40);
  mgd_machine_destroy(m);
}

static void notes_outside_a_round(void) {
  struct mgd_machine *m = new_machine(1, 1000);
  int id = 0;
  EXPECT_CODE(mgd_holders_note(m, 1, 1, 5, 6), MGD_E_INVALID); /* there is none */
  EXPECT_OK(mgd_holders_add(m, "cache", 0, &id));
  EXPECT_OK(mgd_holders_note(m, id, 1, 5, 6));
  EXPECT_CODE(mgd_holders_note(m, id, 1, -1, 7), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_note(m, id, 1, 7, -1), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_note(m, id, 2, 7, 7), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_note(m, id, MGD_HOST, 7, 7), MGD_E_INVALID);
  EXPECT_CODE(mgd_holders_note(m, id + 1, 1, 7, 7), MGD_E_INVALID);
  expect_holding(m, 5, 6, 0);
  EXPECT_OK(mgd_holders_note(m, id, 1, 0, 0));
  expect_holding(m, 0, 0, 0);
  mgd_machine_destroy(m);
}

int main(void) {
  reports_in_a_round();
  notes_outside_a_round();
  return 0;
}
