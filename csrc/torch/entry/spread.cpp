// spread.cpp: tensors with a local copy on each of several devices, for managed.DataParallel. See align/buckets.h.
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <utility>

#include "torch/align/buckets.h"
#include "torch/align/values.h"
#include "torch/api.h"
#include "torch/entry/lists.h"
#include "torch/residency/guard.h"

namespace managed {
namespace {

constexpr const char* kBuckets = "managed.buckets";

Buckets* buckets_in(PyObject* capsule) { return static_cast<Buckets*>(PyCapsule_GetPointer(capsule, kBuckets)); }

void drop_buckets(PyObject* capsule) { delete buckets_in(capsule); }

PyObject* list_of_tensors(const std::vector<at::Tensor>& all) {
  return list_of(all, [](const at::Tensor& t) { return THPVariable_Wrap(t); });
}

} // namespace
} // namespace managed

using namespace managed;

int mgd_torch_is_recorded(void) {
  return guarded([] { return static_cast<int>(is_recorded()); });
}

PyObject* mgd_torch_new_buckets(PyObject* devices) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(PyList_Check(devices), "managed: expected a list of devices");
    std::vector<c10::Device> on;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(devices); i++) {
      TORCH_CHECK_TYPE(THPDevice_Check(PyList_GET_ITEM(devices, i)), "managed: expected a list of torch.device");
      on.push_back(reinterpret_cast<THPDevice*>(PyList_GET_ITEM(devices, i))->device);
    }
    auto own = std::make_unique<Buckets>(std::move(on));
    PyObject* capsule = PyCapsule_New(own.get(), kBuckets, &drop_buckets);
    if (capsule) (void)own.release();
    return capsule;
  });
}

PyObject* mgd_torch_spread(PyObject* capsule, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    Buckets* buckets = buckets_in(capsule);
    if (!buckets) return nullptr;
    TORCH_CHECK_TYPE(PyList_Check(tensors), "managed: expected a list of tensors");
    std::vector<at::Tensor> all;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
      TORCH_CHECK_TYPE(THPVariable_Check(PyList_GET_ITEM(tensors, i)), "managed: expected a list of tensors");
      all.push_back(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)));
    }
    std::vector<std::vector<at::Tensor>> pieces;
    {
      NoGil no_gil;
      pieces = buckets->spread(all);
    }
    return list_of(pieces, &list_of_tensors);
  });
}
