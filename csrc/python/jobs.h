/* jobs.h: functions that need the GIL, for threads that must not wait for it without a deadline.
 *
 * The caller makes a job on the heap, starts it and waits for it as long as it likes, and releases it in the
 * end. Functions but the first need no GIL.
 */
#ifndef MGD_JOBS_H
#define MGD_JOBS_H

#include "python/binding.h"

struct mgd_job {
  void (*run)(struct mgd_job *job); /* with the GIL, in a thread of its own */
  void (*drop)(struct mgd_job *job); /* frees it, when nothing refers to it; needs no GIL. NULL: free() does */
  int parties, ended; /* private */
};
int mgd_jobs_init(void);
int mgd_jobs_start(struct mgd_job *job); /* 0: there is no thread for it, or the interpreter ends */
int mgd_jobs_wait(struct mgd_job *job, int64_t deadline); /* without the GIL; 0: it has not ended by then */
void mgd_jobs_hold(struct mgd_job *job);
void mgd_jobs_release(struct mgd_job *job);

#endif
