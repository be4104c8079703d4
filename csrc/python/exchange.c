/* exchange.c: the C functions by which other libraries take tensors without a Python call.
 *
 * DLPack 1.2 has a table of them, in type(tensor).__dlpack_c_exchange_api__. It bypasses Tensor.__dlpack__, so the
 * bytes could leave under a pointer. The table here is torch's, but two functions first note that a pointer leaks. The
 * layout is that of https://github.com/dmlc/dlpack, include/dlpack/dlpack.h.
 */
#include "torch/api.h"
#include "python/binding.h"

typedef int (*give_function)(void *tensor, void *out); /* the type of `out` differs, and does not matter here */

struct exchange_api {
  uint32_t major, minor; /* of DLPack; a reader of the table checks them first */
  void *older;           /* a table for readers that know only older versions, or NULL */
  void (*allocate)(void);
  give_function give; /* the reader has the bytes until it gives them back */
  void (*take)(void);
  give_function describe; /* the reader has the bytes for one call; may be NULL */
  void (*current_stream)(void);
};

static const char NAME[] = "dlpack_exchange_api";
static const struct exchange_api *torchs;
static struct exchange_api ours;

struct gift {
  give_function give;
  PyObject *tensor;
  void *out;
};

/* Notes the pointer, then calls the function, as in tensor.c: between the two the bytes stay where they are. */
static PyObject *give_now(void *context) {
  const struct gift *g = context;
  const int noted = mgd_tensor_is_own(g->tensor);
  if (noted && mgd_torch_expose(g->tensor) < 0) return NULL;
  if (g->give(g->tensor, g->out) == 0) return Py_NewRef(Py_None);
  if (noted) mgd_torch_let_leave(g->tensor);
  return NULL;
}

static int give_noted(give_function give, void *tensor, void *out) {
  struct gift gift = {give, tensor, out};
  PyObject *done = mgd_torch_still(give_now, &gift);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

static int give(void *tensor, void *out) { return give_noted(torchs->give, tensor, out); }
/* The note is needed here too: a launched kernel may read the bytes after the call has returned. */
static int describe(void *tensor, void *out) { return give_noted(torchs->describe, tensor, out); }

static PyObject *exchange_api(PyObject *module, PyObject *capsule) {
  (void)module;
  const struct exchange_api *found = PyCapsule_GetPointer(capsule, NAME);
  if (!found) return NULL;
  if (found == &ours) return Py_NewRef(capsule);
  if (found->major != 1) Py_RETURN_NONE;
  torchs = found;
  ours = *found;
  ours.older = NULL;
  ours.give = give;
  ours.describe = found->describe ? describe : NULL;
  return PyCapsule_New(&ours, NAME, NULL);
}

PyMethodDef mgd_exchange_methods[] = {
    {"exchange_api", exchange_api, METH_O,
     PyDoc_STR("exchange_api(capsule, /)\n--\n\nDLPack's table of C functions that keeps what it gives out at home; "
               "None: its version is\nunknown.")},
    {NULL, NULL, 0, NULL}};
