/* arithmetic.h: sums of bytes and times that cannot overflow unseen.
 *
 * Private to the core. Every addition of bytes or nanoseconds that comes from a
 * caller goes through here; nothing here touches state.
 */
#ifndef MGD_ARITHMETIC_H
#define MGD_ARITHMETIC_H

#include <math.h>

#include "core/core.h"

/* Largest double below 2**63, the first value that int64_t cannot hold. */
#define MGD_INT64_TOP 9223372036854774784.0

/* Writes a + b and returns true, or returns false and writes nothing. */
static inline bool mgd_add(int64_t a, int64_t b, int64_t *out) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    return false;
  }
  *out = sum;
  return true;
}

static inline int64_t mgd_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t mgd_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Return a + b and a - b, or INT64_MAX if that is less: for comparing. a >= 0, and for the sum b >= 0. */
static inline int64_t mgd_about_sum(int64_t a, int64_t b) { return a <= INT64_MAX - b ? a + b : INT64_MAX; }
static inline int64_t mgd_about_difference(int64_t a, int64_t b) {
  return b >= 0 || a <= INT64_MAX + b ? a - b : INT64_MAX;
}

/* Checks a rate or an amount that a caller gave: it must be finite and not negative. */
static inline bool mgd_is_amount(double x) { return isfinite(x) && x >= 0.0; }

/* Returns the ns that `amount` takes at `per_ns`; a rate of 0 means instantly. */
static inline double mgd_duration(double amount, double per_ns) { return per_ns > 0.0 ? amount / per_ns : 0.0; }

/* Computes fixed + amount, rounded up to whole ns: work never takes less than its time. OVERFLOW: it is too large. */
static inline int mgd_to_ns(int64_t fixed, double amount, int64_t *ns) {
  double up = ceil(amount);
  if (!(up <= MGD_INT64_TOP)) {
    return MGD_E_OVERFLOW;
  }
  return mgd_add(fixed, (int64_t)up, ns) ? MGD_OK : MGD_E_OVERFLOW;
}

#endif
