/* traffic.c: the benefit test for automatic moves.
 *
 * A tensor that others need in each round costs a copy out and a trip home for
 * each of them; one of them has it for nothing if the tensor lives there, and
 * nobody pays for it if its home did not use it. What a program did is all that
 * is known of what it will do, so a move is advised after a round that speaks
 * for it, and each later one after twice as many: wrong guesses grow rare, and
 * a loop that repeats itself comes to rest.
 * It knows one tensor's history alone: no machine, no bytes, no clock, no lock.
 */
#include "core.h"

#define MOST_MOVES 10 /* beyond these a move asks for no more rounds than before */

/* Whoever asks gets it: the move stands in for the copy that would be made now,
 * so that it is never dearer, and any device that needs the tensor again in each
 * round is as good a home as another. */
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
