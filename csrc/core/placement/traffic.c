/* traffic.c: advises that a tensor moves to a device, instead of being copied there again and again.
 *
 * A round is one or more copies from the tensor's home, and then what comes back of them: a gradient, or a copy that
 * was written. If nothing at home used the tensor in a round, it should have been on the other device. The first move
 * is advised after 1 such round, the next after 2 in a row, then 4, and so on up to 1024. So in a loop in which moves
 * never help, the tensor moves ever less often.
 * The functions here read and write one tensor's history (struct mgd_traffic, types.h): no machine, bytes, clock or
 * lock.
 */
#include "core/core.h"

#define MOST_MOVES 10 /* after these, the number of rounds before a move grows no further */

/* The tensor moves to the device that needs it now: the move replaces the copy that would be made, so it never costs
 * more, and any device that needs the tensor in each round is as good a home as another. */
bool mgd_traffic_needed(struct mgd_traffic *t, int device) {
  (void)device;
  if (t->round == MGD_ROUND_IDLE && t->idle < UINT32_MAX) {
    t->idle++;
  }
  t->round = MGD_ROUND_OPEN;
  return t->idle >= (uint32_t)1 << t->moves;
}

void mgd_traffic_returned(struct mgd_traffic *t, bool home_idle) {
  if (!home_idle) {
    t->idle = 0;
    t->round = MGD_ROUND_AT_HOME;
  } else if (t->round == MGD_ROUND_OPEN) {
    t->round = MGD_ROUND_IDLE;
  }
}

void mgd_traffic_moved(struct mgd_traffic *t, bool advised) {
  t->idle = 0;
  t->round = MGD_ROUND_NONE;
  if (advised && t->moves < MOST_MOVES) {
    t->moves++;
  }
}
