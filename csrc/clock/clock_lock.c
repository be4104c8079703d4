/* clock_lock.c: the interpreter's lock, which the program's threads share on a clock.
 *
 * Only one thread at a time runs Python's part of issuing an operator. Threads call in the order of real time. One that
 * calls later can be behind on the clock, and then finds the lock free at times at which no thread held it. So the
 * times at which the lock was taken are kept, as turns. A thread that meets a turn of another thread goes on after it:
 * the lock may change hands in the middle of an operator, and short free intervals are used too.
 *
 * A thread that is alone meets no turn. Beyond a number of turns the oldest is forgotten: a thread that is so far
 * behind goes on as if it were alone, until it reaches the turns that are kept. Devices play no part here.
 */
#include <string.h>

#include "clock/internal_clock.h"

/* Returns the first turn that ends at that time or later. Most threads come after all turns: that is tested first. */
static size_t find_turn(const struct mgd_clock_lock *l, int64_t time) {
  size_t low = l->first, high = l->last;
  if (low < high && l->turns[high - 1].end < time) {
    return high;
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (l->turns[middle].end < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Returns when the lock has been free for `ns` in all since `begin`. The turns *from .. *to - 1 are in between. */
static int64_t find_end(const struct mgd_clock_lock *l, int64_t begin, int64_t ns, size_t *from, size_t *to) {
  int64_t now = begin, left = ns;
  size_t i = *from = find_turn(l, begin);
  for (; i < l->last && l->turns[i].begin < mgd_about_sum(now, left); i++) {
    left -= mgd_max(l->turns[i].begin - now, 0);
    now = l->turns[i].end;
  }
  *to = i;
  return mgd_about_sum(now, left);
}

int64_t mgd_clock_lock_end(const struct mgd_clock_lock *l, int64_t begin, int64_t ns) {
  size_t from, to;
  return ns ? find_end(l, begin, ns, &from, &to) : begin;
}

/* Makes room for one more turn at the end. If there is no memory, the oldest turn is forgotten. */
static void make_room_for_turn(struct mgd_clock_lock *l, struct mgd_alloc *alloc) {
  l->first += l->last - l->first == MGD_CLOCK_TURNS;
  if (l->last == l->room && l->first <= l->room / 2) {
    const size_t room = l->room ? 2 * l->room : 64;
    struct mgd_turn *more = mgd_alloc_resize(alloc, l->turns, room, sizeof *more);
    if (more) {
      l->turns = more;
      l->room = room;
    }
  }
  if (l->last == l->room && l->room) {
    const size_t first = l->first ? l->first : 1;
    memmove(l->turns, l->turns + first, (l->last - first) * sizeof *l->turns);
    l->last -= first;
    l->first = 0;
  }
}

/* Inserts a turn before `at`, unless it would be the oldest of too many. */
static void add_turn(struct mgd_clock_lock *l, struct mgd_alloc *alloc, size_t at, struct mgd_turn turn) {
  const size_t behind = l->last - at;
  if (behind == MGD_CLOCK_TURNS) {
    return;
  }
  make_room_for_turn(l, alloc);
  if (l->last < l->room && behind <= l->last - l->first) {
    struct mgd_turn *place = l->turns + l->last - behind;
    memmove(place + 1, place, behind * sizeof *place);
    *place = turn;
    l->last++;
  }
}

void mgd_clock_lock_take(struct mgd_clock_lock *l, struct mgd_alloc *alloc, int64_t begin, int64_t ns) {
  size_t from, to;
  if (!ns) {
    return;
  }
  struct mgd_turn turn = {begin, find_end(l, begin, ns, &from, &to)};
  if (to < l->last && l->turns[to].begin == turn.end) {
    turn.end = l->turns[to++].end;
  }
  if (from == to) {
    add_turn(l, alloc, from, turn);
    return;
  }
  turn.begin = l->turns[from].begin < begin ? l->turns[from].begin : begin;
  l->turns[from] = turn;
  memmove(l->turns + from + 1, l->turns + to, (l->last - to) * sizeof *l->turns);
  l->last -= to - from - 1;
}

int mgd_clock_lock_use(struct mgd_clock *c, int thread, bool uses) {
  if (thread < 0 || thread >= MGD_MAX_STREAMS) {
    return MGD_E_INVALID;
  }
  mgd_clock_enter(c);
  mgd_clock_place_of(c, MGD_CLOCK_HOST)->streams[thread].unlocked = !uses;
  return mgd_clock_leave(c, MGD_OK);
}
