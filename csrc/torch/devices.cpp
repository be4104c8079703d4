// devices.cpp: torch's devices as ids of the machine's, and what their allocators report. How devices get there is
// attach.cpp's.
//
// Memory is read through torch's own DeviceAllocator interface, which CUDA and the simulator both implement.
#include "devices.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>

#include <chrono>

#include "api.h"
#include "guard.h"
#include "registry.h"

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

bool has_context(c10::Device d) {
  if (!d.is_cuda()) return true;
  return !registry().cuda_is_lost &&
      at::globalContext().getAcceleratorHooksInterface(d.type()).hasPrimaryContext(d.index());
}

namespace {

// To ask CUDA what is free makes a context, which costs hundreds of MiB; a device without one counts as free.
void observe_one(int id) {
  const c10::Device d = device_of(id);
  if (!has_context(d)) return check(mgd_ledger_observe(machine(), id, 0, 0), "reading device memory");
  auto [free, total] = memory_info(d);
  const auto stats = c10::getDeviceAllocator(d.type())->getDeviceStats(d.index());
  const int64_t cached = stats.reserved_bytes[0].current;
  // What was asked for, so that a plan finds the bytes of what it moves; some allocators of CUDA's do not tell.
  const int64_t requested = stats.requested_bytes[0].current,
                allocated = requested ? requested : stats.allocated_bytes[0].current;
  mgd_usage known{};
  check(mgd_ledger_usage(machine(), id, &known), "reading a budget");
  // The context and other programs may have what a budget leaves of the device. Nobody else has bytes on a simulated
  // one.
  const int64_t others = total - free - cached, left_to_them = total - known.capacity;
  const int64_t foreign = d.is_privateuseone() ? 0 : std::max<int64_t>(0, others - left_to_them);
  check(mgd_ledger_observe(machine(), id, allocated, foreign), "reading device memory");
}

int64_t to_int64(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

// "cuda" names a simulated device while the simulator is attached. -1: there is no such device.
int resolve(c10::Device d, bool* any) {
  Registry& r = registry();
  *any = d.type() != c10::kCPU && !d.has_index();
  if (d.is_cpu()) return MGD_HOST;
  discover();
  const bool wants_sim = d.type() == c10::kPrivateUse1 || (d.is_cuda() && r.bridge);
  if (!d.has_index()) return wants_sim ? r.sim[0].load() : d.is_cuda() ? r.cuda[0].load() : -1;
  if (d.index() < 0 || d.index() >= kMaxIndex) return -1;
  return wants_sim ? r.sim[d.index()].load() : d.is_cuda() ? r.cuda[d.index()].load() : -1;
}

std::string known_devices() {
  std::string s = "cpu";
  for (int id = 1; id < registry().count; id++) s += ", " + device_of(id).str();
  return s;
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

using namespace managed;

struct mgd_machine* mgd_torch_machine(void) { return machine(); }
int64_t mgd_torch_now(void) { return now(); }

int mgd_torch_observe(void) {
  return guarded([] {
    observe();
    return 0;
  });
}

int mgd_torch_device_id(PyObject* o, int* id, int* any) {
  return guarded([&] {
    c10::Device d(c10::kCPU);
    if (THPDevice_Check(o)) {
      d = reinterpret_cast<THPDevice*>(o)->device;
    } else if (PyUnicode_Check(o)) {
      const char* text = PyUnicode_AsUTF8(o);
      if (!text) throw python_error();
      d = c10::Device(std::string(text));
    } else {
      TORCH_CHECK_TYPE(PyLong_Check(o) && !PyBool_Check(o),
                       "managed: a device is a torch.device, a string or an int, not ", Py_TYPE(o)->tp_name);
      const long index = PyLong_AsLong(o);
      if (index == -1 && PyErr_Occurred()) throw python_error();
      TORCH_CHECK_VALUE(index >= 0 && index < kMaxIndex, "managed: there is no device ", index, "; there are ",
                        known_devices());
      d = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    }
    bool unnamed = false;
    const int found = resolve(d, &unnamed);
    // "cuda" alone lets the manager pick, also when there is nothing to pick from.
    TORCH_CHECK_VALUE(found >= 0 || (unnamed && (d.is_cuda() || d.type() == c10::kPrivateUse1)),
                      "managed: there is no device ", d, "; there are ", known_devices(),
                      registry().bridge || registry().count > 1
                          ? ""
                          : ". Without a GPU, managed.simulate(devices=4) makes simulated ones");
    *id = found;
    *any = unnamed;
    return 0;
  });
}

PyObject* mgd_torch_device(int id) { return guarded([&] { return THPDevice_New(device_of(id)); }); }
