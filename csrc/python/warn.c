/* warn.c: issues warnings of repeated copies, of slow memory and of growth on the host.
 *
 * Warnings arise inside operators, which must not call Python or raise. They are queued, and issued when the
 * interpreter can be called and an error does no harm, since filters may turn a warning into an error: at the end of a
 * step, or as soon as the main thread is back in the user's own code.
 */
#include "python/binding.h"

/* These are static because pending calls get no state; the module lives as long as the process. */
static PyObject *category; /* the class of warnings of copies */
static struct mgd_state *state;

#define WARNING 30 /* a level of logging */

static PyObject *text_of_file(const char *file) { return PyUnicode_DecodeFSDefault(file[0] ? file : "<backward>"); }

/* Issues a warning and steals `text`. All but those of copies are also logged. -1: the filters have turned it into an
 * error. */
static int say(PyObject *text, uint32_t id, int is_of_copies) {
  struct mgd_site site = {"", "", 0};
  mgd_site_get(mgd_torch_machine(), id, &site);
  PyObject *file = text_of_file(site.file);
  PyObject *kind = is_of_copies ? category : PyExc_RuntimeWarning;
  if (file && !is_of_copies) mgd_state_log(state, WARNING, "%U", text);
  const int failed = !file || PyErr_WarnExplicitObject(kind, text, file, site.line, NULL, NULL) < 0;
  Py_XDECREF(file);
  Py_DECREF(text);
  return failed ? -1 : 0;
}

int mgd_warn_flush(void) {
  uint32_t site = 0;
  int is_of_copies = 0;
  PyObject *text;
  while ((text = mgd_torch_take_warning(&site, &is_of_copies)))
    if (say(text, site, is_of_copies) < 0) return -1; /* the rest stays queued */
  return PyErr_Occurred() ? -1 : 0;
}

int mgd_warn_end_step(enum mgd_growth_end end) {
  if (end != MGD_GROWTH_CALL) mgd_repeat_begin_step(mgd_torch_machine());
  mgd_torch_end_step(end);
  return mgd_warn_flush();
}

/* Makes managed._modules.calls report calls of modules, once csrc/torch has asked for them. It runs in any frame of the
 * program, also in one without builtins, such as collections.namedtuple() makes. PyImport_ImportModule() takes
 * __import__ from there. */
static int count_calls(void) {
  static int counted;
  if (counted || !mgd_torch_counts_calls()) return 0;
  counted = 1;
  PyObject *names = Py_BuildValue("(s)", "install"); /* with names the submodule is returned, not the package */
  PyObject *calls = names ? PyImport_ImportModuleLevel("managed._modules.calls", NULL, NULL, names, 0) : NULL;
  PyObject *done = calls ? PyObject_CallMethod(calls, "install", NULL) : NULL;
  Py_XDECREF(names);
  Py_XDECREF(calls);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* Runs in the main thread between two instructions. An error must not interrupt an optimizer's step, a backward pass or
 * our own functions: they end with a step or return to the user soon, so the warnings wait for that. */
static int said_by_interpreter(void *unused) {
  (void)unused;
  return count_calls() < 0 ? -1 : mgd_frames_in_transaction() ? 0 : mgd_warn_flush();
}

/* Called inside operators, on any thread, with or without the GIL. If Python's queue is full, the end of the step
 * issues the warnings. */
static void wake(void) {
  if (Py_IsInitialized()) (void)Py_AddPendingCall(said_by_interpreter, NULL);
}

static PyObject *begin_step(PyObject *module, PyObject *args) {
  int call = 0;
  (void)module;
  if (!PyArg_ParseTuple(args, "|p:begin_step", &call) || mgd_state_ready() < 0) return NULL;
  if (mgd_warn_end_step(call ? MGD_GROWTH_CALL : MGD_GROWTH_OPTIMIZER) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *get_copy_warning(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return mgd_state_ready() < 0 ? NULL : PyLong_FromLongLong(mgd_repeat_limit(mgd_torch_machine()));
}

static PyObject *set_copy_warning(PyObject *module, PyObject *value) {
  (void)module;
  int overflow = 0;
  const int number = PyLong_Check(value) && !PyBool_Check(value);
  const long long limit = number ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
  if (mgd_state_ready() < 0) return NULL;
  if (!number) return PyErr_Format(PyExc_TypeError, "managed: COPY_WARNING is a number of copies, not %R", value);
  if (overflow || mgd_repeat_set_limit(mgd_torch_machine(), limit))
    return PyErr_Format(
        PyExc_ValueError,
        "managed: COPY_WARNING is %R; it is a number of copies from 1 to 2**63 - 1, or 0 for no warning", value);
  Py_RETURN_NONE;
}

int mgd_warn_install(struct mgd_state *st) {
  PyObject *errors = PyImport_ImportModule("managed.errors");
  category = errors ? PyObject_GetAttrString(errors, "CopyWarning") : NULL;
  Py_XDECREF(errors);
  state = st;
  if (!category || mgd_frames_init() < 0) return -1;
  mgd_torch_set_call_site(mgd_frames_site);
  mgd_torch_set_wake(wake);
  return 0;
}

PyMethodDef mgd_warn_methods[] = {
    {"begin_step", begin_step, METH_VARARGS,
     PyDoc_STR(
         "begin_step(call=False, /)\n--\n\nCounts copies from zero again and says the warnings that wait. `call`: "
         "a call of a module has ended, and copies are counted on.")},
    {"get_copy_warning", get_copy_warning, METH_NOARGS,
     PyDoc_STR("get_copy_warning()\n--\n\nCopies of a tensor to a device in a step after which a warning is due.")},
    {"set_copy_warning", set_copy_warning, METH_O,
     PyDoc_STR("set_copy_warning(copies, /)\n--\n\nSets that number; 0 turns the warning off.")},
    {NULL, NULL, 0, NULL}};
