/* holders.c: other allocators that keep memory of a device: objects with two methods, and structs in capsules.
 *
 * Which of them is asked is the core's decision (core/residency/holders.c). Here is how: those that need the GIL by a
 * job (jobs.c), so that no thread that needs room waits for the GIL without a deadline. A holder whose function has not
 * returned by the deadline is not called again, nor waited for, before it has.
 */
#include "python/jobs.h"

#include <managed_holder.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SKIPPED 3 /* imports are looked at in each 2 to the power of this many shortages, or more often */

struct holder {
  /* ---- guarded by the mutex */
  int id, references; /* the table's and those of calls */
  struct mgd_job *job; /* runs a function of it now, or NULL */
  int is_late;         /* and the deadline of a request has passed meanwhile */
  /* ---- read and written with the GIL */
  int has_warned;
  const struct managed_holder *c; /* NULL: an object of Python */
  PyObject *object;               /* it, or a weak reference; NULL once it is removed */
  int is_weak;
};

/* Inside the mutex a job is started or held, which takes the jobs' mutex, and no other lock is taken. */
static struct {
  pthread_mutex_t mutex;
  struct holder *of[MGD_MAX_HOLDERS];
} table = {PTHREAD_MUTEX_INITIALIZER, {NULL}};

static struct holder *find_holder(int id) {
  struct holder *found = NULL;
  pthread_mutex_lock(&table.mutex);
  for (int i = 0; i < MGD_MAX_HOLDERS && !found; i++)
    if (table.of[i] && table.of[i]->id == id) found = table.of[i];
  if (found) found->references++;
  pthread_mutex_unlock(&table.mutex);
  return found;
}

static void release(struct holder *h) {
  pthread_mutex_lock(&table.mutex);
  const int last = --h->references == 0;
  pthread_mutex_unlock(&table.mutex);
  if (last) free(h);
}

/* Puts `to` in the place of `from`; either may be NULL. */
static int exchange(struct holder *from, struct holder *to) {
  int done = 0;
  pthread_mutex_lock(&table.mutex);
  for (int i = 0; i < MGD_MAX_HOLDERS && !done; i++) {
    if (table.of[i] != from) continue;
    table.of[i] = to;
    done = 1;
  }
  pthread_mutex_unlock(&table.mutex);
  return done;
}

/* ---- with the GIL */

/* Returns a new reference, or NULL without an exception if the object is dead. */
static PyObject *object_of(const struct holder *h) {
  if (!h->object || !h->is_weak) return Py_XNewRef(h->object);
  PyObject *o = PyWeakref_GetObject(h->object); /* borrowed */
  return o == Py_None ? NULL : Py_NewRef(o);
}

static void remove_holder(struct holder *h) {
  if (!exchange(h, NULL)) return;
  mgd_holders_remove(mgd_torch_machine(), h->id);
  Py_CLEAR(h->object);
  release(h);
}

/* Reads a number of bytes, >= 0; -1 if it is none. No exception stays. */
static int64_t bytes_in(PyObject *report, const char *key) {
  PyObject *value = PyDict_Check(report) ? PyDict_GetItemString(report, key) : NULL; /* borrowed */
  PyObject *number = value ? PyNumber_Index(value) : NULL;
  const long long bytes = number ? PyLong_AsLongLong(number) : -1;
  Py_XDECREF(number);
  PyErr_Clear();
  return bytes < 0 ? -1 : bytes;
}

/* Once for a holder. A filter that makes an error of the warning has no effect: the program's own call goes on. */
static void warn_of(struct holder *h, PyObject *report, const char *device) {
  if (h->has_warned) return;
  h->has_warned = 1;
  PyErr_WarnFormat(PyExc_UserWarning, 1,
                   "managed: a holder's __gpu_memory_report__(\"%s\") returned %R, which is not {\"live\": bytes, "
                   "\"cached\": bytes}; the holder counts as empty",
                   device, report);
  PyErr_Clear();
}

/* What a holder is asked, and what it answers. bytes < 0: a report. */
struct question {
  int64_t bytes, live, cached;
  char device[32];
};

static int ask_object(struct holder *h, PyObject *o, struct question *q) {
  PyObject *answer = q->bytes < 0
      ? PyObject_CallMethod(o, "__gpu_memory_report__", "s", q->device)
      : PyObject_CallMethod(o, "__gpu_memory_reclaim__", "sL", q->device, (long long)q->bytes);
  if (answer && q->bytes < 0) {
    q->live = bytes_in(answer, "live");
    q->cached = bytes_in(answer, "cached");
    if (q->live < 0 || q->cached < 0) {
      q->live = q->cached = 0;
      warn_of(h, answer, q->device);
    }
  }
  const int code = answer ? 0 : -1;
  Py_XDECREF(answer);
  PyErr_Clear();
  return code;
}

static int ask_c(const struct managed_holder *c, struct question *q) {
  if (q->bytes >= 0) return c->reclaim(c->context, q->device, q->bytes) < 0 ? -1 : 0;
  return c->report(c->context, q->device, &q->live, &q->cached) == 0 && q->live >= 0 && q->cached >= 0 ? 0 : -1;
}

static int ask_with_gil(struct holder *h, struct question *q) {
  if (h->c) return ask_c(h->c, q);
  PyObject *o = object_of(h);
  if (!o) {
    remove_holder(h);
    return -1;
  }
  const int code = ask_object(h, o, q);
  Py_DECREF(o);
  return code;
}

/* ---- jobs */

struct call {
  struct mgd_job job;
  struct holder *holder;
  struct question question;
  int code;
};

static void run_call(struct mgd_job *job) {
  struct call *c = (struct call *)job;
  const int before = mgd_torch_exchange_requester(c->holder->id);
  c->code = ask_with_gil(c->holder, &c->question);
  mgd_torch_exchange_requester(before);
  pthread_mutex_lock(&table.mutex);
  c->holder->job = NULL;
  c->holder->is_late = 0;
  pthread_mutex_unlock(&table.mutex);
}

static void drop_call(struct mgd_job *job) {
  release(((struct call *)job)->holder);
  free(job);
}

/* Starts a call, unless one runs: then *other is that one, held. NULL: neither, since the call that runs is late, or
 * there is no thread. */
static struct call *start_call(struct holder *h, const struct question *q, struct mgd_job **other) {
  struct call *c = malloc(sizeof *c);
  if (c) *c = (struct call){.job = {.run = run_call, .drop = drop_call}, .holder = h, .question = *q, .code = -1};
  pthread_mutex_lock(&table.mutex);
  *other = h->is_late ? NULL : h->job;
  if (*other) mgd_jobs_hold(*other);
  const int mine = c && !h->job;
  const int started = mine && mgd_jobs_start(&c->job);
  if (started) {
    h->job = &c->job;
    h->references++; /* the call's */
  }
  pthread_mutex_unlock(&table.mutex);
  if (started) return c;
  free(c);
  return NULL;
}

static void note_late(struct holder *h, const struct mgd_job *job) {
  pthread_mutex_lock(&table.mutex);
  if (h->job == job) h->is_late = 1;
  pthread_mutex_unlock(&table.mutex);
}

/* Threads that need room at the same time call a holder one after the other. */
static int ask_by_job(struct holder *h, struct question *q, int64_t deadline) {
  struct mgd_job *other;
  struct call *c = start_call(h, q, &other);
  while (other) {
    const int ended = mgd_jobs_wait(other, deadline);
    if (!ended) note_late(h, other);
    mgd_jobs_release(other);
    if (!ended) return -1;
    c = start_call(h, q, &other);
  }
  if (!c) return -1;
  const int ended = mgd_jobs_wait(&c->job, deadline);
  const int code = ended ? c->code : -1;
  if (ended) *q = c->question;
  else note_late(h, &c->job);
  mgd_jobs_release(&c->job);
  return code;
}

static int ask(int id, struct question *q, int device, int64_t deadline) {
  struct holder *h = find_holder(id);
  if (!h) return -1;
  int code = mgd_device_name(mgd_torch_machine(), device, q->device);
  if (code == MGD_OK)
    code = h->c && !(h->c->flags & MANAGED_HOLDER_NEEDS_GIL) ? ask_c(h->c, q) : ask_by_job(h, q, deadline);
  release(h);
  return code == 0 ? 0 : -1;
}

static int report(int id, int device, int64_t deadline, int64_t *live, int64_t *cached) {
  struct question q = {.bytes = -1};
  const int code = ask(id, &q, device, deadline);
  *live = q.live;
  *cached = q.cached;
  return code;
}

static int reclaim(int id, int device, int64_t bytes, int64_t deadline) {
  struct question q = {.bytes = bytes};
  return ask(id, &q, device, deadline);
}

/* ---- libraries that the program has imported */

/* skip: in how many shortages from now on nothing is looked for; looks: whether a job does now. Atomic. */
static struct {
  int skip, skipped_last, looks;
} libraries;

static void run_find(struct mgd_job *job) {
  PyObject *module = PyImport_ImportModule("managed._holders_known");
  PyObject *found = module ? PyObject_CallMethod(module, "find", NULL) : NULL;
  const int news = found && PyObject_IsTrue(found) == 1;
  Py_XDECREF(found);
  Py_XDECREF(module);
  PyErr_Clear();
  libraries.skipped_last = news ? 0 : libraries.skipped_last < MOST_SKIPPED ? libraries.skipped_last + 1 : MOST_SKIPPED;
  __atomic_store_n(&libraries.skip, (1 << libraries.skipped_last) - 1, __ATOMIC_RELAXED);
  __atomic_store_n(&libraries.looks, 0, __ATOMIC_RELEASE);
  (void)job;
}

static void find_libraries(int64_t deadline) {
  if (__atomic_load_n(&libraries.skip, __ATOMIC_RELAXED) > 0) {
    __atomic_fetch_sub(&libraries.skip, 1, __ATOMIC_RELAXED);
    return;
  }
  if (__atomic_exchange_n(&libraries.looks, 1, __ATOMIC_ACQUIRE)) return;
  struct mgd_job *job = malloc(sizeof *job);
  if (job) *job = (struct mgd_job){.run = run_find};
  if (job && mgd_jobs_start(job)) mgd_jobs_wait(job, deadline);
  else __atomic_store_n(&libraries.looks, 0, __ATOMIC_RELEASE);
  if (job) mgd_jobs_release(job);
}

/* ---- our side */

static int device_named(const char *name) {
  char known[32];
  for (int id = 1; mgd_device_name(mgd_torch_machine(), id, known) == MGD_OK; id++)
    if (strcmp(name, known) == 0) return id;
  return -1;
}

static int our_report(void *context, const char *device, int64_t *live, int64_t *cached) {
  (void)context;
  const int id = device_named(device);
  return id < 0 ? -1 : mgd_torch_allocator_usage(id, live, cached);
}

static int64_t our_reclaim(void *context, const char *device, int64_t bytes) {
  (void)context;
  const int id = device_named(device);
  return id < 0 || bytes < 0 ? -1 : mgd_torch_give_back(id, bytes);
}

static struct managed_holder ours = {MANAGED_HOLDER_ABI, sizeof ours, "torch", 0, NULL, our_report, our_reclaim};

/* ---- functions of the module */

static const struct managed_holder *struct_in(PyObject *capsule) {
  const struct managed_holder *c = PyCapsule_GetPointer(capsule, MANAGED_HOLDER_CAPSULE);
  if (!c) return NULL;
  if (c == &ours) {
    PyErr_SetString(PyExc_ValueError, "managed: this is managed's own capsule, by which libraries ask it");
    return NULL;
  }
  if (c->abi == MANAGED_HOLDER_ABI && c->size == sizeof *c) {
    if (c->name && c->report && c->reclaim) return c;
    PyErr_SetString(PyExc_ValueError, "managed: the capsule's managed_holder has no name, no report or no reclaim");
    return NULL;
  }
  PyErr_Format(PyExc_ValueError,
               "managed: the capsule holds a managed_holder of abi %u and %u bytes; this managed takes abi %d and %zu "
               "bytes. Compile the library with this managed's managed_holder.h",
               c->abi, c->size, MANAGED_HOLDER_ABI, sizeof *c);
  return NULL;
}

static int has_methods(PyObject *o) {
  static const char *const names[] = {"__gpu_memory_report__", "__gpu_memory_reclaim__"};
  for (int i = 0; i < 2; i++) {
    if (PyObject_HasAttrString(o, names[i])) continue;
    PyErr_Format(PyExc_TypeError,
                 "managed: %R is no holder of memory: it has no %s. A holder has __gpu_memory_report__(device) and "
                 "__gpu_memory_reclaim__(device, nbytes), or is a capsule \"" MANAGED_HOLDER_CAPSULE "\"",
                 o, names[i]);
    return 0;
  }
  return 1;
}

static int refer(struct holder *h, PyObject *o) {
  h->object = h->c ? Py_NewRef(o) : PyWeakref_NewRef(o, NULL);
  h->is_weak = !h->c && h->object;
  if (h->object) return 0;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
  PyErr_Clear(); /* it has no room for weak references */
  h->object = Py_NewRef(o);
  return 0;
}

/* Returns the holder that this object or struct is, borrowed, or NULL. Removes those that have died. */
static struct holder *known_as(PyObject *o, const struct managed_holder *c) {
  for (int i = 0; i < MGD_MAX_HOLDERS; i++) {
    struct holder *h = table.of[i]; /* written with the GIL alone */
    PyObject *there = h ? object_of(h) : NULL;
    Py_XDECREF(there);
    if (h && !there) remove_holder(h);
    else if (h && (there == o || (c && h->c == c))) return h;
  }
  return NULL;
}

static PyObject *holders_add(PyObject *module, PyObject *args) {
  PyObject *o;
  const char *name;
  long long keep;
  if (!PyArg_ParseTuple(args, "OzL:holders_add", &o, &name, &keep) || mgd_state_ready() < 0) return NULL;
  const struct managed_holder *c = PyCapsule_CheckExact(o) ? struct_in(o) : NULL;
  if (!c && (PyCapsule_CheckExact(o) || !has_methods(o))) return NULL;
  if (known_as(o, c)) return PyErr_Format(PyExc_ValueError, "managed: %R is a holder already", o);
  if (!name) name = c ? c->name : Py_TYPE(o)->tp_name;
  struct holder *h = calloc(1, sizeof *h);
  if (!h) return PyErr_NoMemory();
  h->c = c;
  h->references = 1;
  if (refer(h, o) < 0) {
    free(h);
    return NULL;
  }
  const int code = mgd_holders_add(mgd_torch_machine(), name, keep, &h->id);
  if (code == MGD_OK && exchange(NULL, h)) Py_RETURN_NONE;
  Py_CLEAR(h->object);
  free(h);
  if (code == MGD_E_EXISTS) return PyErr_Format(PyExc_ValueError, "managed: there is a holder named \"%s\"", name);
  if (code == MGD_E_FULL)
    return PyErr_Format(PyExc_ValueError, "managed: there are %d holders already", MGD_MAX_HOLDERS);
  if (code == MGD_E_INVALID)
    return PyErr_Format(PyExc_ValueError,
                        "managed: a holder's name has 1 to 31 bytes, and keep= is at least 0; not "
                        "\"%s\" and %lld",
                        name, keep);
  mgd_errors_raise(mgd_state_of(module), code, "adding a holder");
  return NULL;
}

static PyObject *holders_remove(PyObject *module, PyObject *o) {
  (void)module;
  struct holder *h = known_as(o, PyCapsule_IsValid(o, MANAGED_HOLDER_CAPSULE) ? struct_in(o) : NULL);
  if (!h && PyErr_Occurred()) return NULL;
  if (!h) return PyErr_Format(PyExc_ValueError, "managed: %R is no holder", o);
  remove_holder(h);
  Py_RETURN_NONE;
}

/* Gets a new report, if the holder gives one in time; else the last one stands. False: the holder has died. */
static int refresh(struct mgd_holding *known, int device) {
  int64_t live, cached;
  PyThreadState *gil = PyEval_SaveThread();
  const int code = report(known->id, device, mgd_torch_now() + MGD_WAIT_FOR_GIL, &live, &cached);
  PyEval_RestoreThread(gil);
  if (code == 0) {
    mgd_holders_note(mgd_torch_machine(), known->id, device, live, cached);
    known->live = live;
    known->cached = cached;
  }
  struct holder *h = find_holder(known->id);
  if (h) release(h);
  return h != NULL;
}

static PyObject *holders_read(PyObject *module, PyObject *args) {
  PyObject *device;
  int id, any, fresh, n = 0;
  struct mgd_holding holding[MGD_MAX_HOLDERS];
  if (!PyArg_ParseTuple(args, "Op:holders_read", &device, &fresh) || mgd_errors_device_id(device, &id, &any) < 0)
    return NULL;
  const int code = mgd_holders_read(mgd_torch_machine(), id, holding, &n);
  if (code != MGD_OK) {
    mgd_errors_raise(mgd_state_of(module), code, "reading what holders have");
    return NULL;
  }
  PyObject *list = PyList_New(0);
  for (int i = 0; list && i < n; i++) {
    if (fresh && !refresh(&holding[i], id)) continue;
    const struct mgd_holding *h = &holding[i];
    PyObject *row = Py_BuildValue("sLLLLL", h->name, (long long)h->live, (long long)h->cached, (long long)h->asked,
                                  (long long)h->given, (long long)h->asks);
    if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

static PyObject *holders_capsule(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return mgd_state_ready() < 0 ? NULL : PyCapsule_New(&ours, MANAGED_HOLDER_CAPSULE, NULL);
}

static PyObject *give_back(PyObject *module, PyObject *args) {
  PyObject *device, *value;
  int id, any;
  int64_t bytes;
  (void)module;
  if (!PyArg_ParseTuple(args, "OO:give_back", &device, &value) || mgd_errors_device_id(device, &id, &any) < 0 ||
      mgd_errors_bytes(value, "size", &bytes) < 0)
    return NULL;
  if (any || id <= MGD_HOST)
    return PyErr_Format(PyExc_ValueError,
                        "managed: bytes of one accelerator can be given back, with its index (\"cuda:0\", \"sim:1\"), "
                        "not of %R",
                        device);
  return PyLong_FromLongLong(mgd_torch_give_back(id, bytes));
}

/* A child of fork() has none of the threads whose calls were under way. */
static void child_begins(void) {
  pthread_mutex_init(&table.mutex, NULL);
  for (int i = 0; i < MGD_MAX_HOLDERS; i++)
    if (table.of[i]) table.of[i]->job = NULL, table.of[i]->is_late = 0;
  libraries.looks = 0;
}

void mgd_holders_init(void) {
  static const struct mgd_holder_calls calls = {find_libraries, report, reclaim};
  pthread_atfork(NULL, NULL, &child_begins);
  mgd_torch_set_holders(&calls);
}

PyMethodDef mgd_holders_methods[] = {
    {"holders_add", holders_add, METH_VARARGS,
     PyDoc_STR("holders_add(holder, name, keep, /)\n--\n\nAdds what other allocators keep to what is asked in a "
               "shortage.")},
    {"holders_remove", holders_remove, METH_O, PyDoc_STR("holders_remove(holder, /)\n--\n\nUndoes holders_add().")},
    {"holders_read", holders_read, METH_VARARGS,
     PyDoc_STR("holders_read(device, fresh, /)\n--\n\n(name, live, cached, asked, given, asks) of each holder; fresh: "
               "by new reports.")},
    {"holders_capsule", holders_capsule, METH_NOARGS,
     PyDoc_STR("holders_capsule()\n--\n\nA capsule by which libraries in C ask managed.")},
    {"give_back", give_back, METH_VARARGS,
     PyDoc_STR("give_back(device, bytes, /)\n--\n\nMakes bytes free for other libraries; returns how many.")},
    {NULL, NULL, 0, NULL}};
