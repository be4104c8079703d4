/* frames.c: finds the line of the user's program that is running in this thread.
 *
 * Operators run without the GIL, and taking it there could deadlock. A thread may read its own frames without it: no
 * other thread changes them, and each of them keeps its code object alive. So this file only reads: it takes no
 * reference, makes no object and calls no Python. CPython has no public function that works like this; the layout is
 * taken from its internal headers, and with a Python newer than those known here there are no call sites.
 */
#include "python/binding.h"

#define Py_BUILD_CORE
#define Py_BUILD_CORE_MODULE
#if PY_VERSION_HEX >= 0x030C0000
#undef _PyGC_FINALIZED /* 3.12 defines it in both kinds of headers */
#endif
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030F0000
#include <internal/pycore_frame.h>
#include <internal/pycore_code.h>
#endif
#if PY_VERSION_HEX >= 0x030E0000 && PY_VERSION_HEX < 0x030F0000
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#endif

#include <pthread.h>
#include <sched.h>
#include <string.h>

/* ---- one frame */

#if PY_VERSION_HEX >= 0x030F0000
typedef void frame;
static const frame *newest(const PyThreadState *thread) { return NULL; }
static const frame *outer(const frame *f) { return NULL; }
static PyCodeObject *code_of(const frame *f) { return NULL; }
static int line_of(const frame *f, PyCodeObject *code) { return 0; }
#elif PY_VERSION_HEX >= 0x030B0000
typedef struct _PyInterpreterFrame frame;
#if PY_VERSION_HEX >= 0x030D0000
static frame *newest(const PyThreadState *thread) { return thread->current_frame; }
static PyCodeObject *code_of(frame *f) { return _PyFrame_IsIncomplete(f) ? NULL : _PyFrame_GetCode(f); }
#else
static frame *newest(const PyThreadState *thread) { return thread->cframe->current_frame; }
static PyCodeObject *code_of(frame *f) { return _PyFrame_IsIncomplete(f) ? NULL : f->f_code; }
#endif
static frame *outer(const frame *f) { return f->previous; }
static int line_of(frame *f, PyCodeObject *code) {
  return PyCode_Addr2Line(code, _PyInterpreterFrame_LASTI(f) * (int)sizeof(_Py_CODEUNIT));
}
#else
typedef PyFrameObject frame;
static frame *newest(const PyThreadState *thread) { return thread->frame; }
static frame *outer(const frame *f) { return f->f_back; }
static PyCodeObject *code_of(const frame *f) { return f->f_code; }
static int line_of(const frame *f, PyCodeObject *code) {
  return PyCode_Addr2Line(code, f->f_lasti * (int)sizeof(_Py_CODEUNIT));
}
#endif

static PyObject *name_of(const PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030B0000
  return code->co_qualname;
#else
  return code->co_name;
#endif
}

/* ---- text */

#define TEXT 512

/* Encodes one code point as UTF-8; `out` has room for four bytes. */
static size_t encode(Py_UCS4 c, unsigned char *out) {
  static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
  const size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  for (size_t i = more; i > 0; i--, c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
  out[0] = (unsigned char)(lead[more] | c);
  return more + 1;
}

/* Returns the string as UTF-8: itself if it is ASCII, otherwise as much as fits into `room`. */
static const char *text_of(PyObject *string, char room[TEXT]) {
  if (!string || !PyUnicode_Check(string) || !PyUnicode_IS_COMPACT(string)) return "";
  if (PyUnicode_IS_COMPACT_ASCII(string)) return PyUnicode_DATA(string);
  const int kind = (int)PyUnicode_KIND(string);
  size_t used = 0;
  for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(string) && used + 5 <= TEXT; i++)
    used += encode(PyUnicode_READ(kind, PyUnicode_DATA(string), i), (unsigned char *)room + used);
  room[used] = '\0';
  return room;
}

/* ---- library code and the user's code */

/* Folders of code that is not the user's, each with its slash; written once, by mgd_frames_init(). */
static struct {
  char torch[TEXT], own[TEXT], optim[TEXT + 16], autograd[TEXT + 16];
} folders;

static int is_in(const char *file, const char *folder) {
  return folder[0] && strncmp(file, folder, strlen(folder)) == 0;
}

static int ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* The last two are what begins a thread and what a thread pool runs its jobs in. */
static int is_library(const char *file) {
  return is_in(file, folders.torch) || is_in(file, folders.own) || ends_with(file, "/concurrent/futures/thread.py") ||
      ends_with(file, "/threading.py");
}

/* Finds the folder of a module, which has a file. */
static int folder_of(const char *module_name, char out[TEXT]) {
  PyObject *module = PyImport_ImportModule(module_name);
  PyObject *file = module ? PyModule_GetFilenameObject(module) : NULL;
  const char *text = file ? PyUnicode_AsUTF8(file) : NULL;
  const char *slash = text ? strrchr(text, '/') : NULL;
  if (slash && slash + 2 - text < TEXT) PyOS_snprintf(out, TEXT, "%.*s", (int)(slash + 1 - text), text);
  Py_XDECREF(file);
  Py_XDECREF(module);
  return text ? 0 : -1;
}

/* ---- the end of the interpreter */

/* The interpreter frees the state of running daemon threads when it ends, so no thread may be walking by then. */
static int walking, closed;

static PyObject *close_frames(PyObject *unused, PyObject *none) {
  (void)unused, (void)none;
  __atomic_store_n(&closed, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&walking, __ATOMIC_SEQ_CST)) sched_yield(); /* a walk needs no GIL, and is short */
  Py_RETURN_NONE;
}

/* Called in a child of fork(), which has only this thread; it was calling fork(), so it is not walking. */
static void child_begins(void) { walking = 0; }

static int close_at_exit(void) {
  static PyMethodDef method = {"close_frames", close_frames, METH_NOARGS, NULL};
  PyObject *function = PyCFunction_New(&method, NULL);
  PyObject *module = function ? PyImport_ImportModule("atexit") : NULL;
  PyObject *done = module ? PyObject_CallMethod(module, "register", "O", function) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(function);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

int mgd_frames_init(void) {
  if (folder_of("torch", folders.torch) < 0 || folder_of("managed.errors", folders.own) < 0 || close_at_exit() < 0)
    return -1;
  pthread_atfork(NULL, NULL, &child_begins);
  PyOS_snprintf(folders.optim, sizeof folders.optim, "%soptim/", folders.torch);
  PyOS_snprintf(folders.autograd, sizeof folders.autograd, "%sautograd/", folders.torch);
  return 0;
}

/* ---- the call site */

/* Calls `visit` for each frame of this thread from the innermost outwards, until it returns true. */
static void walk(int (*visit)(frame *, PyCodeObject *, void *), void *context) {
  __atomic_add_fetch(&walking, 1, __ATOMIC_SEQ_CST);
  const PyThreadState *thread = __atomic_load_n(&closed, __ATOMIC_SEQ_CST) ? NULL : PyGILState_GetThisThreadState();
  for (frame *f = thread ? newest(thread) : NULL; f; f = outer(f)) {
    PyCodeObject *code = code_of(f);
    if (code && visit(f, code, context)) break;
  }
  __atomic_sub_fetch(&walking, 1, __ATOMIC_SEQ_CST);
}

static int intern_first_of_user(frame *f, PyCodeObject *code, void *id) {
  char file[TEXT], function[TEXT];
  const struct mgd_site site = {text_of(code->co_filename, file), text_of(name_of(code), function), line_of(f, code)};
  if (is_library(site.file)) return 0;
  mgd_site_intern(mgd_torch_machine(), &site, id); /* no memory: the site stays unknown */
  return 1;
}

uint32_t mgd_frames_site(void) {
  uint32_t id = 0;
  walk(intern_first_of_user, &id);
  return id;
}

static int is_transaction(frame *f, PyCodeObject *code, void *found) {
  (void)f;
  char room[TEXT];
  const char *file = text_of(code->co_filename, room);
  return *(int *)found = is_in(file, folders.own) || is_in(file, folders.optim) || is_in(file, folders.autograd);
}

int mgd_frames_in_transaction(void) {
  int found = 0;
  walk(is_transaction, &found);
  return found;
}

/* ---- savers */

/* Functions that request storages to write them into a file or read them from one, or addresses to compare them. This
 * is the one list. */
static const struct {
  const char *file, *function;
} savers[] = {
    {"/torch/_tensor.py", "_reduce_ex_internal"},
    {"/torch/_tensor.py", "__deepcopy__"},
    {"/torch/serialization.py", "persistent_id"},
    {"/torch/serialization.py", "load_tensor"},
    {"/torch/serialization.py", "persistent_load"},
    {"/torch/serialization.py", "_legacy_load"},
    {"/safetensors/torch.py", "storage_ptr"},
    {"/safetensors/torch.py", "storage_size"},
    {"/safetensors/torch.py", "_end_ptr"},
    {"/safetensors/torch.py", "_is_complete"},
    {"/safetensors/torch.py", "_filter_shared_not_shared"},
    {"/huggingface_hub/serialization/_torch.py", "storage_ptr"},
    {"/huggingface_hub/serialization/_torch.py", "get_torch_storage_size"},
    {"/huggingface_hub/serialization/_torch.py", "_end_ptr"},
    {"/huggingface_hub/serialization/_torch.py", "_is_complete"},
    {"/huggingface_hub/serialization/_torch.py", "_filter_shared_not_shared"},
    {"/transformers/modeling_utils.py", "_end_ptr"},
    {"/transformers/modeling_utils.py", "_find_disjoint"},
    {"/transformers/modeling_utils.py", "_find_identical"},
    {"/accelerate/utils/modeling.py", "id_tensor_storage"},
};

/* Whether the function is torch's or managed's own, between the saver and the request. */
static int is_between(const char *file, const char *function) {
  return is_in(file, folders.own) || ends_with(file, "/torch/storage.py") ||
      (is_in(file, folders.torch) && strcmp(function, "_typed_storage") == 0);
}

static int is_listed(const char *file, const char *function) {
  for (size_t i = 0; i < sizeof savers / sizeof *savers; i++)
    if (strcmp(function, savers[i].function) == 0 && ends_with(file, savers[i].file)) return 1;
  return 0;
}

/* Whether the innermost caller is a saver. copy.copy() uses the same functions as pickle, but makes a plain tensor, so
 * it is none. */
static int is_saver(frame *f, PyCodeObject *code, void *found) {
  (void)f;
  int *saver = found;
  char room[TEXT], name[TEXT];
  const char *file = text_of(code->co_filename, room), *function = text_of(code->co_name, name);
  if (is_between(file, function)) return 0;
  if (!*saver && !(*saver = is_listed(file, function))) return 1;
  if (is_in(file, folders.torch)) return 0;
  if (strcmp(function, "copy") == 0 && ends_with(file, "/copy.py")) *saver = 0;
  return 1;
}

int mgd_frames_is_saver(void) {
  int found = 0;
  walk(is_saver, &found);
  return found;
}
