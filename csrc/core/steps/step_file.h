/* step_file.h: what a device has learned, as bytes for a file, and back.
 *
 * The bytes are numbers of 64 bits in this machine's order; who writes the file says in it what wrote it, and finds
 * damage. Nothing that is read is trusted all the same: each index, count and size is checked before it is used.
 */
#ifndef MGD_STEP_FILE_H
#define MGD_STEP_FILE_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps that the device has learned: *numbers of them, in *out, which the caller frees with free(); *steps of them.
 * 0 and NULL: it has learned none. */
int mgd_step_file_save(struct mgd_machine *m, int device, int64_t **out, size_t *numbers, int *steps);
/* Plans the steps for the room that is there now; they are followed where the program comes to them. *steps: how many.
 * INVALID: they are no such bytes, ABSENT: nothing is learned here, NO_ROOM: there is too little for one of them, WAIT:
 * a thread plans. What was taken up before the failure stays. */
int mgd_step_file_load(struct mgd_machine *m, int device, const int64_t *numbers, size_t n, int *steps);

#ifdef __cplusplus
}
#endif
#endif
