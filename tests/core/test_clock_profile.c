/* The log of a clock: all that happened, when it did. */
#include "expect.h"

#define HOST (-1)
#define ME 3

static struct mgd_clock *new_clock(int64_t failing) {
  struct mgd_clock *c = NULL;
  EXPECT_OK(mgd_clock_create_failing(2, failing, &c));
  for (int d = 0; d < 2; d++) {
    EXPECT_OK(mgd_clock_wiring_set_speed(c, d, (struct mgd_speed){.bytes_per_ns = 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_link(c, d, HOST, (struct mgd_link){0, 1.0}));
    EXPECT_OK(mgd_clock_wiring_set_link(c, d, 1 - d, (struct mgd_link){5, 2.0}));
    EXPECT_OK(mgd_clock_hold_set_capacity(c, d, 100));
  }
  return c;
}

static void run(struct mgd_clock *c, int device, int stream, double ns, const char *name) {
  const struct mgd_work work = {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0.0, ns, name};
  EXPECT_OK(mgd_clock_run(c, ME, device, stream, &work));
}

static void copy(struct mgd_clock *c, int from, int to, int stream, int64_t bytes, bool blocking, const char *name) {
  const struct mgd_transfer t = {from, stream, to, stream, bytes, blocking, name};
  EXPECT_OK(mgd_clock_copy(c, ME, &t));
}

static uint64_t last_copy(struct mgd_clock *c) {
  uint64_t number = 0;
  EXPECT_OK(mgd_clock_last_copy(c, ME, &number));
  return number;
}

static void expect_span(const struct mgd_span *s, size_t n, struct mgd_span expected) {
  for (size_t i = 0; i < n; i++) {
    const bool same = s[i].kind == expected.kind && s[i].device == expected.device && s[i].other == expected.other &&
                      s[i].stream == expected.stream && s[i].begin == expected.begin && s[i].end == expected.end &&
                      s[i].bytes == expected.bytes && s[i].number == expected.number;
    if (same && (s[i].name == expected.name || (s[i].name && expected.name && !strcmp(s[i].name, expected.name)))) {
      return;
    }
  }
  fprintf(stderr, "no span of kind %d from %" PRId64 " to %" PRId64 "\n", (int)expected.kind, expected.begin, expected.end);
  exit(1);
}

static void everything_is_told_once(void) {
  struct mgd_clock *c = new_clock(0);
  struct mgd_hold *before = NULL, *a = NULL, *b = NULL, *other = NULL;
  struct mgd_moment copied = {0, NULL};
  struct mgd_span *s = NULL;
  size_t n = 0;
  run(c, 0, 0, 7.0, "not told of");
  EXPECT_OK(mgd_clock_hold_take(c, 1, 0, 30, &before));
  EXPECT_OK(mgd_clock_profile_start(c));
  EXPECT_CODE(mgd_clock_profile_start(c), MGD_E_INVALID);
  EXPECT_OK(mgd_clock_hold_take(c, 0, 0, 60, &a));
  mgd_clock_hold_own(a, MGD_HOLD_MANAGED);
  mgd_clock_hold_own(before, MGD_HOLD_REPLICA);
  run(c, 0, 0, 10.0, "first"); /* 7 to 17 */
  copy(c, 0, 1, 0, 20, false, "over"); /* waits for it, and is not certain: 17 to 32 */
  const uint64_t over = last_copy(c);
  run(c, 1, 0, 3.0, "behind"); /* 32 to 35, from the queue */
  EXPECT_OK(mgd_clock_record(c, ME, 1, 0, &copied));
  EXPECT_OK(mgd_clock_stream_wait(c, 0, 2, &copied)); /* 0 to 35 */
  mgd_clock_hold_give(c, a, NULL); /* used until 32 */
  EXPECT_OK(mgd_clock_hold_take(c, 0, 1, 50, &b)); /* its stream waits for room until then */
  mgd_clock_hold_own(b, MGD_HOLD_MANAGED);
  mgd_clock_hold_own(b, MGD_HOLD_GUEST); /* what was said last */
  EXPECT_INT(mgd_clock_hold_owner(b), MGD_HOLD_GUEST);
  copy(c, 0, HOST, 1, 40, true, "out"); /* 32 to 72, and the thread waits from 0 on */
  const uint64_t out = last_copy(c);
  EXPECT_OK(mgd_clock_host_wait(c, ME, 80));
  EXPECT_OK(mgd_clock_hold_take(c, 1, 1, 10, &other));
  EXPECT_OK(mgd_clock_profile_stop(c, &s, &n));
  EXPECT_CODE(mgd_clock_profile_stop(c, &s, &n), MGD_E_INVALID);
  const struct mgd_span expected[] = {
      {MGD_SPAN_RUN, 0, 0, 0, 7, 17, 0, 0, "first"},      {MGD_SPAN_COPY, 0, 1, 0, 17, 32, 20, over, "over"},
      {MGD_SPAN_RUN, 1, 1, 0, 32, 35, 0, 0, "behind"},    {MGD_SPAN_STALL, 0, 0, 2, 0, 35, 0, 0, "event"},
      {MGD_SPAN_STALL, 0, 0, 1, 0, 32, 0, 0, "room"},     {MGD_SPAN_COPY, 0, HOST, 0, 32, 72, 40, out, "out"},
      {MGD_SPAN_WAIT, HOST, HOST, ME, 0, 72, 0, 0, "out"}, {MGD_SPAN_WAIT, HOST, HOST, ME, 72, 80, 0, 0, "synchronize"},
      {MGD_SPAN_HOLD, 0, 0, 0, 7, 32, 60, 0, "managed"},  {MGD_SPAN_HOLD, 0, 0, 1, 32, INT64_MAX, 50, 0, "guest"},
      {MGD_SPAN_HOLD, 1, 1, 0, 0, INT64_MAX, 30, 0, "replica"}, {MGD_SPAN_HOLD, 1, 1, 1, 0, INT64_MAX, 10, 0, "other"},
  };
  const size_t many = sizeof expected / sizeof *expected;
  for (size_t i = 0; i < many; i++) {
    expect_span(s, n, expected[i]);
  }
  EXPECT_INT(n, many);
  mgd_clock_profile_free(s);
  mgd_clock_forget(c, &copied);
  run(c, 0, 0, 7.0, "not told of");
  EXPECT_OK(mgd_clock_profile_start(c));
  EXPECT_OK(mgd_clock_profile_stop(c, &s, &n)); /* what is or was in use is told of again, as far as it is known */
  EXPECT_INT(n, 4);
  mgd_clock_profile_free(s);
  EXPECT_OK(mgd_clock_profile_start(c)); /* and one that nobody ends is nobody's loss */
  mgd_clock_destroy(c);
}

/* A stream remembers 1,024 of what was given up one by one; a log knows each. */
static void those_that_are_remembered_together_are_told_of_one_by_one(void) {
  enum { MANY = 3000 };
  struct mgd_clock *c = new_clock(0);
  static struct mgd_hold *holds[MANY];
  struct mgd_span *s = NULL;
  size_t n = 0;
  EXPECT_OK(mgd_clock_hold_set_capacity(c, 0, 100 * MANY));
  EXPECT_OK(mgd_clock_profile_start(c));
  for (int i = 0; i < MANY; i++) {
    EXPECT_OK(mgd_clock_hold_take(c, 0, 0, 1 + i % 7, &holds[i]));
    mgd_clock_hold_own(holds[i], (enum mgd_hold_owner)(i % MGD_HOLD_OWNERS));
    if (i % 3 == 2) {
      run(c, 0, 0, 2.0, NULL); /* from 2 (i / 3) on; they are so few that the thread does not wait for them */
    }
    if (i >= 10) {
      mgd_clock_hold_give(c, holds[i - 10], NULL);
    }
  }
  EXPECT_OK(mgd_clock_profile_stop(c, &s, &n));
  EXPECT_INT(n, MANY + MANY / 3);
  static const char *const owners[] = {"other", "managed", "replica", "guest"};
  for (int i = 0; i < MANY; i++) {
    const int64_t begin = 2 * (i / 3), end = i < MANY - 10 ? 2 * ((i + 11) / 3) : INT64_MAX;
    expect_span(s, n, (struct mgd_span){MGD_SPAN_HOLD, 0, 0, 0, begin, end, 1 + i % 7, 0, owners[i % 4]});
  }
  mgd_clock_profile_free(s);
  mgd_clock_destroy(c);
}

static void without_memory_there_is_no_log_rather_than_half_of_one(void) {
  int refused = 0;
  for (int64_t failing = 5; failing < 9; failing++) {
    struct mgd_clock *c = new_clock(failing);
    struct mgd_span *s = NULL;
    size_t n = 77;
    int code = mgd_clock_profile_start(c);
    if (code != MGD_OK) {
      EXPECT_CODE(code, MGD_E_NOMEM);
      refused++;
      EXPECT_OK(mgd_clock_profile_start(c));
    }
    for (int i = 0; i < 3000; i++) {
      run(c, 0, 0, 1.0, NULL);
    }
    code = mgd_clock_profile_stop(c, &s, &n);
    refused += code != MGD_OK;
    EXPECT_CODE(code, code == MGD_OK ? MGD_OK : MGD_E_NOMEM);
    EXPECT_INT(n, code == MGD_OK ? 3000 + 4 : 77); /* of the waits for a full queue the first has no length */
    EXPECT_OK(mgd_clock_profile_start(c)); /* and the next one begins */
    mgd_clock_profile_free(s);
    mgd_clock_destroy(c);
  }
  EXPECT_INT(refused, 4); /* the log itself, and each of the three times that it grows */
}

int main(void) {
  everything_is_told_once();
  those_that_are_remembered_together_are_told_of_one_by_one();
  without_memory_there_is_no_log_rather_than_half_of_one();
  return 0;
}
