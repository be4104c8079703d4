/* walk.c: functions for walking a module: marking, pinning and moving one tensor in place.
 *
 * These functions are private to the package. They check their arguments, because a private function that crashes is
 * still a crash.
 */
#include "python/binding.h"

static int need_tensor(PyObject *o) {
  if (mgd_torch_is_tensor(o)) return mgd_state_ready();
  PyErr_Format(PyExc_TypeError, "managed: expected a torch.Tensor, not %.100s", Py_TYPE(o)->tp_name);
  return -1;
}

static PyObject *is_managed(PyObject *module, PyObject *o) {
  (void)module;
  return PyBool_FromLong(mgd_torch_is_managed(o));
}

static PyObject *mark(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *o;
  int in_module = 0;
  return !PyArg_ParseTuple(args, "O|p:mark", &o, &in_module) || need_tensor(o) < 0 || mgd_torch_mark(o, in_module) < 0
      ? NULL
      : Py_NewRef(o);
}

static PyObject *unmark(PyObject *module, PyObject *o) {
  (void)module;
  return need_tensor(o) < 0 || mgd_torch_unmark(o) < 0 ? NULL : Py_NewRef(o);
}

static PyObject *pin(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *o;
  int pinned;
  if (!PyArg_ParseTuple(args, "Op:pin", &o, &pinned) || need_tensor(o) < 0 || mgd_torch_pin(o, pinned) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *pinned(PyObject *module, PyObject *o) {
  (void)module;
  const int yes = need_tensor(o) < 0 ? -1 : mgd_torch_pinned(o);
  return yes < 0 ? NULL : PyBool_FromLong(yes);
}

static PyObject *alone(PyObject *module, PyObject *o) {
  (void)module;
  if (!PyList_Check(o))
    return PyErr_Format(PyExc_TypeError, "managed: expected a list, not %.100s", Py_TYPE(o)->tp_name);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); i++)
    if (need_tensor(PyList_GET_ITEM(o, i)) < 0) return NULL;
  const int yes = mgd_torch_are_alone(o);
  return yes < 0 ? NULL : PyBool_FromLong(yes);
}

static PyObject *advise(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *o;
  unsigned advice;
  if (!PyArg_ParseTuple(args, "OI:advise", &o, &advice) || need_tensor(o) < 0 || mgd_torch_advise(o, advice) < 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *advice(PyObject *module, PyObject *o) {
  (void)module;
  const int said = need_tensor(o) < 0 ? -1 : mgd_torch_advice(o);
  return said < 0 ? NULL : PyLong_FromLong(said);
}

static PyObject *place(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *o;
  int placed;
  if (!PyArg_ParseTuple(args, "Op:place", &o, &placed) || need_tensor(o) < 0 || mgd_torch_place(o, placed) < 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *placed(PyObject *module, PyObject *o) {
  (void)module;
  const int yes = need_tensor(o) < 0 ? -1 : mgd_torch_placed(o);
  return yes < 0 ? NULL : PyBool_FromLong(yes);
}

static PyObject *nbytes(PyObject *module, PyObject *o) {
  (void)module;
  const int64_t bytes = need_tensor(o) < 0 ? -1 : mgd_torch_nbytes(o);
  return bytes < 0 ? NULL : PyLong_FromLongLong(bytes);
}

/* Returns a torch.device with its index, for any name of a device; None if only a kind is named ("cuda"). */
static PyObject *device(PyObject *module, PyObject *o) {
  (void)module;
  int id = 0, any = 0;
  if (mgd_state_ready() < 0 || mgd_errors_device_id(o, &id, &any) < 0) return NULL;
  if (any) Py_RETURN_NONE;
  return mgd_torch_device(id);
}

static PyObject *move(PyObject *module, PyObject *args) {
  PyObject *o, *target;
  int id, any, why = MGD_WHY_REQUESTED;
  if (!PyArg_ParseTuple(args, "OO|i:move", &o, &target, &why) || need_tensor(o) < 0 ||
      mgd_errors_device_id(target, &id, &any) < 0)
    return NULL;
  const int here = any ? -1 : mgd_torch_device_of(o);
  if (here < 0 && !PyErr_Occurred())
    PyErr_Format(PyExc_ValueError, "managed: %R names a kind of device and not one device", target);
  if (here < 0) return NULL;
  if (here == id) Py_RETURN_FALSE;
  const int fixed = mgd_torch_pinned(o);
  if (fixed > 0) mgd_errors_pinned(mgd_state_of(module), o, id);
  if (fixed || mgd_torch_move(o, id, (enum mgd_reason)why) < 0) return NULL;
  Py_RETURN_TRUE;
}

static PyObject *allocate(PyObject *module, PyObject *args) {
  PyObject *o, *target;
  int id = -1, any = 0;
  if (!PyArg_ParseTuple(args, "OO:allocate", &o, &target) || need_tensor(o) < 0 ||
      (target != Py_None && mgd_errors_device_id(target, &id, &any) < 0))
    return NULL;
  (void)module;
  if (mgd_torch_allocate(o, id) < 0) return NULL;
  Py_RETURN_NONE;
}

/* Returns how many tensors have been moved in place so far. It is never reset, unlike the trace's totals. */
static PyObject *move_count(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyLong_FromUnsignedLongLong(mgd_torch_move_count());
}

/* ---- gradients */

static PyObject *bring_gradient(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *gradient, *target;
  return PyArg_ParseTuple(args, "OO:bring_gradient", &gradient, &target) ? mgd_torch_bring_gradient(gradient, target)
                                                                         : NULL;
}

static PyObject *cross(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *tensor, *target;
  return PyArg_ParseTuple(args, "OO:cross", &tensor, &target) ? mgd_torch_cross(tensor, target) : NULL;
}

static PyObject *cut_backward(PyObject *Py_UNUSED(module), PyObject *loss) { return mgd_torch_cut_backward(loss); }

static PyObject *end_at_crossing(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *crossing;
  int ends;
  if (!PyArg_ParseTuple(args, "Op:end_at_crossing", &crossing, &ends)) return NULL;
  if (mgd_torch_end_at_crossing(crossing, ends) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *leave_crossing(PyObject *Py_UNUSED(module), PyObject *crossing) {
  return mgd_torch_leave_crossing(crossing);
}

static PyObject *gather_gradients(PyObject *module, PyObject *parameters) {
  (void)module;
  if (mgd_torch_gather_gradients(parameters) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *is_recorded(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
  const int recorded = mgd_torch_is_recorded();
  return recorded < 0 ? NULL : PyBool_FromLong(recorded);
}

static PyObject *new_buckets(PyObject *Py_UNUSED(module), PyObject *devices) { return mgd_torch_new_buckets(devices); }

static PyObject *spread(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *buckets, *tensors;
  return PyArg_ParseTuple(args, "OO:spread", &buckets, &tensors) ? mgd_torch_spread(buckets, tensors) : NULL;
}

/* ---- random numbers */

static PyObject *seed_of_stream(PyObject *Py_UNUSED(module), PyObject *device) {
  uint64_t seed;
  return mgd_torch_seed_of_stream(device, &seed) < 0 ? NULL : PyLong_FromUnsignedLongLong(seed);
}

static PyObject *own_numbers(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *device, *seed;
  if (!PyArg_ParseTuple(args, "OO:own_numbers", &device, &seed)) return NULL;
  if (seed == Py_None) {
    if (mgd_torch_end_own_numbers(device) < 0) return NULL;
    Py_RETURN_NONE;
  }
  const unsigned long long number = PyLong_AsUnsignedLongLong(seed);
  if (number == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  if (mgd_torch_begin_own_numbers(device, number) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *has_own_numbers(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
  return PyBool_FromLong(mgd_torch_has_own_numbers());
}

static PyObject *begin_replay(PyObject *Py_UNUSED(module), PyObject *args) {
  int own = 0;
  if (!PyArg_ParseTuple(args, "|p:begin_replay", &own)) return NULL;
  const int began = mgd_torch_begin_replay(own);
  return began < 0 ? NULL : PyBool_FromLong(began);
}

static PyObject *end_replay(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
  mgd_torch_end_replay();
  Py_RETURN_NONE;
}

static PyObject *above_functorch(PyObject *module, PyObject *o) {
  (void)module;
  const long change = PyLong_AsLong(o);
  if (change == -1 && PyErr_Occurred()) return NULL;
  mgd_torch_above_functorch(change < 0 ? -1 : 1);
  Py_RETURN_NONE;
}

/* ---- the simulator and the engine */

static PyObject *attach_sim(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  int devices;
  if (!PyArg_ParseTuple(args, "Oi:attach_sim", &capsule, &devices) || mgd_state_ready() < 0) return NULL;
  if (mgd_torch_attach_sim(capsule, devices) < 0) return NULL;
  Py_RETURN_NONE;
}

PyMethodDef mgd_walk_methods[] = {
    {"is_managed", is_managed, METH_O,
     PyDoc_STR("is_managed(o, /)\n--\n\nWhether `o` is a managed tensor; False for anything else.")},
    {"mark", mark, METH_VARARGS,
     PyDoc_STR("mark(tensor, in_module=False, /)\n--\n\nMakes this very tensor managed and returns it; `in_module`: "
               "it is a parameter or a buffer of a module.")},
    {"unmark", unmark, METH_O,
     PyDoc_STR("unmark(tensor, /)\n--\n\nMakes this very tensor plain again and returns it.")},
    {"pin", pin, METH_VARARGS,
     PyDoc_STR("pin(tensor, pinned, /)\n--\n\nPins the tensor to its device, or lets it move again.")},
    {"pinned", pinned, METH_O, PyDoc_STR("pinned(tensor, /)\n--\n\nWhether the tensor is pinned.")},
    {"alone", alone, METH_O,
     PyDoc_STR(
         "alone(tensors, /)\n--\n\nWhether nothing but these tensors of a list has their bytes, no two share any, "
         "and no hooks wait at the accumulators of their gradients.")},
    {"advise", advise, METH_VARARGS,
     PyDoc_STR("advise(tensor, advice, /)\n--\n\nWhat the program says of its bytes: the sum of LAST, FIRST, NEXT and "
               "READ that apply (enum mgd_advice).")},
    {"advice", advice, METH_O, PyDoc_STR("advice(tensor, /)\n--\n\nWhat was said last; 0 for nothing.")},
    {"place", place, METH_VARARGS,
     PyDoc_STR("place(tensor, placed, /)\n--\n\nNotes that the program wants the tensor on its accelerator, or does so "
               "no more. Nothing moves.")},
    {"placed", placed, METH_O,
     PyDoc_STR("placed(tensor, /)\n--\n\nWhether the program put the tensor on its accelerator.")},
    {"nbytes", nbytes, METH_O,
     PyDoc_STR("nbytes(tensor, /)\n--\n\nBytes of the tensor's elements, of all parts of a sparse one.")},
    {"device", device, METH_O,
     PyDoc_STR("device(device, /)\n--\n\nThe torch.device that a name means here; None when only a kind is named.")},
    {"move", move, METH_VARARGS,
     PyDoc_STR("move(tensor, device, reason=REQUESTED, /)\n--\n\nMoves the tensor itself and its .grad; False when it "
               "was there already.")},
    {"allocate", allocate, METH_VARARGS,
     PyDoc_STR("allocate(tensor, device, /)\n--\n\nGives a meta tensor bytes on a device without values, in place; "
               "None takes them back.")},
    {"move_count", move_count, METH_NOARGS,
     PyDoc_STR("move_count()\n--\n\nHow many tensors have been moved in place so far.")},
    {"bring_gradient", bring_gradient, METH_VARARGS,
     PyDoc_STR("bring_gradient(gradient, device, /)\n--\n\nA managed gradient on the device, recorded by autograd; a "
               "plain one as it is.")},
    {"cross", cross, METH_VARARGS,
     PyDoc_STR(
         "cross(tensor, device, /)\n--\n\nA copy on the device, recorded by autograd, made beside other work; the "
         "tensor itself if it is there.")},
    {"gather_gradients", gather_gradients, METH_O,
     PyDoc_STR("gather_gradients(parameters, /)\n--\n\nPuts the .grad of each managed tensor of a list where the "
               "tensor is.")},
    {"cut_backward", cut_backward, METH_O,
     PyDoc_STR("cut_backward(loss, /)\n--\n\nThe pieces of a backward pass, one for each device, or a text that says "
               "why the pass has none.")},
    {"end_at_crossing", end_at_crossing, METH_VARARGS,
     PyDoc_STR(
         "end_at_crossing(crossing, ends, /)\n--\n\nThe next pass ends at the crossing, which keeps the gradient; "
         "or does so no more.")},
    {"leave_crossing", leave_crossing, METH_O,
     PyDoc_STR("leave_crossing(crossing, /)\n--\n\nThat gradient, on the device of what had crossed, or None.")},
    {"is_recorded", is_recorded, METH_NOARGS,
     PyDoc_STR("is_recorded()\n--\n\nWhether what this thread does is recorded (a CUDA graph, a trace, a "
               "TorchDispatchMode) or transformed by torch.func.")},
    {"new_buckets", new_buckets, METH_O,
     PyDoc_STR("new_buckets(devices, /)\n--\n\nThe copies on each of these devices of tensors that are given to "
               "spread().")},
    {"spread", spread, METH_VARARGS,
     PyDoc_STR("spread(buckets, tensors, /)\n--\n\nFor each device its pieces of the tensors, whose gradients come "
               "home. Copies of what was written begin; only their uses wait.")},
    {"seed_of_stream", seed_of_stream, METH_O,
     PyDoc_STR("seed_of_stream(device, /)\n--\n\nA number that depends on the state of the generator that serves all "
               "devices of the kind.")},
    {"own_numbers", own_numbers, METH_VARARGS,
     PyDoc_STR("own_numbers(device, seed, /)\n--\n\nFrom now on this thread draws on the device from a generator with "
               "this seed; None ends that, and the device's generator goes on as before.")},
    {"has_own_numbers", has_own_numbers, METH_NOARGS,
     PyDoc_STR("has_own_numbers()\n--\n\nWhether this thread does so now.")},
    {"begin_replay", begin_replay, METH_VARARGS,
     PyDoc_STR("begin_replay(own=False, /)\n--\n\nThis thread runs a checkpointed function again, which had own "
               "numbers at first or not; True if it is a backward pass that end_replay() must be told of.")},
    {"end_replay", end_replay, METH_NOARGS, PyDoc_STR("end_replay()\n--\n\nIt has run.")},
    {"above_functorch", above_functorch, METH_O,
     PyDoc_STR("above_functorch(change, /)\n--\n\nThis thread enters (1) or leaves (-1) a level of torch.func.grad.")},
    {"attach_sim", attach_sim, METH_VARARGS,
     PyDoc_STR("attach_sim(capsule, devices, /)\n--\n\nMakes the simulator's devices known.")},
    {NULL, NULL, 0, NULL}};
