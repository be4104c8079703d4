// launch.cpp: see kernels.h and ../sim/launch.h. Kernels of virtual GPUs run on the host, in their stream's place.
#include "sim/launch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "sim/kernels/alias.h"
#include "sim/kernels.h"

namespace managed::sim {
namespace {

struct Runtime {
  int (*begin)(void *stream, const char *name);
  void (*access)(const void *address, std::size_t bytes, int written);
  int (*end)();
};

template <class F>
void find(F &into, const char *name) {
  into = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

const Runtime &runtime() {
  static const Runtime found = [] {
    Runtime r;
    find(r.begin, "vgpu_kernel_begin");
    find(r.access, "vgpu_kernel_access");
    find(r.end, "vgpu_kernel_end");
    return r;
  }();
  return found;
}

const c10::impl::DeviceGuardImplInterface *cuda() { return c10::impl::getDeviceGuardImpl(kDevice); }

}  // namespace

Kernel::Kernel(int device, const char *name) : there_(device_at(device)) {
  if (!runtime().begin) return;
  const int failed = runtime().begin(cuda()->getStreamNativeHandle(cuda()->getStream(device_at(device))), name);
  TORCH_CHECK(!failed, name, " cannot run on ", device_at(device), " of the virtual GPUs: CUDA error ", failed);
}

Kernel::~Kernel() {
  if (runtime().end) runtime().end();
}

void Kernel::touches(const void *address, std::size_t bytes, bool written) {
  if (runtime().access && bytes) runtime().access(address, bytes, written);
}

void wait_for_stream(int device) { cuda()->synchronizeStream(cuda()->getStream(device_at(device))); }

Launch::Launch(const OperatorFacts &facts, c10::ArrayRef<c10::IValue>) : facts_(facts) {}

Launch::~Launch() = default;

void Launch::members(const at::Tensor &t, bool written) {
  if (t.is_nested()) return operand(at::native::get_nested_tensor_impl(t)->get_unsafe_storage_as_tensor(), written);
  for_each_member(t, [&](const at::Tensor &member) { operand(member, written); });
}

void Launch::operand(const at::Tensor &t, bool written) {
  if (facts_.free) return;
  if (is_sparse(t) || t.is_nested()) return members(t, written);
  if (!t.has_storage() || !t.numel()) return;
  const auto itemsize = t.dtype().itemsize();
  const auto *start = static_cast<const char *>(t.storage().unsafeGetStorageImpl()->data());
  const std::size_t bytes = at::detail::computeStorageNbytes(t.sizes(), t.strides(), itemsize);
  accesses_.push_back({start + static_cast<std::size_t>(t.storage_offset()) * itemsize, bytes, written});
}

void Launch::begin(int device) {
  device_ = device;
  if (facts_.free) return;
  kernel_.emplace(device, facts_.name.c_str());
  for (const Access &a : accesses_) kernel_->touches(a.address, a.bytes, a.written);
}

void Launch::ran() { kernel_.reset(); }

void Launch::result(const at::Tensor &, bool) {}

void Launch::end() {
  if (facts_.waits) wait_for_stream(device_);
}

}  // namespace managed::sim
