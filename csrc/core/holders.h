/* holders.h: what is known of other allocators that have memory of a device.
 *
 * Part of types.h, which includes it. A holder keeps bytes that its program has freed: they are cached. What the
 * program uses of a holder's memory is live.
 */
#ifndef MGD_HOLDERS_H
#define MGD_HOLDERS_H

#include <stdint.h>

#define MGD_MAX_HOLDERS 32

/* A holder, and its numbers on one device, all but the last two in bytes. */
struct mgd_holding {
  int id;               /* > 0, and never used again */
  char name[32];
  int64_t live, cached; /* as the holder reported last */
  int64_t asked, given; /* in all; `given` is what came free on the device */
  int64_t asks;         /* how often it was asked */
  int64_t rest;         /* in how many shortages from now on it is not asked */
};

/* The holders that one request for room asks, each at most once. The caller owns it. */
struct mgd_holder_round {
  int device, count;
  struct mgd_holder_entry {
    int id;
    int64_t spare; /* how many bytes it can be asked for; < 0 until it has reported, 0 when it has been asked */
  } entries[MGD_MAX_HOLDERS];
};

#endif
