/* garbage.c: runs Python's garbage collector when a device is full.
 *
 * A collection seldom frees device memory, so at most a fifth of the time is spent on it. Threads that ask while one is
 * under way wait for that one.
 */
#include "python/jobs.h"

#include <pthread.h>
#include <stdlib.h>

#define REST 4 /* after a collection there is none for this many times its duration */

/* Guarded by the mutex, inside which only that of jobs is taken. */
static struct {
  pthread_mutex_t mutex;
  struct mgd_job *job; /* the collection under way, or NULL */
  int64_t not_before;
} collector = {PTHREAD_MUTEX_INITIALIZER, NULL, 0};

static void collect_now(void) {
  PyObject *gc = PyImport_ImportModule("gc");
  PyObject *found = gc ? PyObject_CallMethod(gc, "collect", NULL) : NULL;
  Py_XDECREF(found);
  Py_XDECREF(gc);
  PyErr_Clear();
}

static void run(struct mgd_job *job) {
  (void)job;
  const int64_t began = mgd_torch_now();
  collect_now();
  pthread_mutex_lock(&collector.mutex);
  collector.job = NULL;
  collector.not_before = began + (1 + REST) * (mgd_torch_now() - began);
  pthread_mutex_unlock(&collector.mutex);
}

static void start(void) {
  struct mgd_job *job = malloc(sizeof *job);
  if (!job) return;
  *job = (struct mgd_job){.run = run};
  if (mgd_jobs_start(job)) collector.job = job;
  mgd_jobs_release(job);
}

static int collect(int64_t deadline) {
  pthread_mutex_lock(&collector.mutex);
  if (!collector.job && mgd_torch_now() >= collector.not_before) start();
  struct mgd_job *job = collector.job;
  if (job) mgd_jobs_hold(job);
  pthread_mutex_unlock(&collector.mutex);
  const int ended = job && mgd_jobs_wait(job, deadline);
  if (job) mgd_jobs_release(job);
  return ended;
}

void mgd_garbage_collect(void) {
  Py_BEGIN_ALLOW_THREADS collect(mgd_torch_now() + MGD_WAIT_FOR_GIL);
  Py_END_ALLOW_THREADS
}

/* A child of fork() has no collection under way. */
static void child_begins(void) {
  pthread_mutex_init(&collector.mutex, NULL);
  collector.job = NULL;
}

void mgd_garbage_init(void) {
  pthread_atfork(NULL, NULL, &child_begins);
  mgd_torch_set_collector(collect);
}
