// storage.cpp: see ../sim/storage.h. Storages of virtual GPUs are torch's own, in blocks of its caching allocator.
//
// Device memory is the host's, so a CPU storage looks at the very bytes. What a CPU kernel allocated is copied into a
// block, as the last part of the kernel. Managed's hook is met as any CUDA kernel meets it: not at all.
#include "sim/storage.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "sim/kernels.h"

namespace managed::sim {
namespace {

// The bytes of a CPU storage in a block of the device.
c10::DataPtr in_block(const c10::Storage &cpu, int device) {
  const c10::DeviceGuard there(device_at(device));
  c10::DataPtr block = c10::GetAllocator(kDevice)->allocate(cpu.nbytes());
  if (cpu.nbytes()) {
    Kernel copy(device, "result");
    copy.touches(block.get(), cpu.nbytes(), true);
    std::memcpy(block.get(), cpu.unsafeGetStorageImpl()->data(), cpu.nbytes());
  }
  return block;
}

c10::Storage over(c10::DataPtr block, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(block), c10::GetAllocator(kDevice), true);
}

}  // namespace

int current_device() noexcept { return c10::impl::getDeviceGuardImpl(kDevice)->getDevice().index(); }

void check_device(int device) {
  const int count = c10::impl::getDeviceGuardImpl(kDevice)->deviceCount();
  TORCH_CHECK(device >= 0 && device < count, "there is no device cuda:", device, ": virtual GPUs are cuda:0 to cuda:", count - 1);
}

c10::Storage adopt(c10::Storage cpu, int device, bool) { return over(in_block(cpu, device), cpu.nbytes()); }

c10::Storage bare_storage(int device, std::size_t bytes) { return over(c10::DataPtr(nullptr, device_at(device)), bytes); }

c10::Storage twin_of(const c10::Storage &) { return {}; } // none is kept: look_at() makes one for each call
bool may_move(const c10::Storage &) { return false; }

c10::Storage look_at(const c10::Storage &storage, bool reads) {
  const void *data =
      reads ? storage.unsafeGetStorageImpl()->data() : nullptr; // throws the hook's error for bytes that it moved
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                               c10::DataPtr(const_cast<void *>(data), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), true);
}

void note_write(c10::StorageImpl *) {}

// All bytes have values.
Known known_of(const c10::Storage &) { return Known::values; }
void set_known(const c10::Storage &, Known) {}
void forget_bytes(c10::StorageImpl *, std::size_t) {}
c10::Storage form_of(const c10::Storage &storage) { return storage; }

// Resizes like torch's own resizing on CUDA.
void follow_twin(c10::StorageImpl *storage, const c10::Storage &twin) {
  if (storage->data() == twin.data() && storage->nbytes() == twin.nbytes()) return;
  storage->set_data_ptr_noswap(in_block(twin, storage->device().index()));
  storage->set_nbytes(twin.nbytes());
}

}  // namespace managed::sim
