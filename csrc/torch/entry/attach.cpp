// attach.cpp: see attach.h. Also gives the devices' allocators the functions that they call, and forgets in a child of
// fork() what the threads of its parent were doing.
#include "torch/entry/attach.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Exceptions.h>

#include <pthread.h>

#include <algorithm>

#include "torch/api.h"
#include "torch/devices/cuda_bridge.h"
#include "torch/residency/executor.h"
#include "torch/devices/graphs.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/residency/host_limit.h"
#include "torch/devices/registry.h"
#include "torch/residency/room.h"
#include "torch/residency/steps.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/storage.h"
#include "torch/residency/transfer.h"
#include "torch/devices/waiting.h"
#include "torch/tensor/record.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

// The budget of a device that is added later: a part of its memory, or, if that is negative, bytes.
struct PlannedBudget {
  bool is_set = false;
  int64_t bytes = 0;
  double part = 0;
  bool host = false;
};
std::array<PlannedBudget, kMaxIndex> planned_budgets; // written with the GIL, before devices are added

// The hook's half; managed._cuda fills the other if there is CUDA.
CudaBridge& cuda_bridge() {
  static auto* bridge = new CudaBridge; // never destroyed, as the registry
  return *bridge;
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

bool make_sim_room(int device, std::size_t bytes) {
  const int id = id_of(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
  return id >= 0 && make_room(id, static_cast<int64_t>(bytes), Hold::uses_of_this_thread(id));
}

int cuda_id(int device) {
  if (device >= kMaxIndex || recording_graphs.load(std::memory_order_relaxed)) return -1;
  return registry().cuda[device].load(std::memory_order_relaxed);
}

// Makes room for a request that bypasses the front (cuda_bridge.h). It is called at each miss of the allocator's cache,
// also when the device has memory left, and without a size. So the size is estimated: the block that this thread
// requests for a storage that moves, or the bytes of the operands that it holds there, since a result is seldom larger;
// and 20 MiB more, because the allocator rounds segments up.
bool make_some_cuda_room(int device) {
  constexpr int64_t kSegment = 20 << 20;
  const int id = cuda_id(device);
  if (id < 0) return false;
  const int64_t wanted = std::max(requested_by_this_thread(), Hold::bytes_of_this_thread(id)) + kSegment;
  bool made = false;
  while (free_bytes(id) < wanted && make_room(id, wanted, Hold::uses_of_this_thread(id), Caller::LockedAllocator))
    made = true;
  return made;
}

bool make_cuda_hole(int device, std::size_t bytes, std::size_t hole, c10::ArrayRef<mgd_window_block> blocks) {
  const int id = cuda_id(device);
  return id >= 0 &&
      make_room(id, static_cast<int64_t>(bytes), Hold::uses_of_this_thread(id), Caller::Free,
                {static_cast<int64_t>(hole), blocks});
}

// A storage that comes home has its place; other copies have none.
int places_on_cuda(int device, std::size_t bytes, mgd_step_place* places, int n) {
  const int id = cuda_id(device);
  const mgd_handle* h = bytes ? returned_by_this_thread() : nullptr;
  if (id < 0 || (bytes && !h && requested_by_this_thread() != 0)) return 0;
  return mgd_step_layout_places(machine(), id, h, static_cast<int64_t>(bytes), places, n);
}

// What a copy asks for belongs to no operator.
void note_cuda_request(int device, const void* at, std::size_t bytes) {
  if (C10_LIKELY(steps_watched.load(std::memory_order_relaxed) == 0)) return;
  const int id = cuda_id(device);
  if (id >= 0 && requested_by_this_thread() == 0) note_request(id, at, static_cast<int64_t>(bytes));
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
  mgd_mask there = 0;
  double bandwidth = 0;
  for (int i = 0; bridge.bus && bridge.bus(i, &there, &bandwidth); i++)
    check(mgd_link_share(machine(), there << first, bandwidth), "describing a bus");
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

// Gives the devices, which are `devices` and the newest, the budgets that were planned. No thread uses them yet.
void set_planned_budgets(const Bridge& bridge, int first, int devices) {
  for (int i = 0; i < kMaxIndex; i++) {
    const PlannedBudget& plan = planned_budgets[i];
    if (!plan.is_set) continue;
    mgd_usage ledger{};
    const bool exists = i < devices && mgd_ledger_usage(machine(), first + i, &ledger) == MGD_OK;
    const int64_t bytes = plan.part < 0 ? plan.bytes : static_cast<int64_t>(plan.part * double(ledger.capacity));
    if (!exists || bytes > ledger.capacity) {
      const std::string has = exists ? c10::str(device_of(first + i), " has ", readable(ledger.capacity))
                                     : c10::str("there are ", devices, " devices");
      warn_later(
          c10::str("managed: MANAGED_BUDGET gives device ", i, " a budget that it cannot have: ", has, ". It has none.")
              .c_str());
      continue;
    }
    check(mgd_device_set_capacity(machine(), first + i, bytes), "setting a budget");
    if (bridge.limit) bridge.limit(i, static_cast<std::size_t>(bytes));
    if (plan.host) let_end_on_host(first + i, true);
  }
}

// Adds CUDA's devices. If managed._cuda has filled its half of the bridge, their memory is read without a context on
// every device.
void add_cuda() {
  Registry& r = registry();
  if (!at::globalContext().hasCUDA()) return; // torch.compile may have put a guard there that assumes one device
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
  if (!bridge.begin_copy) return set_planned_budgets(bridge, first, n);
  attach_links(bridge, first, n);
  attach_speeds(bridge, first, n);
  bridge.start();
  handles_enabled = true;
  mgd_evict_veto(machine(), &may_leave);
  kernels_are_async = true;
  r.cuda_bridge = &bridge;
  set_planned_budgets(bridge, first, n);
  prepare_for_fork();
}

void attach_sim(Bridge* bridge, int devices) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  TORCH_CHECK(!r.bridge, "managed: the simulator is already attached");
  TORCH_CHECK(bridge->version == Bridge{}.version,
              "managed: _sim was built for another version of managed; build both again");
  int first = -1;
  for (int i = 0; i < devices; i++) {
    const c10::Device d(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(i));
    const int id = add(d, memory_info(d).second);
    if (i == 0) first = id;
  }
  attach_links(*bridge, first, devices);
  bridge->make_room = &make_sim_room;
  bridge->freed = &bytes_came_back;
  bridge->head = &drop_handle;
  bridge->replace = &replace_block;
  bridge->wrote = [](c10::StorageImpl* s) { mgd_handle_write(handle_of(s)); };
  bridge->collective_wrote = [](c10::StorageImpl* s) {
    if (StorageHandle* h = handle_of(s)) mgd_handle_write(h);
    invalidate_storage_copies(s);
  };
  backward_in_caller = bridge->one_thread;
  r.bridge = bridge;
  mgd_evict_veto(machine(), &may_leave);
  handles_enabled = true;
  set_planned_budgets(*bridge, first, devices);
  prepare_for_fork();
}

// Discards the state of other threads, which do not exist in the child.
void machine_in_child() {
  mgd_state_after_fork(machine());
  registry().cuda_is_lost = registry().cuda[0].load() > 0;
  forget_waiting();
  forget_points();
  unfinished_deaths = 0;
  Hold::forget_other_threads();
}

} // namespace

void create_machine() {
  Registry& r = registry();
  if (r.machine) return;
  r.add_accelerators = &add_cuda;
  prepare_waiting();
  check(mgd_machine_create(nullptr, &r.machine), "starting");
  check(mgd_host_set_limit(r.machine, share_of_host() / 5 * 4), "reading the host's memory");
  pthread_atfork([] { mgd_state_before_fork(machine()); }, [] { mgd_state_after_fork(machine()); }, machine_in_child);
}

} // namespace managed

using namespace managed;

int mgd_torch_discover(void) {
  return guarded([] {
    discover();
    return mgd_device_count(machine()) - 1;
  });
}

void mgd_torch_cuda_starts(void) {
  if (cuda_bridge().begin_copy) handles_enabled = true;
}

int mgd_torch_plan_budget(int index, int64_t bytes, double part, int host) {
  return guarded([&] {
    TORCH_CHECK_VALUE(index >= 0 && index < kMaxIndex, "managed: no device has the index ", index);
    planned_budgets[index] = {true, bytes, part, host != 0};
    return 0;
  });
}

PyObject* mgd_torch_bridge(void) {
  CudaBridge& hook = cuda_bridge();
  hook.make_some_room = &make_some_cuda_room;
  hook.places = &places_on_cuda;
  hook.requested = &note_cuda_request;
  hook.make_hole = &make_cuda_hole;
  hook.freed = &bytes_came_back;
  hook.waited = &count_host_wait;
  return PyCapsule_New(static_cast<Bridge*>(&hook), "managed._C.bridge", nullptr);
}

int mgd_torch_attach_sim(PyObject* capsule, int devices) {
  return guarded([&] {
    auto* bridge = static_cast<Bridge*>(PyCapsule_GetPointer(capsule, "managed._sim.bridge"));
    if (!bridge) return -1;
    attach_sim(bridge, devices);
    return 0;
  });
}
