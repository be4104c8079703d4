/* step_file.h: converts what a device has learned to bytes for a file, and back.
 *
 * The bytes are numbers of 64 bits in this machine's order; the caller, which writes the file, stores in it what wrote
 * it, and detects damage. Nothing that is read is trusted all the same: each index, count and size is checked before it
 * is used.
 */
#ifndef MGD_STEP_FILE_H
#define MGD_STEP_FILE_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gets the *steps steps that the device has learned, as *numbers numbers in *out, which the caller frees with free().
 * 0 and NULL: it has learned none. */
int mgd_step_file_save(struct mgd_machine *m, int device, int64_t **out, size_t *numbers, int *steps);
/* Plans the steps for the room that there is now; they are followed when the program reaches them. *steps: how many
 * were loaded. INVALID: these are no such bytes. ABSENT: the device does not learn. NO_ROOM: there is too little for
 * one of them. WAIT: a thread is planning. Steps that were loaded before the failure stay. */
int mgd_step_file_load(struct mgd_machine *m, int device, const int64_t *numbers, size_t n, int *steps);

#ifdef __cplusplus
}
#endif
#endif
