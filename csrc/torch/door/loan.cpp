// loan.cpp: see loan.h. Owns which storages this thread has lent to a call.
//
// Memory that is not among the arguments is the call's own: a compiled graph allocates without the hook, and such
// memory is not evicted while the graph runs.
#include "torch/loan.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <unordered_set>
#include <vector>

#include "torch/devices/devices.h"
#include "torch/residency/guard.h"
#include "torch/devices/graphs.h"
#include "torch/residency/hold.h"
#include "torch/tensor/replica.h"
#include "torch/threads/threads.h"

namespace managed {
namespace {

class Loan;
constinit thread_local const Loan* innermost_loan = nullptr;

class Loan {
 public:
  Loan() : outer_(innermost_loan) { innermost_loan = this; }
  ~Loan() {
    innermost_loan = outer_;
    for (const auto& w : written_)
      if (const auto storage = w.lock()) invalidate_storage_copies(storage.get());
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // The tensors themselves are not kept: compiled code releases its arguments as soon as it has read them.
  void add(const at::Tensor& t, bool written) {
    each_storage(t, [&](c10::StorageImpl* s) {
      if (const StorageHandle* h = handle_of(s)) blocks_.insert(h);
      if (written)
        written_.push_back(
            c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(s)));
    });
  }
  static bool covers(c10::StorageImpl* s) {
    const StorageHandle* h = handle_of(s);
    bool found = !h;
    for (const Loan* l = innermost_loan; l && !found; l = l->outer_) found = l->blocks_.count(h) != 0;
    return found;
  }

 private:
  std::unordered_set<const StorageHandle*> blocks_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> written_;
  const Loan* const outer_;
};

bool is_written(PyObject* written, Py_ssize_t position) {
  if (written == Py_None) return true;
  THPObjectPtr number(PyLong_FromSsize_t(position));
  const int found = number ? PySequence_Contains(written, number.get()) : -1;
  if (found < 0) throw python_error();
  return found != 0;
}

} // namespace
} // namespace managed

using namespace managed;

PyObject* mgd_torch_call_lent(PyObject* tensors, PyObject* written, PyObject* call, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    THPObjectPtr all(PySequence_Fast(tensors, "managed: expected a sequence"));
    if (!all) throw python_error();
    const OperatorSection visit; // nothing moves by itself
    Loan loan;
    Hold hold(nullptr); // operators inside take turns of their own
    c10::OptionalDeviceGuard current; // kernels are launched on it: the device of the first tensor on an accelerator
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); i++) {
      PyObject* o = PySequence_Fast_GET_ITEM(all.get(), i);
      if (!THPVariable_Check(o)) continue;
      const bool writes = is_written(written, i);
      const c10::Device device = THPVariable_Unpack(o).device();
      if (!current.current_device() && id_of(device) > MGD_HOST) current.reset_device(device);
      hold.add(THPVariable_Unpack(o), writes); // first: it may create the handle
      loan.add(THPVariable_Unpack(o), writes);
    }
    {
      const NoGil no_gil;
      hold.bring_home();
    }
    return PyObject_Call(call, args, kwargs);
  });
}

int mgd_torch_is_lent(PyObject* o) {
  if (!innermost_loan || recording_graphs.load(std::memory_order_relaxed)) return 0;
  bool all = true;
  each_storage(THPVariable_Unpack(o), [&all](c10::StorageImpl* s) { all &= Loan::covers(s); });
  return all;
}
