// api.cpp: see api.h. The border between C++ exceptions and Python's.
#include "sim/device/api.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>

#include "sim/kernels/alias.h"
#include "sim/device/blocks.h"
#include "sim/device.h"
#include "sim/device/engine.h"
#include "sim/device/faults.h"
#include "sim/generator.h"
#include "sim/device/moves.h"
#include "sim/device/raw.h"
#include "sim/operators.h"
#include "sim/device/register.h"
#include "sim/storage.h"
#include "sim/device/timeline.h"
#include "sim/kernels/unknown.h"
#include "sim/values.h"

using namespace managed::sim;

static_assert(MGD_SIM_MAX_DEVICES == kMaxDevices);

namespace {

template <class F>
int guarded(F &&f) {
  HANDLE_TH_ERRORS
  f();
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void create(const mgd_sim_config &c) {
  static std::mutex once;
  std::lock_guard<std::mutex> held(once);
  TORCH_CHECK(device_count() == 0, "devices are already simulated in this process (", device_count(),
              " of them); their number cannot change: start a new process");
  TORCH_CHECK(!engine_started(),
              "a backward pass has already run in this process: autograd made its threads then, one for each device "
              "it knew, and makes no more. Call managed.simulate() (or set MANAGED_SIM) before the first backward");
  check_unclaimed();
  timeline_create(c.devices, c.speed, {c.host, c.peer, c.devices_per_switch, c.peers_over_host != 0, c.all_bytes_per_ns}, c.repeatable != 0);
  if (!c.values) hold_no_values();
  set_unknown_is_error(c.unknown_is_error != 0);
  devices_create(c.devices, c.capacity);
  register_backend();
  bridge().link = &link_between;
  bridge().bus = &host_bus;
  bridge().owns = &owns;
  bridge().is_shared = &is_shared;
  bridge().begin_copy = &begin_copy;
  bridge().point = &point;
  bridge().copy_operand = &copy_operand;
  bridge().allocate_for_copy = &allocate_for_copy;
  bridge().free_after = &free_after;
  bridge().limit = &set_limit;
  bridge().room = [](int device) { return memory_of(device).room; };
  bridge().last_copy = &last_copy;
  bridge().worked = &worked;
  bridge().own = &note_owner;
  bridge().one_thread = c.repeatable != 0;
  bridge().values = holds_values();
  if (!holds_values()) bridge().allocate_host = &take_addresses;
  devices_survive_fork();
  blocks_survive_fork();
  raw_survives_fork();
  timeline_survives_fork(&take_bytes_again);
}

}  // namespace

int mgd_sim_create(const mgd_sim_config *config) {
  return guarded([&] { create(*config); });
}

void *mgd_sim_bridge(void) { return &bridge(); }
int mgd_sim_device_count(void) { return device_count(); }
int mgd_sim_current_device(void) { return current_device(); }

int mgd_sim_set_device(int device) {
  return guarded([&] {
    check_device(device);
    set_current_device(device);
  });
}

int mgd_sim_report(int device, struct mgd_sim_usage *out) {
  return guarded([&] {
    check_device(device);
    const Memory m = memory_of(device);
    *out = {m.capacity, m.used, m.peak, m.foreign, device_time(device)};
  });
}

int mgd_sim_set_capacity(int device, size_t bytes) {
  return guarded([&] {
    check_device(device);
    set_capacity(device, bytes);
  });
}

int mgd_sim_reset_peak(int device) {
  return guarded([&] {
    check_device(device);
    reset_peak(device);
  });
}

int mgd_sim_raw_alloc(int device, size_t bytes, void **out) {
  return guarded([&] {
    check_device(device);
    *out = raw_alloc(device, bytes);
  });
}

int mgd_sim_raw_free(void *address) {
  return guarded([&] { raw_free(address); });
}

int mgd_sim_caching_alloc(int device, size_t bytes, int stream, void **out) {
  return guarded([&] {
    check_device(device);
    *out = caching_alloc(device, bytes, stream);
  });
}

int mgd_sim_caching_delete(void *address) {
  return guarded([&] { caching_delete(address); });
}

void mgd_sim_exchange_faults(int kind, int64_t *first, int64_t *last, int64_t *seen) {
  const Faults before = exchange_faults(kind ? Fault::Copy : Fault::Allocation, {*first, *last, *seen});
  *first = before.first, *last = before.last, *seen = before.seen;
}

int mgd_sim_host_time(int64_t *out) {
  return guarded([&] { *out = device_count() ? host_time() : 0; });
}

int mgd_sim_elapsed(int64_t *out) {
  return guarded([&] { *out = device_count() ? elapsed() : 0; });
}

int mgd_sim_busy(int from, int to, int64_t *out) {
  return guarded([&] { *out = busy_time(from, to); });
}

int64_t mgd_sim_exchange_duration(int64_t ns) { return exchange_duration(ns); }

int mgd_sim_start_log(void) { return guarded(&start_log); }

int mgd_sim_stop_log(struct mgd_span **spans, size_t *count) {
  return guarded([&] { stop_log(spans, count); });
}

int mgd_sim_start_audit(void) { return guarded(&start_audit); }

int mgd_sim_check_audit(int device, int64_t *out) {
  return guarded([&] { *out = check_audit(device); });
}

int mgd_sim_is_known(PyObject *o, int *out) {
  return guarded([&] {
    TORCH_CHECK_TYPE(THPVariable_Check(o), "expected a tensor, not ", Py_TYPE(o)->tp_name);
    const at::Tensor &t = THPVariable_Unpack(o);
    const bool asked = !holds_values() && on_device(t) && t.layout() == at::kStrided && t.has_storage();
    *out = !asked || known_of(t.storage()) == Known::values;
  });
}

void mgd_sim_know_nothing(int yes) { know_nothing(yes != 0); }

PyObject *mgd_sim_generator(int device) {
  HANDLE_TH_ERRORS
  check_device(device);
  return THPGenerator_Wrap(default_generator(device));
  END_HANDLE_TH_ERRORS
}

void mgd_sim_park(void) {
  Py_BEGIN_ALLOW_THREADS park_engine_threads(device_count());
  Py_END_ALLOW_THREADS
}
