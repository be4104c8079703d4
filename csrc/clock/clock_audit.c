/* clock_audit.c: checks for tests that a device never held more than its capacity.
 *
 * clock_hold.c ensures it when bytes are taken. This file checks it independently: it sorts the times from when to when
 * all bytes were held, and adds the bytes up.
 */
#include <stdlib.h>

#include "clock/internal_clock.h"
#include "clock/clock_testing.h"

int mgd_clock_audit_start(struct mgd_clock *c) {
  mgd_clock_enter(c);
  c->audited = true;
  for (int d = 0; d < c->devices; d++) {
    mgd_clock_place_of(c, d)->largest = mgd_clock_place_of(c, d)->capacity;
  }
  return mgd_clock_leave(c, MGD_OK);
}

/* A change of the held bytes: positive at the begin of a hold, negative at its end. */
struct change {
  int64_t at, bytes;
};

/* At equal times ends come first: they make room for the begins. */
static int by_time(const void *a, const void *b) {
  const struct change *x = a, *y = b;
  if (x->at != y->at) {
    return x->at < y->at ? -1 : 1;
  }
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Returns the number of changes of a list of holds, and writes them unless `out` is NULL. */
static size_t list(struct mgd_clock *c, struct mgd_hold *h, bool living, struct change *out) {
  size_t n = 0;
  for (; h; h = h->next, n += 2) {
    if (out) {
      out[n] = (struct change){mgd_clock_flow_time(c, &h->begin), h->bytes};
      out[n + 1] = (struct change){living ? INT64_MAX : mgd_clock_hold_end(c, h), -h->bytes};
    }
  }
  return n;
}

static size_t list_all(struct mgd_clock *c, const struct mgd_clock_place *place, struct change *out) {
  size_t n = list(c, place->over, false, out);
  n += list(c, place->living, true, out ? out + n : NULL);
  for (int s = 0; s < MGD_MAX_STREAMS; s++) {
    n += list(c, place->streams[s].leaving, false, out ? out + n : NULL);
  }
  return n;
}

static int64_t add_up(struct change *changes, size_t n) {
  int64_t held = 0, most = 0;
  qsort(changes, n, sizeof *changes, by_time);
  for (size_t i = 0; i < n; i++) {
    held += changes[i].bytes;
    most = mgd_max(most, held);
  }
  return most;
}

/* Frees the holds that ended before `issued`: no new hold begins earlier, so they cannot overlap one. */
static void drop_past(struct mgd_clock *c, struct mgd_clock_place *place) {
  for (struct mgd_hold **at = &place->over, *h; (h = *at);) {
    if (mgd_clock_hold_end(c, h) > place->issued) {
      at = &h->next;
    } else {
      *at = h->next;
      mgd_clock_hold_free(c, h);
    }
  }
}

static int check(struct mgd_clock *c, int device, int64_t *most) {
  struct mgd_clock_place *place = mgd_clock_place_of(c, device);
  const size_t n = list_all(c, place, NULL);
  struct change *changes = mgd_alloc_new(&c->alloc, n + 1, sizeof *changes);
  if (!changes) {
    return MGD_E_NOMEM;
  }
  *most = add_up(changes, list_all(c, place, changes));
  mgd_alloc_free(changes);
  drop_past(c, place);
  const bool fits = *most <= place->largest;
  place->largest = *most <= place->capacity ? place->capacity : place->largest;
  return fits ? MGD_OK : MGD_E_BROKEN;
}

int mgd_clock_audit_check(struct mgd_clock *c, int device, int64_t *most) {
  if (!mgd_clock_is_device(c, device, 0)) {
    return MGD_E_NO_DEVICE;
  }
  mgd_clock_enter(c);
  return mgd_clock_leave(c, c->audited ? check(c, device, most) : MGD_E_INVALID);
}
