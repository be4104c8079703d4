/* largest.h: which storages of a device are the largest, for reports.
 */
#ifndef MGD_LARGEST_H
#define MGD_LARGEST_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mgd_large {
  uint64_t object, number; /* as given by the mgd_large_identify_fn */
  int64_t bytes;
  int away;    /* mgd_handle.away: the device that has the bytes; -1: they are at home */
  int pin;     /* enum mgd_pin, the first kind of its pins; MGD_PIN_KINDS: it has none */
  bool in_use; /* by an operator or a mover */
};

/* Gets the object that a storage belongs to, and the storage's own number. It is called with the machine's mutex held,
 * so it must only read. */
typedef void (*mgd_large_identify_fn)(const struct mgd_handle *handle, uint64_t *object, uint64_t *number);

/* Reads the largest storages whose home is `device`, the largest first, among equals the newest first. *n in: room in
 * `out`; out: count. It looks at all storages of the device. */
int mgd_largest_read(struct mgd_machine *m, int device, mgd_large_identify_fn identify, struct mgd_large *out,
                     size_t *n);

#ifdef __cplusplus
}
#endif
#endif
