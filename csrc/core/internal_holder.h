/* internal_holder.h: what the machine keeps of each holder of memory; core/holders.h.
 *
 * Part of internal_machine.h, which includes it.
 */
#ifndef MGD_INTERNAL_HOLDER_H
#define MGD_INTERNAL_HOLDER_H

#include "core/types.h"

#define MGD_NAME_BYTES 32 /* of a device's or a holder's name, with the byte that ends it */

struct mgd_holder {
  int id; /* 0: the slot is free */
  char name[MGD_NAME_BYTES];
  int64_t keep; /* it is never asked for the last so many bytes that it has cached on a device */
  struct mgd_holder_on {
    int64_t live, cached, asked, given, asks, rest; /* as in struct mgd_holding */
    int refusals; /* how often in a row it gave nothing, up to a limit */
  } on[MGD_MAX_DEVICES];
};

#endif
