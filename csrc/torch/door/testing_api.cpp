// testing_api.cpp: gives csrc/python the uses of storages that benchmarks record (uses.h). It is not in packages.
#include <Python.h>
#include <torch/csrc/utils/object_ptr.h>

#include "core/testing.h"
#include "torch/api.h"
#include "torch/residency/guard.h"
#include "torch/tensor/uses.h"

#if MANAGED_TEST_HOOKS
using namespace managed;

int mgd_torch_begin_uses(void) {
  return guarded([] {
    begin_noting_uses();
    return 0;
  });
}

PyObject* mgd_torch_end_uses(void) {
  return guarded([]() -> PyObject* {
    const std::vector<NotedUse> uses = end_noting_uses();
    THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(uses.size())));
    for (std::size_t i = 0; list && i < uses.size(); i++) {
      const NotedUse& u = uses[i];
      PyObject* item =
          Py_BuildValue("(KLKid)", static_cast<unsigned long long>(u.storage), static_cast<long long>(u.bytes),
                        static_cast<unsigned long long>(u.tick), static_cast<int>(u.kind), u.when);
      if (!item) return nullptr;
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
    }
    return list.release();
  });
}
#endif
