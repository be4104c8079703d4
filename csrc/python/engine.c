/* engine.c: the object that replaces torch's autograd engine at torch.autograd.Variable._execution_engine.
 *
 * Tensors that autograd saved before a result was marked have no key, so a backward pass runs with the key included in
 * thread-local state. Only run_backward is changed; every other attribute is the engine's own.
 */
#include "python/binding.h"

static const char advice[] =
    "managed: a hook or a custom backward gave a gradient on another device than the tensor that it belongs to. Let it "
    "return "
    "gradient.to(old_gradient.device). Hooks of managed tensors (register_hook) and of managed modules need no such "
    "call if they are "
    "registered after the tensor or module became managed; hooks of autograd nodes (grad_fn.register_hook, "
    "register_prehook) always do.";

struct engine {
  PyObject_HEAD
  PyObject *wrapped;      /* strong: torch's engine */
  PyObject *run_backward; /* strong: its bound method */
};

static const char crossing[] =
    "managed: a gradient that torch.func has wrapped went from one accelerator to another, where torch's engine asks "
    "for a storage that a "
    "wrapper does not have. Custom autograd functions inside torch.func do that: bring their operands to one device "
    "with .to(device) first.";

static const char scripted[] =
    "managed: TorchScript has optimised this function while its operands were together, and gradients of such code do "
    "not cross to another device. "
    "Call function._debug_flush_compilation_cache() once (of a module: "
    "module.forward._debug_flush_compilation_cache()) and run the step again: "
    "what meets operands apart in its first runs stays as it was written. Or bring the operands to one device with "
    ".to(device) first.";

/* Returns what the user can do about an error of torch's engine, or NULL. */
static const char *advice_for(const char *text) {
  if (strstr(text, "invalid gradient at index") && strstr(text, "expected device"))
    return strstr(text, "DifferentiableGraphBackward") ? scripted : advice;
  if (strstr(text, "hook '") && strstr(text, "has changed the type of value")) return advice;
  return strstr(text, "Cannot access storage of") ? crossing : NULL;
}

static PyObject *engine_run_backward(PyObject *self, PyObject *args, PyObject *kwargs) {
  PyObject *result = mgd_torch_run_backward(((struct engine *)self)->run_backward, args, kwargs);
  if (!result) mgd_errors_advise(PyExc_RuntimeError, advice_for);
  /* The gradients are there, so an error made of a warning leaves nothing half done. A nested pass ends no step. */
  if (result && !mgd_torch_in_backward() && mgd_warn_end_step(MGD_GROWTH_BACKWARD) < 0) Py_CLEAR(result);
  return result;
}

static PyObject *engine_getattro(PyObject *self, PyObject *name) {
  PyObject *value = PyObject_GenericGetAttr(self, name);
  if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
  PyErr_Clear();
  return PyObject_GetAttr(((struct engine *)self)->wrapped, name);
}

static int engine_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((struct engine *)self)->wrapped);
  Py_VISIT(((struct engine *)self)->run_backward);
  return 0;
}

static int engine_clear(PyObject *self) {
  Py_CLEAR(((struct engine *)self)->wrapped);
  Py_CLEAR(((struct engine *)self)->run_backward);
  return 0;
}

static void engine_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  engine_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMethodDef engine_methods[] = {
    {"run_backward", (PyCFunction)(void (*)(void))engine_run_backward, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("torch's run_backward, with managed tensors kept managed on the way back.")},
    {NULL, NULL, 0, NULL}};

static PyType_Slot engine_slots[] = {{Py_tp_dealloc, engine_dealloc},
                                     {Py_tp_traverse, engine_traverse},
                                     {Py_tp_clear, engine_clear},
                                     {Py_tp_getattro, engine_getattro},
                                     {Py_tp_methods, engine_methods},
                                     {Py_tp_doc, PyDoc_STR("Stands in for torch's autograd engine.")},
                                     {0, NULL}};
static PyType_Spec engine_spec = {"managed._C.Engine", sizeof(struct engine), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  engine_slots};

int mgd_engine_init(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  st->engine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &engine_spec, NULL);
  if (!st->engine_type) return -1;
  return PyModule_AddObjectRef(module, "Engine", (PyObject *)st->engine_type);
}

/* Returns a replacement for `wrapped`, with a new reference to it. */
static PyObject *engine_around(struct mgd_state *st, PyObject *wrapped) {
  PyObject *self = st->engine_type->tp_alloc(st->engine_type, 0);
  if (!self) return NULL;
  ((struct engine *)self)->wrapped = Py_NewRef(wrapped);
  ((struct engine *)self)->run_backward = PyObject_GetAttrString(wrapped, "run_backward");
  if (!((struct engine *)self)->run_backward) Py_CLEAR(self);
  return self;
}

int mgd_engine_install(struct mgd_state *st) {
  PyObject *autograd = PyImport_ImportModule("torch.autograd.variable");
  PyObject *variable = autograd ? PyObject_GetAttrString(autograd, "Variable") : NULL;
  PyObject *wrapped = variable ? PyObject_GetAttrString(variable, "_execution_engine") : NULL;
  PyObject *ours = wrapped ? engine_around(st, wrapped) : NULL;
  const int failed = !ours || PyObject_SetAttrString(variable, "_execution_engine", ours) < 0;
  Py_XDECREF(ours);
  Py_XDECREF(wrapped);
  Py_XDECREF(variable);
  Py_XDECREF(autograd);
  return failed ? -1 : 0;
}
