// spread.cpp: tensors with a local copy on each of several devices, for managed.DataParallel. See align/buckets.h.
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <utility>

#include "torch/align/buckets.h"
#include "torch/api.h"
#include "torch/residency/guard.h"

namespace managed {
namespace {

constexpr const char* kBuckets = "managed.buckets";

Buckets* buckets_in(PyObject* capsule) { return static_cast<Buckets*>(PyCapsule_GetPointer(capsule, kBuckets)); }

void drop_buckets(PyObject* capsule) { delete buckets_in(capsule); }

PyObject* list_of(const std::vector<at::Tensor>& tensors) {
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
  for (std::size_t i = 0; list && i < tensors.size(); i++) {
    PyObject* t = THPVariable_Wrap(tensors[i]);
    if (!t) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), t);
  }
  return list.release();
}

} // namespace
} // namespace managed

using namespace managed;

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
    THPObjectPtr list(PyList_New(0));
    for (const auto& of_device : pieces) {
      THPObjectPtr one(list ? list_of(of_device) : nullptr);
      if (!one || PyList_Append(list, one) < 0) return nullptr;
    }
    return list.release();
  });
}
