/* largest.h: which storages of a device are the largest, for whoever looks on from outside.
 */
#ifndef MGD_LARGEST_H
#define MGD_LARGEST_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mgd_large {
  uint64_t object, number; /* what `who` says of it */
  int64_t bytes;
  int away;    /* the device that has the bytes, or is to have them; -1: they are at home */
  int pin;     /* enum mgd_pin, the first kind that keeps it at home; MGD_PIN_KINDS: none */
  bool in_use; /* by an operator or a mover */
};

/* Whose a storage is, and which. Called with the machine's mutex held, so it reads and does nothing else. */
typedef void (*mgd_large_who_fn)(const struct mgd_handle *handle, uint64_t *object, uint64_t *number);

/* The largest storages whose home is `device`, the largest first; of equals the one that was made last. *n in: room in
 * `out`; out: how many. It looks at all storages of the device. */
int mgd_largest_read(struct mgd_machine *m, int device, mgd_large_who_fn who, struct mgd_large *out, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
