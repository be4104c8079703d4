/* garbage.c: runs Python's garbage collector when a device is full.
 *
 * A thread that needs room may be inside an operator that other threads wait for, and one of those may hold the GIL. So
 * it takes no GIL: a separate thread takes it and collects, and the caller waits for that thread with a deadline. A
 * collection seldom frees device memory, so at most a fifth of the time is spent on it.
 */
#include "python/binding.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define PATIENCE 1 /* seconds */
#define REST 4 /* after a collection there is none for this many times its duration */

/* All fields are guarded by the mutex, inside which no other lock is taken. */
static struct {
  pthread_mutex_t mutex;
  pthread_cond_t ended;
  int running, closed;
  uint64_t rounds;
  int64_t not_before;
} collector = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0};

static void collect_now(void) {
  PyObject *gc = PyImport_ImportModule("gc");
  PyObject *found = gc ? PyObject_CallMethod(gc, "collect", NULL) : NULL;
  Py_XDECREF(found);
  Py_XDECREF(gc);
  PyErr_Clear();
}

/* This thread runs only C: at the interpreter's end a thread that requests the GIL is ended by unwinding its stack. */
static void *work(void *unused) {
  (void)unused;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const int64_t began = mgd_torch_now();
  collect_now();
  const int64_t took = mgd_torch_now() - began;
  PyGILState_Release(gil);
  pthread_mutex_lock(&collector.mutex);
  collector.running = 0;
  collector.rounds++;
  collector.not_before = began + (1 + REST) * took;
  pthread_cond_broadcast(&collector.ended);
  pthread_mutex_unlock(&collector.mutex);
  return NULL;
}

static int start(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, NULL) != 0) return 0;
  pthread_detach(thread);
  return collector.running = 1;
}

/* Waits until the round has ended or PATIENCE is over; true if it has ended. */
static int wait_for_end(uint64_t round) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE;
  int late = 0;
  while (collector.rounds == round && !late)
    late = pthread_cond_timedwait(&collector.ended, &collector.mutex, &until) == ETIMEDOUT;
  return collector.rounds != round;
}

static int collect(void) {
  pthread_mutex_lock(&collector.mutex);
  const int may = !collector.closed && (collector.running || mgd_torch_now() >= collector.not_before);
  const int ended = may && (collector.running || start()) && wait_for_end(collector.rounds);
  pthread_mutex_unlock(&collector.mutex);
  return ended;
}

void mgd_garbage_collect(void) {
  Py_BEGIN_ALLOW_THREADS collect();
  Py_END_ALLOW_THREADS
}

static PyObject *close_collector(PyObject *unused, PyObject *none) {
  (void)unused, (void)none;
  Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&collector.mutex);
  collector.closed = 1;
  if (collector.running) wait_for_end(collector.rounds);
  pthread_mutex_unlock(&collector.mutex);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

/* A child of fork() has no collecting thread. */
static void child_begins(void) {
  pthread_mutex_init(&collector.mutex, NULL);
  pthread_cond_init(&collector.ended, NULL);
  collector.running = 0;
}

int mgd_garbage_init(void) {
  static PyMethodDef method = {"close_collector", close_collector, METH_NOARGS, NULL};
  PyObject *function = PyCFunction_New(&method, NULL);
  PyObject *module = function ? PyImport_ImportModule("atexit") : NULL;
  PyObject *done = module ? PyObject_CallMethod(module, "register", "O", function) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(function);
  if (!done) return -1;
  Py_DECREF(done);
  pthread_atfork(NULL, NULL, &child_begins);
  mgd_torch_set_collector(collect);
  return 0;
}
