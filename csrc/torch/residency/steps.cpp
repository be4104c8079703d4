// steps.cpp: see steps.h.
#include "torch/residency/steps.h"

#include <algorithm>
#include <array>

#include "core/steps/step_file.h"
#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/residency/guard.h"
#include "torch/devices/stream_marks.h"
#include "torch/residency/transfer.h"
#include "torch/tensor/uses.h"

namespace managed {

std::atomic<uint64_t> steps_watched{0};

namespace {

std::atomic<bool> learns{true};

// Moments are events in a stream, so they are recorded only while the core logs the device.
int64_t worked(int device) {
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (backend->worked_between && !mgd_step_logs(machine(), device)) {
    if (backend->stop_moments) backend->stop_moments(d.index());
    return -1;
  }
  return backend->worked ? backend->worked(d.index()) : -1;
}

int64_t between(void* device, int64_t from, int64_t to) {
  const auto* d = static_cast<const c10::Device*>(device);
  return backend_of(d->type())->worked_between(d->index(), from, to);
}

// Plans the period that the core has found. The device may not have run yet what was logged, so the thread waits for it
// once, before the first plan of a step. Throws when the driver reports an error.
void plan(int device) {
  c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  const mgd_step_clock clock{&d, &between};
  if (backend->worked_between && mgd_step_logs(machine(), device)) backend->await_moments(d.index());
  const int64_t free = free_bytes(device), pieces = std::max<int64_t>(0, bytes_free_soon(device) - free);
  mgd_step_plan(machine(), device, free, pieces, backend->worked_between ? &clock : nullptr);
}

// Another thread may begin to note uses or to watch a device in between, so the condition is tested again.
void stop_watching(int device) {
  steps_watched.fetch_and(~(uint64_t{1} << device), std::memory_order_relaxed);
  if (steps_watched.load() == 0 && !noting_uses.load()) watching_uses = false;
  if (steps_watched.load() != 0 || noting_uses.load()) watching_uses = true;
}

} // namespace

void begin_steps(int device) {
  if (!learns.load(std::memory_order_relaxed) || mgd_step_begin(machine(), device) != MGD_OK) return;
  steps_watched.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
  watching_uses.store(true, std::memory_order_relaxed);
}

void follow_step(int device, const char* operator_name, c10::ArrayRef<mgd_step_use> uses) noexcept try {
  pass_by(device);
  const mgd_step_call call{operator_name, uses.data(), uses.size(), worked(device)};
  bool plans = false;
  {
    const Transfer moving;
    std::array<mgd_action, MGD_STEP_ACTIONS> actions;
    std::size_t n = actions.size();
    const int code = mgd_step_operator(machine(), device, &call, actions.data(), &n, &plans);
    if (code == MGD_E_ABSENT) stop_watching(device);
    if (code != MGD_OK) return;
    carry_out({actions.data(), n}, Purpose::Ahead);
    while (C10_UNLIKELY(n + 2 >= actions.size())) { // there may be more
      n = actions.size();
      if (mgd_step_rest(machine(), device, &call, actions.data(), &n) != MGD_OK) break;
      carry_out({actions.data(), n}, Purpose::Ahead);
    }
  }
  if (plans) plan(device);
} catch (const std::exception&) { // a kernel has failed: the operator's own calls report it
}

void begin_work(int device) noexcept {
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (backend->begin_work && mgd_step_logs(machine(), device)) backend->begin_work(d.index());
}

void learn_steps(bool on) {
  learns = on;
  mgd_step_learn(machine(), on);
}

bool learns_steps() { return learns; }

} // namespace managed

using namespace managed;

int mgd_torch_learns(void) { return learns_steps(); }

void mgd_torch_learn(int on) { learn_steps(on != 0); }

int mgd_torch_load_steps(int device, const int64_t* numbers, size_t n, int* steps) {
  const int code = mgd_step_file_load(machine(), device, numbers, n, steps);
  if (*steps > 0) begin_steps(device); // the device follows them although nothing has been evicted yet
  return code;
}
