// device_api.cpp: devices for csrc/python: their ids, their memory and how much of it may be used. What the functions
// do is in api.h.
#include <torch/csrc/Device.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/tensor/state.h"
#include "torch/devices/graphs.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/devices/registry.h"
#include "torch/residency/room.h"
#include "torch/residency/steps.h"
#include "torch/threads/gil.h"

namespace managed {
namespace {

// The id of the device that a program names, or -1 if there is no such device. "cuda" names a simulated device while
// the simulator is attached. *any: the name has no index.
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

// Limits the bytes of the device that are used from now on; evicts what exceeds the limit, as far as possible. If a
// device fails, it throws that device's error.
void set_budget(int device, int64_t bytes) {
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (!backend || !backend->limit) return;
  close_arena(device);
  const auto limit = [&] { backend->limit(d.index(), static_cast<std::size_t>(bytes)); };
  limit();
  // Evicted bytes may lie in the allocator's cache, or wait there for streams, and are no room then. Setting the limit
  // again gives them back, so that no storage is evicted in vain.
  while (free_bytes(device) == 0 && make_room(device, 1, Hold::uses_of_this_thread(device))) limit();
}

constexpr int kFruitless = 8; // rounds in which storages leave and the driver gets nothing: their segments are in use

// What is in the allocator's cache is not the driver's, nor are free pieces of segments that are in use. So storages
// leave until the driver has enough. A device that fails ends this.
int64_t give_back(int device, int64_t bytes) {
  const WithoutGil no_gil;
  const c10::Device d = device_of(device);
  int64_t found = 0;
  try {
    if (!has_context(d) || recording_graphs.load(std::memory_order_relaxed)) return 0;
    const int64_t before = memory_info(d).first;
    close_arena(device);
    const auto in_driver = [&] {
      c10::getDeviceAllocator(d.type())->emptyCache();
      return std::max<int64_t>(0, memory_info(d).first - before);
    };
    found = in_driver();
    for (int fruitless = 0; found < bytes && fruitless < kFruitless; fruitless++) {
      const int64_t own_uses = Hold::uses_of_this_thread(device);
      if (!make_room(device, free_bytes(device) + bytes - found, own_uses, Caller::GivesBack)) break;
      const int64_t now_found = in_driver();
      if (now_found > found) fruitless = -1;
      found = now_found;
    }
  } catch (const std::exception&) { /* what came free until then is free */
  }
  return found;
}

} // namespace
} // namespace managed

using namespace managed;

// While a graph is recorded nothing leaves, and a pool takes its memory of the driver: so what is laid out leaves
// before.
void mgd_torch_private_pool(int change, int graph) {
  graphs_recorded = true;
  private_pools += change;
  if (change > 0) close_arenas();
  if (graph) recording_graphs += change;
}

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

PyObject* mgd_torch_device(int id) {
  return guarded([&] { return THPDevice_New(device_of(id)); });
}

int mgd_torch_allocator_usage(int device, int64_t* live, int64_t* cached) {
  int64_t reserved = 0;
  if (!allocator_usage(device, live, &reserved)) return -1;
  *cached = reserved > *live ? reserved - *live : 0;
  return 0;
}

int64_t mgd_torch_give_back(int device, int64_t bytes) { return give_back(device, bytes); }

int mgd_torch_let_end_on_host(int device, int all) { return let_end_on_host(device, all != 0); }

int mgd_torch_set_budget(int device, int64_t bytes) {
  return guarded([&] {
    const NoGil no_gil;
    set_budget(device, bytes);
    return 0;
  });
}
