/* jobs.c: runs functions with the GIL for threads that must not wait for it without a deadline.
 *
 * A thread that needs room may be inside an operator that another thread waits for, and that one may have the GIL. So a
 * job has a thread of its own, which waits for the GIL and is left to itself when the caller has waited long enough.
 * The thread runs only C itself: at the interpreter's end a thread that takes the GIL is ended by unwinding its stack.
 */
#include "python/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define NS 1000000000LL

/* The mutex guards all fields, and those of jobs. No other lock is taken inside. */
static struct {
  pthread_mutex_t mutex;
  pthread_cond_t ended; /* a job has */
  int running, closed;
} jobs = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

void mgd_jobs_release(struct mgd_job *job) {
  pthread_mutex_lock(&jobs.mutex);
  const int last = --job->parties == 0;
  pthread_mutex_unlock(&jobs.mutex);
  if (!last) return;
  if (job->drop) job->drop(job);
  else free(job);
}

void mgd_jobs_hold(struct mgd_job *job) {
  pthread_mutex_lock(&jobs.mutex);
  job->parties++;
  pthread_mutex_unlock(&jobs.mutex);
}

static void *work(void *argument) {
  struct mgd_job *job = argument;
  const PyGILState_STATE gil = PyGILState_Ensure();
  job->run(job);
  PyGILState_Release(gil);
  pthread_mutex_lock(&jobs.mutex);
  job->ended = 1;
  jobs.running--;
  pthread_cond_broadcast(&jobs.ended);
  pthread_mutex_unlock(&jobs.mutex);
  mgd_jobs_release(job);
  return NULL;
}

int mgd_jobs_start(struct mgd_job *job) {
  pthread_t thread;
  pthread_mutex_lock(&jobs.mutex);
  const int started = !jobs.closed && pthread_create(&thread, NULL, work, job) == 0;
  job->parties = 1 + started;
  job->ended = 0;
  jobs.running += started;
  pthread_mutex_unlock(&jobs.mutex);
  if (started) pthread_detach(thread);
  return started;
}

/* The time of day at which so many ns have passed. */
static struct timespec in_ns(int64_t ns) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  ns = t.tv_nsec + (ns > 0 ? ns : 0);
  t.tv_sec += ns / NS;
  t.tv_nsec = ns % NS;
  return t;
}

int mgd_jobs_wait(struct mgd_job *job, int64_t deadline) {
  const struct timespec until = in_ns(deadline - mgd_torch_now());
  pthread_mutex_lock(&jobs.mutex);
  int late = 0;
  while (!job->ended && !late) late = pthread_cond_timedwait(&jobs.ended, &jobs.mutex, &until) == ETIMEDOUT;
  const int ended = job->ended;
  pthread_mutex_unlock(&jobs.mutex);
  return ended;
}

static PyObject *close_jobs(PyObject *unused, PyObject *none) {
  (void)unused, (void)none;
  const struct timespec until = in_ns(MGD_WAIT_FOR_GIL);
  PyThreadState *gil = PyEval_SaveThread();
  pthread_mutex_lock(&jobs.mutex);
  jobs.closed = 1;
  int late = 0;
  while (jobs.running && !late) late = pthread_cond_timedwait(&jobs.ended, &jobs.mutex, &until) == ETIMEDOUT;
  pthread_mutex_unlock(&jobs.mutex);
  PyEval_RestoreThread(gil);
  Py_RETURN_NONE;
}

/* A child of fork() has none of the threads. */
static void child_begins(void) {
  pthread_mutex_init(&jobs.mutex, NULL);
  pthread_cond_init(&jobs.ended, NULL);
  jobs.running = 0;
}

int mgd_jobs_init(void) {
  static PyMethodDef method = {"close_jobs", close_jobs, METH_NOARGS, NULL};
  PyObject *function = PyCFunction_New(&method, NULL);
  PyObject *module = function ? PyImport_ImportModule("atexit") : NULL;
  PyObject *done = module ? PyObject_CallMethod(module, "register", "O", function) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(function);
  if (!done) return -1;
  Py_DECREF(done);
  pthread_atfork(NULL, NULL, &child_begins);
  return 0;
}
