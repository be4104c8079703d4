/* step_log.c: the operators of a device in the order in which they were issued, and whether they repeat.
 *
 * Two operators are alike if they have the same name, use as many bytes in the same way, and use the same storages:
 * each pair is one storage, or two of the same age, counted in operators. So layers of a model differ by their weights,
 * and the activations of two steps do not differ. A period is found when the last operators are like earlier ones.
 * Nothing is planned here.
 */
#include <string.h>

#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

#define BUCKETS (1 << 12)
#define PROOF                                                                                             \
  (2 * MGD_STEP_WINDOW) /* operators that must be alike before a period is believed, unless it is shorter \
                         */
#define CANDIDATES 512 /* earlier operators that are compared, at most */

void mgd_step_log_clear_locked(struct mgd_step_log *log) {
  for (int32_t i = 0; i < log->seen_count; i++) {
    if (log->seen[i].handle) {
      log->seen[i].handle->seen = -1;
    }
  }
  log->count = log->uses_count = log->seen_count = log->made_count = 0;
  log->period = log->fresh = 0;
  for (int i = 0; log->buckets && i < BUCKETS; i++) {
    log->buckets[i] = -1;
  }
}

void mgd_step_log_free(struct mgd_step_log *log) {
  mgd_alloc_free(log->operators);
  mgd_alloc_free(log->uses);
  mgd_alloc_free(log->seen);
  mgd_alloc_free(log->made);
  mgd_alloc_free(log->buckets);
}

/* Returns the array, grown if possible so that `more` elements fit behind its `count`; the caller checks *size. */
static void *grow(struct mgd_machine *m, void *array, int32_t count, int32_t more, int32_t *size, size_t each) {
  if (count + more <= *size) {
    return array;
  }
  int32_t bigger = *size ? *size * 2 : 1024;
  while (bigger < count + more) {
    bigger *= 2;
  }
  void *grown = mgd_alloc_resize(&m->alloc, array, (size_t)bigger, each);
  *size = grown ? bigger : *size;
  return grown ? grown : array;
}

static bool has_room(struct mgd_machine *m, struct mgd_step_log *log, size_t uses) {
  if (log->count + 1 > MGD_STEP_OPERATORS || uses > (size_t)(MGD_STEP_USES - log->uses_count)) {
    return false;
  }
  const int32_t n = (int32_t)uses;
  if (!log->buckets) {
    log->buckets = mgd_alloc_new(&m->alloc, BUCKETS, sizeof *log->buckets);
    for (int i = 0; log->buckets && i < BUCKETS; i++) {
      log->buckets[i] = -1;
    }
  }
  log->operators = grow(m, log->operators, log->count, 2, &log->size, sizeof *log->operators);
  log->uses = grow(m, log->uses, log->uses_count, n, &log->uses_size, sizeof *log->uses);
  log->seen = grow(m, log->seen, log->seen_count, n + 1, &log->seen_size, sizeof *log->seen);
  return log->buckets && log->count + 2 <= log->size && log->uses_count + n <= log->uses_size &&
      log->seen_count + n + 1 <= log->seen_size;
}

/* Adds a storage to the log, which has room for it, and returns its index. */
static int32_t see(struct mgd_step_log *log, struct mgd_handle *h, int32_t made, int32_t ordinal) {
  log->seen[log->seen_count] =
      (struct mgd_step_seen){.handle = h, .bytes = h->bytes, .made = made, .ordinal = ordinal, .died = -1};
  h->seen = log->seen_count;
  return log->seen_count++;
}

/* The kind of an operator, mixed with its storages that are older than the log. Most weights are, and they tell a layer
 * from other layers of the same kind. */
static uint64_t mark_of(const struct mgd_step_log *log, const struct mgd_step_call *call, uint64_t kind) {
  uint64_t mark = kind;
  for (size_t i = 0; i < call->n; i++) {
    const struct mgd_handle *h = call->uses[i].handle;
    const bool older = h->seen < 0 || log->seen[h->seen].made < 0;
    mark = mgd_step_mix(mark, older ? (uint64_t)(uintptr_t)h : 0);
  }
  return mark;
}

/* ---- what operators have for themselves */

/* Takes the last request of so many bytes out, if there is one. */
static size_t without_result(struct mgd_step_request *requests, size_t n, int64_t bytes) {
  size_t i = n;
  while (i > 0 && requests[i - 1].bytes != bytes) { i--; }
  if (i == 0) { return n; }
  memmove(&requests[i - 1], &requests[i], (n - i) * sizeof *requests);
  return n - 1;
}

/* Leaves of the requests those that are no result of the last operator in the log, and returns how many these are. A
 * result is known by its bytes alone. Requests that got the same address took turns, so the largest of them counts. */
static size_t find_own(const struct mgd_step_log *log, struct mgd_step_request *requests, size_t n) {
  for (int32_t i = log->operators[log->count - 1].first_made; i < log->made_count; i++) {
    n = without_result(requests, n, log->seen[log->made[i]].bytes);
  }
  size_t own = 0;
  for (size_t i = 0; i < n; i++) {
    size_t same = 0;
    while (same < own && requests[same].at != requests[i].at) { same++; }
    const int64_t before = same < own ? requests[same].bytes : 0;
    requests[same] = (struct mgd_step_request){requests[i].at, mgd_max(before, requests[i].bytes)};
    own += same == own;
  }
  return own;
}

/* Logs what the last operator had for itself, behind its results. Without memory for the log it is not known. */
static void log_own(struct mgd_machine *m, struct mgd_step_log *log, const struct mgd_step_call *call) {
  struct mgd_step_request requests[MGD_STEP_REQUESTS];
  const size_t n = call->requested < MGD_STEP_REQUESTS ? call->requested : MGD_STEP_REQUESTS;
  if (n == 0 || log->count == 0) { return; }
  memcpy(requests, call->requests, n * sizeof *requests);
  const int32_t own = (int32_t)find_own(log, requests, n), by = log->count - 1;
  log->seen = grow(m, log->seen, log->seen_count, own, &log->seen_size, sizeof *log->seen);
  log->made = grow(m, log->made, log->made_count, own, &log->made_size, sizeof *log->made);
  if (log->seen_count + own > log->seen_size || log->made_count + own > log->made_size) { return; }
  for (int32_t i = 0; i < own; i++) {
    log->seen[log->seen_count] = (struct mgd_step_seen){.bytes = requests[i].bytes,
                                                        .made = by,
                                                        .ordinal = log->made_count - log->operators[by].first_made,
                                                        .died = by,
                                                        .own = true};
    log->made[log->made_count++] = log->seen_count++;
  }
  log->operators[log->count].first_made = log->made_count;
}

bool mgd_step_log_add_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_call *call, uint64_t kind,
                             int64_t known_ns) {
  struct mgd_step_log *log = &s->log;
  log_own(m, log, call);
  if (!has_room(m, log, call->n)) {
    return false;
  }
  const int32_t oldest = log->count - MGD_STEP_WINDOW;
  const uint64_t mark = mark_of(log, call, kind), before = log->count > 0 ? log->operators[log->count - 1].place : 0;
  const uint64_t place = mgd_step_roll(before, mark, oldest >= 0 ? log->operators[oldest].mark : 0);
  int32_t *bucket = &log->buckets[place % BUCKETS];
  log->operators[log->count] = (struct mgd_step_logged){.name = call->name,
                                                        .kind = kind,
                                                        .window = s->window,
                                                        .mark = mark,
                                                        .place = place,
                                                        .worked = call->worked,
                                                        .pressed = s->pressed_before,
                                                        .known_ns = known_ns,
                                                        .first_use = log->uses_count,
                                                        .first_made = log->made_count,
                                                        .earlier = *bucket};
  *bucket = log->count++;
  for (size_t i = 0; i < call->n; i++) {
    struct mgd_handle *h = call->uses[i].handle;
    const int32_t seen = h->seen >= 0 ? h->seen : see(log, h, -1, 0);
    log->uses[log->uses_count++] = (struct mgd_step_logged_use){seen, call->uses[i].written};
  }
  log->operators[log->count].first_use = log->uses_count;
  log->operators[log->count].first_made = log->made_count;
  return true;
}

/* Logs a storage that was made. If there is no memory for it, it counts as one that was there before. */
void mgd_step_log_made_locked(struct mgd_machine *m, struct mgd_step_log *log, struct mgd_handle *h) {
  if (log->count == 0) {
    return;
  }
  log->seen = grow(m, log->seen, log->seen_count, 1, &log->seen_size, sizeof *log->seen);
  log->made = grow(m, log->made, log->made_count, 1, &log->made_size, sizeof *log->made);
  if (log->seen_count < log->seen_size && log->made_count < log->made_size) {
    const int32_t by = log->count - 1;
    log->made[log->made_count] = see(log, h, by, log->made_count - log->operators[by].first_made);
    log->operators[log->count].first_made = ++log->made_count;
  }
}

void mgd_step_log_died_locked(struct mgd_step_log *log, struct mgd_handle *h) {
  if (h->seen >= 0) {
    log->seen[h->seen].handle = NULL;
    log->seen[h->seen].died = log->count - 1;
    h->seen = -1;
  }
}

void mgd_step_log_resized_locked(struct mgd_step_log *log, const struct mgd_handle *h) {
  if (h->seen >= 0) {
    log->seen[h->seen].bytes = h->bytes;
  }
}

/* ---- whether it repeats */

static bool are_alike(const struct mgd_step_log *log, int32_t a, int32_t b) {
  const struct mgd_step_logged *p = &log->operators[a], *q = &log->operators[b];
  if (p->kind != q->kind || p[1].first_use - p->first_use != q[1].first_use - q->first_use) {
    return false;
  }
  for (int32_t i = p->first_use, j = q->first_use; i < p[1].first_use; i++, j++) {
    const int32_t x = log->uses[i].seen, y = log->uses[j].seen;
    const struct mgd_step_seen *s = &log->seen[x], *t = &log->seen[y];
    const bool as_old = s->made >= 0 && t->made >= 0 && a - s->made == b - t->made && s->ordinal == t->ordinal;
    if (x != y && !as_old) {
      return false;
    }
  }
  return true;
}

static bool windows_are_alike(const struct mgd_step_log *log, int32_t a, int32_t b) {
  bool alike = b + 1 >= MGD_STEP_WINDOW;
  for (int i = 0; alike && i < MGD_STEP_WINDOW; i++) {
    alike = are_alike(log, a - i, b - i);
  }
  return alike;
}

/* Counts those of the last `run` operators that were in no plan. The operators of a plan are alike anyway, and prove
 * nothing about a longer period. */
static int32_t count_fresh(const struct mgd_step_log *log, int32_t run) {
  int32_t fresh = 0;
  for (int32_t i = log->count - run; i < log->count; i++) { fresh += log->operators[i].known_ns < 0; }
  return fresh;
}

static void look_for_period(struct mgd_step_log *log, int32_t last) {
  int32_t looks = CANDIDATES;
  for (int32_t q = log->operators[last].earlier; q >= 0 && looks > 0; q = log->operators[q].earlier, looks--) {
    if (log->operators[q].place == log->operators[last].place && windows_are_alike(log, last, q)) {
      log->period = last - q;
      log->fresh = count_fresh(log, MGD_STEP_WINDOW);
      return;
    }
  }
}

void mgd_step_log_look_again_locked(struct mgd_step_log *log) {
  const int32_t period = log->period, fresh = log->fresh;
  look_for_period(log, log->count - 1);
  log->fresh = log->period == period ? fresh : log->fresh;
}

/* Returns how many operators must be alike before a period is believed: all of a short one, a part of a long one. Each
 * doubt doubles the part. */
static int32_t enough(int32_t period, int32_t doubts) {
  const int32_t part = (period / 8 > PROOF ? period / 8 : PROOF) << doubts;
  return part < period ? part : period;
}

/* True: the last operator begins a period anew. Enough operators have repeated, and the whole period is in the log. */
bool mgd_step_log_repeats_locked(struct mgd_step_log *log, int32_t doubts) {
  const int32_t last = log->count - 1;
  if (log->period > 0 && are_alike(log, last, last - log->period)) {
    log->fresh += count_fresh(log, 1);
  } else {
    log->period = log->fresh = 0;
    if (last >= MGD_STEP_WINDOW) {
      look_for_period(log, last);
    }
  }
  return log->period > 0 && log->fresh >= enough(log->period, doubts);
}
