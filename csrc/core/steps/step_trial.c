/* step_trial.c: measures what plans are worth if steps are not alike, and suspends plans that are worth too little.
 *
 * A plan for one step may be taken up in a part of another one and be lost again. Whether that saves copies depends on
 * the program. So the bytes copied for each byte that operators use are compared, with plans and without, over windows
 * of some steps. When plans were lost and saved little, none is taken up for some windows, more each time. A window in
 * which fewer than LOST plans are lost is not judged. Nothing is planned or followed here.
 */
#include "core/steps/internal_step.h"

#define WINDOW 256 /* operators of a window while no plan is known */
#define STEPS 4    /* the longest known steps in a window otherwise */
#define LOST 2     /* plans lost in a window show that its steps are not alike */
#define KEPT 0.875 /* the weight of earlier measurements when a window ends */
#define AWAY 8     /* windows without plans at first */
#define GAIN 0.85  /* plans are worth it if at most this part of the copies is left */
#define MOST 6     /* the number of windows is doubled at most so often */

static void add_cost(struct mgd_step_cost *sum, const struct mgd_step_cost *now) {
  sum->copied = KEPT * sum->copied + now->copied;
  sum->used = KEPT * sum->used + now->used;
}

/* True also if nothing was used without plans. */
static bool is_worth_it(const struct mgd_step_cost *with, const struct mgd_step_cost *without) {
  return with->copied * without->used <= GAIN * without->copied * with->used;
}

static int32_t longest_known(const struct mgd_step *s) {
  int32_t longest = 0;
  for (int i = 0; i < MGD_STEP_PLANS; i++) {
    longest = mgd_step_is_known(&s->known[i]) && s->known[i].operators > longest ? s->known[i].operators : longest;
  }
  return longest;
}

static void end_window(struct mgd_step *s) {
  struct mgd_step_trial *t = &s->trial;
  const bool proven = s->follows && s->known[s->which].laps > 0, changes = s->lost - t->lost >= LOST;
  if (t->away > 0 || !t->knows) {
    add_cost(&t->without, &t->now);
    t->away = proven || t->away == 0 ? 0 : t->away - 1;
  } else if (changes) {
    add_cost(&t->with, &t->now);
    const bool worth_it = is_worth_it(&t->with, &t->without);
    t->away = worth_it ? 0 : AWAY << t->doublings;
    t->doublings = worth_it ? 0 : t->doublings < MOST ? t->doublings + 1 : MOST;
  }
}

void mgd_step_trial_count_locked(struct mgd_step *s, const struct mgd_step_call *call, int64_t copied) {
  struct mgd_step_trial *t = &s->trial;
  t->now.copied += (double)(copied - t->copied_before);
  t->copied_before = copied;
  for (size_t i = 0; i < call->n; i++) { t->now.used += (double)call->uses[i].handle->bytes; }
  if (++t->operators >= t->length) {
    if (t->length > 0) { end_window(s); }
    const int32_t longest = longest_known(s);
    t->knows = longest > 0;
    t->length = t->knows ? STEPS * longest : WINDOW;
    t->operators = 0;
    t->lost = s->lost;
    t->now = (struct mgd_step_cost){0};
  }
}
