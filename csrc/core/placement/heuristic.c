/* heuristic.c: how much room to look for when a tensor has some size.
 *
 * The program chooses the formula: it can replace the default by a callback, or switch the heuristic off. The callback
 * may be slow and may call back into the machine, so it runs without the mutex; the caller that sets it keeps its
 * context alive until calls that began before a change have ended.
 */
#include "core/arithmetic.h"
#include "core/internal_machine.h"

/* This uses pow and not sqrt: the documented formula is Python's size ** 0.5, and both must agree to the byte. */
int mgd_heuristic_default(void *unused, int64_t size, int64_t *out) {
  (void)unused;
  if (size < 0) {
    return MGD_E_INVALID;
  }
  int64_t extra = (int64_t)(1.5 * pow((double)size, 0.5));
  return mgd_add(size, extra, out) ? MGD_OK : MGD_E_OVERFLOW;
}

int mgd_heuristic_set(struct mgd_machine *m, mgd_heuristic_fn fn, void *context) {
  mgd_state_enter(m);
  m->heuristic = fn ? fn : mgd_heuristic_default;
  m->heuristic_context = context;
  return mgd_state_leave(m, MGD_OK);
}

int mgd_heuristic_enable(struct mgd_machine *m, bool enabled) {
  mgd_state_enter(m);
  m->heuristic_enabled = enabled;
  return mgd_state_leave(m, MGD_OK);
}

/* Calls the callback. Any error but OVERFLOW, and a negative result, become CALLBACK. */
static int ask(mgd_heuristic_fn fn, void *context, int64_t size, int64_t *out) {
  int64_t answer = -1;
  int code = fn(context, size, &answer);
  if (code == MGD_E_OVERFLOW) {
    return code;
  }
  if (code != MGD_OK || answer < 0) {
    return MGD_E_CALLBACK;
  }
  *out = answer;
  return MGD_OK;
}

int mgd_heuristic_apply(struct mgd_machine *m, int64_t size, int64_t *out) {
  if (size < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  mgd_heuristic_fn fn = m->heuristic;
  void *context = m->heuristic_context;
  bool enabled = m->heuristic_enabled;
  int code = mgd_state_leave(m, MGD_OK);
  if (code != MGD_OK) {
    return code;
  }
  if (!enabled) {
    *out = size;
    return MGD_OK;
  }
  return ask(fn, context, size, out);
}
