/* internal_clock_hold.h: bytes that are held on a clock.
 *
 * Part of internal_clock.h, which includes it.
 */
#ifndef MGD_INTERNAL_CLOCK_HOLD_H
#define MGD_INTERNAL_CLOCK_HOLD_H

#include "clock/clock.h"

struct mgd_hold {
  struct mgd_hold *next, *before; /* links in `living` or, without `before`, in `leaving` or `over` */
  int64_t bytes, merged; /* merged: the part taken over from older holds, which a log has already */
  int device;
  _Atomic int stream; /* mgd_clock_hold_use() reads it without the mutex */
  _Atomic uint64_t also; /* bit i: stream i uses the bytes, too */
  _Atomic int owner; /* enum mgd_hold_owner */
  struct mgd_moment begin, end; /* `begin` is kept for an audit or a log only */
  struct mgd_moment *ends; /* `ends_count` further moments before which the bytes are not free */
  int ends_count;
  bool shared; /* given up, and other streams or a moment delay its end as well */
};

#endif
