// saving.cpp: storages that a serialiser holds only to save them.
//
// A serialiser takes the storage of every tensor first and writes them afterwards. What it holds may be evicted
// meanwhile, and is copied from where it is: nothing comes home to be saved. Any other use of such a storage makes it
// the program's, and it stays where it is as long as it is held (exposure.h).
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "torch/tensor/adopt.h"
#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/align/exposure.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/tensor/host_memory.h"
#include "torch/residency/out_of_memory.h"
#include "torch/tensor/state.h"
#include "torch/threads/threads.h"
#include "torch/devices/waiting.h"
#include "torch/saving.h"

namespace managed {
namespace {

constexpr int64_t kStuck = 60'000'000'000; // ns that another thread may take to move the bytes

bool is_storage(PyObject* o) { return PyObject_TypeCheck(o, THPStorageClass); }

c10::StorageImpl* storage_of(PyObject* o) { return THPStorage_Unpack(o).unsafeGetStorageImpl(); }

StorageHandle* saved_handle(PyObject* o) {
  StorageHandle* h = is_storage(o) && storage_of(o) ? handle_of(storage_of(o)) : nullptr;
  return h && h->is_saved ? h : nullptr;
}

// One reference is the storage's own (storage.cpp, may_leave).
bool is_held(c10::StorageImpl* s) {
  PyObject* object = s->pyobj_slot()->load_pyobj();
  return object && Py_REFCNT(object) != 1;
}

// False: t is plain, and no hook would bring its bytes back; the storage has no handle and never leaves; or the program
// holds it.
bool may_be_saved(const at::Tensor& t, c10::StorageImpl* s) {
  if (!has_key(t.unsafeGetTensorImpl())) return false;
  StorageHandle* h = handle_of(s);
  if (!h) h = give_operand_handle(t, s);
  return h && (h->is_saved || !is_held(s));
}

void copy_bytes(StorageHandle& h, int to, void* target) {
  const int64_t deadline = now() + kStuck;
  for (;;) {
    const uint64_t seen = change_count();
    if (copy_from_where_it_is(h, 0, h.size(), to, target)) return;
    TORCH_CHECK(now() < deadline,
                "managed: the bytes of a storage have been on their way in another thread for too long");
    wait_for_change(seen, deadline);
  }
}

// Wraps a storage for functions that take tensors.
at::Tensor tensor_over(const c10::Storage& storage) {
  const auto key = c10::computeDispatchKey(at::kByte, std::nullopt, storage.device());
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                  caffe2::TypeMeta::Make<uint8_t>());
}

} // namespace
} // namespace managed

using namespace managed;

int mgd_torch_lend_to_saver(PyObject* o) {
  return guarded([&] {
    const at::Tensor& t = THPVariable_Unpack(o);
    bool saved = t.has_storage();
    each_storage(t, [&](c10::StorageImpl* s) { saved = saved && may_be_saved(t, s); });
    if (!saved) lend(t);
    else handle_of(t.storage().unsafeGetStorageImpl())->is_saved = true;
    return 0;
  });
}

int mgd_torch_is_saved(PyObject* o) { return saved_handle(o) != nullptr; }

int mgd_torch_save_made(PyObject* o) {
  return guarded([&] {
    c10::StorageImpl* s = storage_of(o);
    if (!is_too_small(s)) give_handle_slow(s, true);
    if (StorageHandle* h = handle_of(s)) h->is_saved = true;
    return 0;
  });
}

int mgd_torch_keep_storage(PyObject* o) {
  return guarded([&] {
    if (!saved_handle(o)) return 0;
    lend(tensor_over(THPStorage_Unpack(o)));
    return 0;
  });
}

PyObject* mgd_torch_set_saved(PyObject* tensor, PyObject* storage, PyObject* (*set)(void*), void* context) {
  return guarded([&] {
    const OperatorSection section;
    // CUDA's set_ reads the storage's pointer, to tell whether it is shared with other processes.
    const HeldTensor held(tensor_over(THPStorage_Unpack(storage)), false);
    THPObjectPtr result(set(context));
    if (!result) return static_cast<PyObject*>(nullptr);
    const at::Tensor& t = THPVariable_Unpack(tensor);
    mark(t);
    make_state(t);
    return result.release();
  });
}

int mgd_torch_write_saved(PyObject* to, PyObject* from) {
  return guarded([&] {
    const c10::Storage &target = THPStorage_Unpack(to), &source = THPStorage_Unpack(from);
    TORCH_CHECK(saved_handle(to) && source.device().is_cpu() && target.nbytes() == source.nbytes(),
                "managed: these bytes cannot be copied there");
    const NoGil no_gil;
    const HeldTensor held(tensor_over(target), true);
    const StorageHandle& h = *handle_of(target.unsafeGetStorageImpl());
    const Bridge* backend = backend_of(target.device_type());
    const int place = target.device().index();
    wait_for(backend->begin_copy(place, h.block.get(), -1, source.data(), h.size(), Urgency::Now, {}, nullptr));
    return 0;
  });
}

int mgd_torch_copy_saved(PyObject* to, PyObject* from) {
  return guarded([&] {
    StorageHandle* h = saved_handle(from);
    const c10::Storage& target = THPStorage_Unpack(to);
    const int place = id_of(target.device());
    TORCH_CHECK(h && place >= 0 && target.nbytes() == h->size(),
                "managed: these bytes cannot be copied from where they are");
    void* data = target.mutable_data();
    const NoGil no_gil;
    copy_bytes(*h, place, data);
    return 0;
  });
}

uint64_t mgd_torch_identity(PyObject* o) {
  const bool storage = is_storage(o);
  if (!storage && !THPVariable_Check(o)) return 0;
  const at::Tensor none;
  const at::Tensor& t = storage ? none : THPVariable_Unpack(o);
  c10::StorageImpl* s = storage ? storage_of(o) : t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (!s || !handle_of(s)) return 0;
  return reinterpret_cast<uint64_t>(s) + (storage ? 0 : static_cast<uint64_t>(t.storage_offset()) * t.itemsize());
}

PyObject* mgd_torch_explained(PyObject* error) {
  return guarded([&]() -> PyObject* {
    const char* text = PyUnicode_AsUTF8(error);
    return text ? PyUnicode_FromString(with_table(text, {}).c_str()) : nullptr;
  });
}
