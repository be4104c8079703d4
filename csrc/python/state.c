/* state.c: the state of the module managed._C: access to it, and the garbage collector's view of it.
 *
 * It uses no other file of this folder. The state lives as long as the process, because torch.Tensor keeps our
 * descriptors. binding.h describes its members.
 */
#include "python/binding.h"

struct mgd_state *mgd_state_of(PyObject *module) { return PyModule_GetState(module); }

struct mgd_state *mgd_state_of_type(PyTypeObject *type) { return PyType_GetModuleState(type); }

int mgd_state_ready(void) {
  if (mgd_torch_machine()) return 0;
  PyErr_SetString(PyExc_RuntimeError, "managed: the package has not been set up; import managed, not managed._C");
  return -1;
}

void mgd_state_log(struct mgd_state *st, int level, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyObject *text = PyUnicode_FromFormatV(format, arguments);
  va_end(arguments);
  PyObject *result = text ? PyObject_CallMethod(st->logger, "log", "isO", level, "%s", text) : NULL;
  if (!result) PyErr_WriteUnraisable(st->logger);
  Py_XDECREF(result);
  Py_XDECREF(text);
}

/* ---- the garbage collector's view */

int mgd_state_traverse(PyObject *module, visitproc visit, void *arg) {
  struct mgd_state *st = mgd_state_of(module);
  PyObject *const members[] = {st->tensor_type,
                               st->parameter_type,
                               st->managed_tensor,
                               st->managed_error,
                               st->pin_conflict,
                               st->out_of_memory,
                               st->logger,
                               st->default_heuristic,
                               st->heuristic,
                               st->manager,
                               (PyObject *)st->manager_type,
                               (PyObject *)st->reservation_type,
                               (PyObject *)st->engine_type};
  for (size_t i = 0; i < sizeof members / sizeof *members; i++) Py_VISIT(members[i]);
  return 0;
}

int mgd_state_clear(PyObject *module) {
  struct mgd_state *st = mgd_state_of(module);
  PyObject **const members[] = {&st->tensor_type,  &st->parameter_type, &st->managed_tensor, &st->managed_error,
                                &st->pin_conflict, &st->out_of_memory,  &st->logger,         &st->default_heuristic,
                                &st->heuristic,    &st->manager};
  for (size_t i = 0; i < sizeof members / sizeof *members; i++) Py_CLEAR(*members[i]);
  Py_CLEAR(st->manager_type);
  Py_CLEAR(st->reservation_type);
  Py_CLEAR(st->engine_type);
  return 0;
}
