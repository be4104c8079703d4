// devices.cpp: owns the machine and the mapping between c10::Device and its ids.
//
// Accelerators are looked up when somebody first asks for one, so importing
// the package initialises no driver. Memory is read through torch's own
// DeviceAllocator interface, which CUDA and the simulator both implement.
#include "devices.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "api.h"
#include "cuda_bridge.h"
#include "forks.h"
#include "graphs.h"
#include "guard.h"
#include "hold.h"
#include "host_limit.h"
#include "replica.h"
#include "room.h"
#include "storage.h"

namespace managed {
namespace {

constexpr int kMaxIndex = 64;

// The hook's half; managed._cuda fills the other where there is CUDA.
CudaBridge& cuda_bridge() {
  static auto* bridge = new CudaBridge; // never destroyed, as the registry
  return *bridge;
}

struct Registry {
  std::mutex mutex; // discovery and attaching
  struct mgd_machine* machine = nullptr;
  std::atomic<bool> discovered{false};
  std::atomic<int> count{1};                            // ids in use, the host included
  std::array<c10::Device, MGD_MAX_DEVICES> devices;     // by id; written before count grows
  std::array<std::atomic<int8_t>, kMaxIndex> cuda, sim; // index -> id, -1 when there is none
  Bridge* bridge = nullptr;                // of the simulator
  std::atomic<Bridge*> cuda_bridge{nullptr}; // once its devices are in the machine

  // Waiting for bytes to come back.
  std::mutex freed_mutex;
  std::condition_variable freed;
  std::atomic<int> waiters{0};
  std::atomic<uint64_t> freed_count{0};

  template <std::size_t... I>
  explicit Registry(std::index_sequence<I...>) : devices{((void)I, c10::Device(c10::kCPU))...} {
    for (auto& id : cuda) id = -1;
    for (auto& id : sim) id = -1;
  }
};

Registry& registry();
std::mutex& freed_mutex() { return registry().freed_mutex; }

Registry& registry() {
  static auto* r = [] {
    survive_fork<freed_mutex>();
    return new Registry(std::make_index_sequence<MGD_MAX_DEVICES>{}); // never destroyed: threads may outlive static destructors
  }();
  return *r;
}

void check(int code, const char* what) {
  TORCH_CHECK(code == MGD_OK, "managed: ", what, ": ", mgd_text_error(code));
}

int add(c10::Device d, int64_t capacity) {
  Registry& r = registry();
  int id = 0;
  check(mgd_device_add(r.machine, d.str().c_str(), capacity, &id), "adding a device");
  r.devices[id] = d;
  (d.is_cuda() ? r.cuda : r.sim)[d.index()] = static_cast<int8_t>(id);
  r.count = id + 1;
  return id;
}

int count_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

std::pair<int64_t, int64_t> memory_info(c10::Device d) {
  auto [free, total] = c10::getDeviceAllocator(d.type())->getMemoryInfo(d.index());
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

std::atomic<bool> cuda_is_lost{false}; // a forked child has none of what its parent had
bool has_context(c10::Device d) {
  if (!d.is_cuda()) return true;
  return !cuda_is_lost && at::globalContext().getAcceleratorHooksInterface(d.type()).hasPrimaryContext(d.index());
}

// To ask CUDA what is free makes a context, which costs hundreds of MiB; a device without one counts as free.
void observe_one(int id) {
  const c10::Device d = device_of(id);
  if (!has_context(d)) return check(mgd_ledger_observe(machine(), id, 0, 0), "reading device memory");
  auto [free, total] = memory_info(d);
  const auto stats = c10::getDeviceAllocator(d.type())->getDeviceStats(d.index());
  const int64_t cached = stats.reserved_bytes[0].current;
  // What was asked for, so that a plan finds the bytes of what it moves; some allocators of CUDA's do not tell.
  const int64_t requested = stats.requested_bytes[0].current, allocated = requested ? requested : stats.allocated_bytes[0].current;
  mgd_usage known{};
  check(mgd_ledger_usage(machine(), id, &known), "reading a budget");
  // The context and other programs may have what a budget leaves of the device. Nobody else has bytes on a simulated one.
  const int64_t others = total - free - cached, left_to_them = total - known.capacity;
  const int64_t foreign = d.is_privateuseone() ? 0 : std::max<int64_t>(0, others - left_to_them);
  check(mgd_ledger_observe(machine(), id, allocated, foreign), "reading device memory");
}

// Of the registry's count, what this thread has added.
constinit thread_local uint64_t freed_here __attribute__((tls_model("initial-exec"))) = 0;

// Called on every free, so it takes no lock while nobody waits. The count goes
// up first: whoever registers as a waiter afterwards sees it and does not sleep.
void bytes_came_back(int, std::size_t) {
  Registry& r = registry();
  r.freed_count++;
  freed_here++;
  if (r.waiters.load() == 0) return;
  { std::lock_guard<std::mutex> lock(r.freed_mutex); }
  r.freed.notify_all();
}

bool make_sim_room(int device, std::size_t bytes) {
  const int id = id_of(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
  return id >= 0 && make_room(id, static_cast<int64_t>(bytes));
}

int cuda_id(int device) {
  if (device >= kMaxIndex || recording_graphs.load(std::memory_order_relaxed)) return -1;
  return registry().cuda[device].load(std::memory_order_relaxed);
}

bool make_cuda_room(int device, std::size_t bytes) {
  const int id = cuda_id(device);
  return id >= 0 && make_room(id, static_cast<int64_t>(bytes));
}

// Who asks past the front says no size, and asks at every miss of the cache, full or not. What this thread brings home is known;
// an operator's result is seldom larger than its operands. Segments are rounded up, to 20 MiB at most.
bool make_some_cuda_room(int device) {
  constexpr int64_t kSegment = 20 << 20;
  const int id = cuda_id(device);
  if (id < 0) return false;
  const int64_t wanted = std::max(asked_by_this_thread(), Hold::bytes_of_this_thread(id)) + kSegment;
  bool made = false;
  while (free_bytes(id) < wanted && make_room(id, wanted, Caller::LockedAllocator)) made = true;
  return made;
}

void attach_links(const Bridge& bridge, int first, int devices) {
  auto set = [&](int from, int to) {
    struct mgd_link link{};
    bridge.link(from, to, &link.latency_ns, &link.bytes_per_ns);
    auto id = [&](int i) { return i < 0 ? MGD_HOST : first + i; };
    check(mgd_link_set(machine(), id(from), id(to), link), "describing a link");
  };
  for (int a = -1; a < devices; a++)
    for (int b = -1; b < devices; b++)
      if (a != b) set(a, b);
}

// Speeds compare only if all are known; otherwise all devices count as equally fast.
void attach_speeds(const Bridge& bridge, int first, int devices) {
  std::array<double, kMaxIndex> speeds{};
  for (int i = 0; i < devices; i++) {
    speeds[i] = bridge.speed ? bridge.speed(i) : 0;
    if (!(speeds[i] > 0)) return;
  }
  for (int i = 0; i < devices; i++) check(mgd_device_set_speed(machine(), first + i, speeds[i]), "describing a device");
}

// Where managed._cuda is there, the machine is read without a context on every device.
void discover_cuda() {
  Registry& r = registry();
  if (!at::globalContext().hasCUDA()) return; // torch.compile may have put a guard there that believes in one device
  const int n = std::min(count_of(c10::kCUDA), kMaxIndex);
  if (n <= 0) return;
  at::globalContext().lazyInitDevice(c10::kCUDA);
  Bridge& bridge = cuda_bridge();
  int first = -1;
  for (int i = 0; i < n; i++) {
    const c10::Device d(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
    const int id = add(d, bridge.capacity ? static_cast<int64_t>(bridge.capacity(i)) : memory_info(d).second);
    if (i == 0) first = id;
  }
  if (!bridge.copy) return;
  attach_links(bridge, first, n);
  attach_speeds(bridge, first, n);
  bridge.start();
  may_adopt = true;
  mgd_evict_veto(machine(), &may_leave);
  kernels_go_on = true;
  r.cuda_bridge = &bridge;
}

void attach_sim(Bridge* bridge, int devices) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  TORCH_CHECK(!r.bridge, "managed: the simulator is already attached");
  TORCH_CHECK(bridge->version == Bridge{}.version, "managed: _sim was built for another version of managed; build both again");
  int first = -1;
  for (int i = 0; i < devices; i++) {
    const c10::Device d(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(i));
    const int id = add(d, memory_info(d).second);
    if (i == 0) first = id;
  }
  attach_links(*bridge, first, devices);
  bridge->make_room = &make_sim_room;
  bridge->freed = &bytes_came_back;
  bridge->head = &drop_block;
  bridge->replace = &replace_block;
  bridge->wrote = [](c10::StorageImpl* s) { mgd_handle_write(block_of(s)); };
  r.bridge = bridge;
  mgd_evict_veto(machine(), &may_leave);
  may_adopt = true;
}

// What other threads were doing ends here, for they are not in the child.
void child_begins() {
  mgd_state_after_fork(machine());
  cuda_is_lost = registry().cuda[0].load() > 0;
  registry().waiters = 0;
  forget_waiters(registry().freed);
  unfinished_deaths = 0;
  Hold::forget_other_threads();
}

int64_t to_int64(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

// "cuda" names a simulated device where simulation is on; without CUDA nothing else is meant.
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

std::atomic<bool> kernels_go_on{false};

bool note_kernels(c10::Device d) {
  const Bridge* b = backend_of(d.type());
  return b && b->use && b->use(d.index());
}

const Bridge* backend_of(c10::DeviceType type) {
  Registry& r = registry();
  return type == c10::kPrivateUse1 ? r.bridge : type == c10::kCUDA ? r.cuda_bridge.load(std::memory_order_acquire) : nullptr;
}

uint64_t freed_count() { return registry().freed_count; }
uint64_t freed_by_others() { return freed_count() - freed_here; }
bool somebody_waits() { return registry().waiters.load() != 0; }
void note_change() { bytes_came_back(0, 0); }

bool wait_for_change(uint64_t seen, int64_t deadline) {
  Registry& r = registry();
  PyThreadState* gil = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  r.waiters++;
  bool woken = false;
  {
    std::unique_lock<std::mutex> lock(r.freed_mutex);
    const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
    woken = r.freed.wait_until(lock, until, [&] { return r.freed_count != seen; });
  }
  r.waiters--;
  if (gil) PyEval_RestoreThread(gil);
  return woken;
}

void discover() {
  Registry& r = registry();
  if (r.discovered) return;
  std::lock_guard<std::mutex> lock(r.mutex);
  if (r.discovered) return;
  discover_cuda();
  r.discovered = true;
}

void observe() {
  discover();
  for (int id = 1; id < registry().count; id++) observe_one(id);
}

int64_t now() { return to_int64(std::chrono::steady_clock::now().time_since_epoch()); }

int64_t bytes_of(const at::Tensor& t) {
  if (!t.defined()) return 0;
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

void create_machine() {
  Registry& r = registry();
  if (r.machine) return;
  check(mgd_machine_create(nullptr, &r.machine), "starting");
  check(mgd_host_set_limit(r.machine, share_of_host() / 5 * 4), "reading the host's memory");
  pthread_atfork([] { mgd_state_before_fork(machine()); }, [] { mgd_state_after_fork(machine()); }, child_begins);
}

} // namespace managed

using namespace managed;

struct mgd_machine* mgd_torch_machine(void) { return machine(); }
int64_t mgd_torch_now(void) { return now(); }

int mgd_torch_discover(void) {
  return guarded([] {
    discover();
    return mgd_device_count(machine()) - 1;
  });
}

int mgd_torch_observe(void) {
  return guarded([] {
    observe();
    return 0;
  });
}

int mgd_torch_attach_sim(PyObject* capsule, int devices) {
  auto* bridge = static_cast<Bridge*>(PyCapsule_GetPointer(capsule, "managed._sim.bridge"));
  if (!bridge) return -1;
  return guarded([&] {
    attach_sim(bridge, devices);
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
      TORCH_CHECK_TYPE(PyLong_Check(o) && !PyBool_Check(o), "managed: a device is a torch.device, a string or an int, not ", Py_TYPE(o)->tp_name);
      const long index = PyLong_AsLong(o);
      if (index == -1 && PyErr_Occurred()) throw python_error();
      TORCH_CHECK_VALUE(index >= 0 && index < kMaxIndex, "managed: there is no device ", index, "; there are ", known_devices());
      d = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    }
    bool unnamed = false;
    const int found = resolve(d, &unnamed);
    // "cuda" alone lets the manager pick, also when there is nothing to pick from.
    TORCH_CHECK_VALUE(found >= 0 || (unnamed && (d.is_cuda() || d.type() == c10::kPrivateUse1)), "managed: there is no device ", d, "; there are ", known_devices(),
                      registry().bridge || registry().count > 1 ? "" : ". Without a GPU, managed.simulate(devices=4) makes simulated ones");
    *id = found;
    *any = unnamed;
    return 0;
  });
}

PyObject* mgd_torch_device(int id) { return guarded([&] { return THPDevice_New(device_of(id)); }); }

uint64_t mgd_torch_freed_count(void) { return freed_count(); }
void mgd_torch_notify_freed(void) { note_change(); }

PyObject* mgd_torch_bridge(void) {
  CudaBridge& hook = cuda_bridge();
  hook.make_room = &make_cuda_room;
  hook.make_some_room = &make_some_cuda_room;
  hook.freed = &bytes_came_back;
  return PyCapsule_New(static_cast<Bridge*>(&hook), "managed._C.bridge", nullptr);
}

void mgd_torch_cuda_starts(void) {
  if (cuda_bridge().copy) may_adopt = true;
}

int mgd_torch_wait_freed(uint64_t seen, int64_t deadline) { return wait_for_change(seen, deadline); }
