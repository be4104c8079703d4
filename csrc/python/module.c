/* module.c: makes the module managed._C: its initialisation in several phases, and the one list of its functions.
 *
 * It uses every other file of this folder, and none uses it. The module's state is in state.c. Importing the module
 * registers nothing and touches no driver; install() does what importing the package promises.
 */
#include "torch/on.h"
#include "python/jobs.h"

/* ---- install */

/* If a machine exists, another copy of this module has installed itself. */
static int check_first(struct mgd_state *st, PyObject *name_class) {
  if (!PyType_Check(name_class)) {
    PyErr_Format(PyExc_TypeError, "managed: install() takes a class, not %R", name_class);
    return -1;
  }
  if (!st->managed_tensor && !mgd_torch_machine()) return 0;
  PyErr_SetString(PyExc_RuntimeError, "managed: installed already; it cannot be loaded twice in a process");
  return -1;
}

static PyObject *install(PyObject *module, PyObject *name_class) {
  struct mgd_state *st = mgd_state_of(module);
  if (check_first(st, name_class) < 0 || mgd_torch_init() < 0) return NULL;
  st->managed_tensor = Py_NewRef(name_class);
  st->manager = mgd_manager_new(st);
  if (!st->manager || mgd_tensor_install(st) < 0 || mgd_engine_install(st) < 0 || mgd_warn_install(st) < 0 ||
      mgd_jobs_init() < 0 || mgd_lists_install() < 0)
    return NULL;
  mgd_garbage_init();
  mgd_holders_init();
  /* The descriptors on torch.Tensor read the state, so the module must never be freed. */
  Py_INCREF(module);
  Py_RETURN_NONE;
}

static PyObject *get_manager(PyObject *module, PyObject *unused) {
  (void)unused;
  struct mgd_state *st = mgd_state_of(module);
  return mgd_state_ready() < 0 ? NULL : Py_NewRef(st->manager);
}

static PyObject *set_manager(PyObject *module, PyObject *manager) {
  struct mgd_state *st = mgd_state_of(module);
  if (mgd_state_ready() < 0) return NULL;
  if (Py_TYPE(manager) != st->manager_type) {
    PyErr_Format(PyExc_TypeError, "managed: device_manager is a DeviceManager, not %R", manager);
    return NULL;
  }
  PyObject *old = st->manager;
  st->manager = Py_NewRef(manager);
  Py_DECREF(old);
  Py_RETURN_NONE;
}

static PyMethodDef install_methods[] = {
    {"install", install, METH_O,
     PyDoc_STR("install(name_class, /)\n--\n\nRegisters the hook, adds to torch.Tensor and wraps the engine; once a "
               "process.")},
    {"get_manager", get_manager, METH_NOARGS, PyDoc_STR("get_manager()\n--\n\nThe DeviceManager that x.cuda() asks.")},
    {"set_manager", set_manager, METH_O,
     PyDoc_STR("set_manager(manager, /)\n--\n\nMakes x.cuda() ask this DeviceManager.")},
    {NULL, NULL, 0, NULL}};

/* ---- exec: fills the state */

/* Returns a new reference to `module.name`. */
static PyObject *imported(const char *module_name, const char *name) {
  PyObject *module = PyImport_ImportModule(module_name);
  PyObject *value = module ? PyObject_GetAttrString(module, name) : NULL;
  Py_XDECREF(module);
  return value;
}

static int find_torch(struct mgd_state *st) {
  st->tensor_type = imported("torch", "Tensor");
  st->parameter_type = imported("torch.nn", "Parameter");
  PyObject *get_logger = imported("logging", "getLogger");
  st->logger = get_logger ? PyObject_CallFunction(get_logger, "s", "managed") : NULL;
  Py_XDECREF(get_logger);
  return st->tensor_type && st->parameter_type && st->logger ? 0 : -1;
}

static int add_functions(PyObject *module) {
  PyMethodDef *const tables[] = {install_methods,       mgd_settings_methods, mgd_admit_methods,  mgd_explain_methods,
                                 mgd_warn_methods,      mgd_walk_methods,     mgd_memory_methods, mgd_storage_methods,
                                 mgd_on_methods,        mgd_exchange_methods, mgd_layers_methods, mgd_holders_methods,
                                 mgd_test_hooks_methods};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    if (PyModule_AddFunctions(module, tables[i]) < 0) return -1;
  return 0;
}

/* managed._cuda looks for the capsule under the name "managed._C.bridge". */
static int add_bridge(PyObject *module) {
  PyObject *bridge = mgd_torch_bridge();
  const int failed = !bridge || PyModule_AddObjectRef(module, "bridge", bridge) < 0;
  Py_XDECREF(bridge);
  return failed ? -1 : 0;
}

/* Adds the reasons for moves of modules, the advice of managed.hint, and the modes of a thread in managed.on. */
static int add_constants(PyObject *module) {
  const struct {
    const char *name;
    long value;
  } constants[] = {{"REQUESTED", MGD_WHY_REQUESTED}, {"DISPERSED", MGD_WHY_DISPERSED},
                   {"LAST", MGD_ADVICE_LAST},        {"FIRST", MGD_ADVICE_FIRST},
                   {"NEXT", MGD_ADVICE_NEXT},        {"READ", MGD_ADVICE_READ},
                   {"HOST", MGD_ADVICE_HOST},        {"ON", MGD_ON},
                   {"DISPERSING", MGD_ON_DISPERSING}};
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
    if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
  return 0;
}

static int module_exec(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  if (find_torch(st) < 0 || mgd_errors_init(st) < 0 || add_functions(module) < 0) return -1;
  if (add_bridge(module) < 0 || add_constants(module) < 0) return -1;
  if (mgd_settings_init(module) < 0 || mgd_manager_init(module) < 0 || mgd_admit_init(module) < 0) return -1;
  return mgd_engine_init(module);
}

static void module_free(void *module) { mgd_state_clear(module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "managed._C",
    .m_doc = PyDoc_STR("The compiled half of managed; private, see the package."),
    .m_size = sizeof(struct mgd_state),
    .m_slots = slots,
    .m_traverse = mgd_state_traverse,
    .m_clear = mgd_state_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) { return PyModuleDef_Init(&definition); }
