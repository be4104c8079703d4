// devices.cpp: torch's devices as ids of the machine's, and what their allocators report. How devices get there is
// attach.h's.
//
// Memory is read through torch's own DeviceAllocator interface, which CUDA and the simulator both implement.
#include "torch/devices/devices.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>

#include "torch/devices/registry.h"

namespace managed {

Registry& registry() {
  static auto* r = new Registry(
      std::make_index_sequence<MGD_MAX_DEVICES>{}); // never destroyed: threads may outlive static destructors
  return *r;
}

void check(int code, const char* what) {
  TORCH_CHECK(code == MGD_OK, "managed: ", what, ": ", mgd_text_error(code));
}

std::pair<int64_t, int64_t> memory_info(c10::Device d) {
  auto [free, total] = c10::getDeviceAllocator(d.type())->getMemoryInfo(d.index());
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void discover() {
  Registry& r = registry();
  if (r.discovered) return;
  std::lock_guard<std::mutex> lock(r.mutex);
  if (r.discovered) return;
  r.add_accelerators();
  r.discovered = true;
}

bool has_context(c10::Device d) {
  if (!d.is_cuda()) return true;
  return !registry().cuda_is_lost &&
      at::globalContext().getAcceleratorHooksInterface(d.type()).hasPrimaryContext(d.index());
}

namespace {

// All bytes that the device's allocator has handed out, and those that it has of the driver.
void read_usage(c10::Device d, int64_t* allocated, int64_t* reserved) {
  const Bridge* b = backend_of(d.type());
  if (b && b->usage) return b->usage(d.index(), allocated, reserved);
  const auto stats = c10::getDeviceAllocator(d.type())->getDeviceStats(d.index());
  // Requested bytes count, so that a plan finds the bytes of what it moves; some allocators do not report them.
  const int64_t requested = stats.requested_bytes[0].current;
  *allocated = requested ? requested : stats.allocated_bytes[0].current;
  *reserved = stats.reserved_bytes[0].current;
}

// Asking CUDA what is free makes a context, which costs hundreds of MiB; a device without one counts as free.
void observe_one(int id) {
  const c10::Device d = device_of(id);
  if (!has_context(d)) return check(mgd_ledger_observe(machine(), id, 0, 0), "reading device memory");
  auto [free, total] = memory_info(d);
  int64_t allocated = 0, reserved = 0;
  read_usage(d, &allocated, &reserved);
  mgd_usage known{};
  check(mgd_ledger_usage(machine(), id, &known), "reading a budget");
  // The context and other programs may use what a budget leaves of the device.
  const int64_t others = total - free - reserved, left_to_them = total - known.capacity;
  const int64_t foreign = std::max<int64_t>(0, others - left_to_them);
  check(mgd_ledger_observe(machine(), id, allocated, foreign), "reading device memory");
}

int64_t to_int64(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

} // namespace

struct mgd_machine* machine() { return registry().machine; }

int id_of(c10::Device d) {
  Registry& r = registry();
  if (d.is_cpu()) return MGD_HOST;
  const bool cuda = d.is_cuda();
  if ((!cuda && d.type() != c10::kPrivateUse1) || d.index() < 0 || d.index() >= kMaxIndex) return -1;
  if (C10_UNLIKELY(cuda && !r.discovered)) discover();
  return (cuda ? r.cuda : r.sim)[d.index()].load(std::memory_order_relaxed);
}

c10::Device device_of(int id) { return registry().devices[id]; }

int device_count() { return registry().count; }

int64_t free_bytes(int id) {
  const c10::Device d = device_of(id);
  const Bridge* b = backend_of(d.type());
  return b && b->room ? static_cast<int64_t>(b->room(d.index())) : memory_info(d).first;
}

int64_t bytes_free_soon(int id) {
  const c10::Device d = device_of(id);
  const Bridge* b = backend_of(d.type());
  return b && b->room_soon ? static_cast<int64_t>(b->room_soon(d.index())) : free_bytes(id);
}

std::atomic<bool> kernels_are_async{false};
std::atomic<bool> backward_in_caller{false};

uint64_t last_simulated_copy() noexcept {
  const Bridge* bridge = registry().bridge;
  return bridge ? bridge->last_copy() : 0;
}

bool record_stream_use(c10::Device d) {
  const Bridge* b = backend_of(d.type());
  return b && b->use && b->use(d.index());
}

const Bridge* backend_of(c10::DeviceType type) {
  Registry& r = registry();
  return type == c10::kPrivateUse1 ? r.bridge
      : type == c10::kCUDA         ? r.cuda_bridge.load(std::memory_order_acquire)
                                   : nullptr;
}

bool allocator_usage(int id, int64_t* allocated, int64_t* reserved) noexcept {
  *allocated = *reserved = 0;
  try {
    if (has_context(device_of(id))) read_usage(device_of(id), allocated, reserved);
    return true;
  } catch (const std::exception&) { return false; }
}

void observe() {
  discover();
  for (int id = 1; id < registry().count; id++) observe_one(id);
}

int64_t now() { return to_int64(std::chrono::steady_clock::now().time_since_epoch()); }

int64_t bytes_of(const at::Tensor& t) {
  if (!t.defined() || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return 0;
  switch (t.layout()) {
    case at::kStrided:
      return static_cast<int64_t>(t.nbytes());
    case at::kSparse:
      return bytes_of(t._indices()) + bytes_of(t._values());
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc: {
      auto* s = static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
      return bytes_of(s->compressed_indices()) + bytes_of(s->plain_indices()) + bytes_of(s->values());
    }
    default:
      return t.has_storage() ? static_cast<int64_t>(t.storage().nbytes()) : 0;
  }
}

} // namespace managed
