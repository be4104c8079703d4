// steps.cpp: see steps.h.
#include "torch/residency/steps.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/steps/step_file.h"
#include "torch/api.h"
#include "torch/devices/cuda_bridge.h"
#include "torch/devices/devices.h"
#include "torch/devices/graphs.h"
#include "torch/residency/executor.h"
#include "torch/residency/guard.h"
#include "torch/residency/sweep.h"
#include "torch/devices/stream_marks.h"
#include "torch/residency/transfer.h"
#include "torch/tensor/uses.h"
#include "torch/threads/gil.h"

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

const CudaBridge* cuda_of(int device) {
  const c10::Device d = device_of(device);
  return d.is_cuda() ? static_cast<const CudaBridge*>(backend_of(d.type())) : nullptr;
}

// Null: the device's allocator needs no addresses.
const CudaBridge* arenas_of(int device) {
  const CudaBridge* cuda = cuda_of(device);
  return cuda && cuda->may_have_arena(device_of(device).index()) ? cuda : nullptr;
}

// Bit i: the plan of the device with that id is to get addresses; and another plan is to be made before.
std::atomic<uint64_t> to_lay_out{0}, to_plan{0};

// Finds the operator before which a plan gets addresses: what an operator uses cannot leave then, and cuts the free
// bytes into pieces. So it is one with no large operand, or, if a period has none, with the fewest bytes.
struct Moment {
  std::mutex mutex; // a leaf
  int32_t period = 0, seen = 0;
  int64_t least = INT64_MAX;

  void await(int32_t operators) {
    std::lock_guard<std::mutex> lock(mutex);
    period = operators;
    seen = 0;
    least = INT64_MAX;
  }
  bool is_now(c10::ArrayRef<mgd_step_use> uses) {
    int64_t bytes = 0;
    for (const mgd_step_use& u : uses) bytes += u.handle->bytes > MGD_PLACE_LEAST ? u.handle->bytes : 0;
    std::lock_guard<std::mutex> lock(mutex);
    if (seen++ < period) least = std::min(least, bytes);
    return bytes == 0 || (seen > period && bytes <= least) || seen > 2 * period; // the step is another one by now
  }
};
std::array<Moment, MGD_MAX_DEVICES> moments;

// What a thread got of allocators since its last operator on the device. If that was not the device's last operator, it
// is dropped: it would count for another one.
struct Requests {
  struct Request {
    int device;
    mgd_step_request what;
  };
  std::array<Request, MGD_STEP_REQUESTS> all;
  std::size_t count = 0;

  void add(int device, const void* at, int64_t bytes) {
    if (count == all.size()) remove([&](const Request& r) { return r.device != device; });
    if (count < all.size()) all[count++] = {device, {at, bytes}};
  }
  // Moves those of the device to `taken`, and returns how many these are.
  std::size_t take(int device, std::array<mgd_step_request, MGD_STEP_REQUESTS>& taken) {
    static std::array<std::atomic<const Requests*>, MGD_MAX_DEVICES> last;
    const bool was_here = last[device].exchange(this, std::memory_order_relaxed) == this;
    std::size_t n = 0;
    for (std::size_t i = 0; i < count; i++)
      if (all[i].device == device) taken[n++] = all[i].what;
    remove([&](const Request& r) { return r.device == device; });
    return was_here ? n : 0;
  }

 private:
  template <class Which>
  void remove(Which which) {
    count = static_cast<std::size_t>(std::remove_if(all.begin(), all.begin() + count, which) - all.begin());
  }
};
thread_local Requests requests;

mgd_step_state state_of(int device) {
  mgd_step_state state{};
  mgd_step_read(machine(), device, &state);
  return state;
}

void lay_out_later(int device) {
  moments[device].await(state_of(device).operators);
  to_lay_out.fetch_or(uint64_t{1} << device);
}

// Plans the period that the core has found, or that is followed. The device may not have run yet what was logged, so
// the thread waits for it once, before the first plan of a step. Throws when the driver reports an error.
bool make_plan(int device) {
  c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  const mgd_step_clock clock{&d, &between};
  if (backend->worked_between && mgd_step_logs(machine(), device)) backend->await_moments(d.index());
  const int64_t free = free_bytes(device), soon = bytes_free_soon(device);
  const int64_t whole = arenas_of(device) ? std::max(free, soon) : free; // with addresses there are no pieces
  return mgd_step_plan(machine(), device, whole, std::max<int64_t>(0, soon - whole),
                       backend->worked_between ? &clock : nullptr) == MGD_OK;
}

// Everything that is in no use leaves, so that the device's free bytes are one piece, and comes home to the addresses
// of the plan. So the step after a new plan is slower.
void lay_out(int device) {
  const CudaBridge* arenas = arenas_of(device);
  const uint64_t bit = uint64_t{1} << device;
  if (private_pools.load() > 0 || !(to_lay_out.fetch_and(~bit) & bit)) return; // or another thread does it
  if (to_plan.fetch_and(~bit) & bit) (void)make_plan(device);
  if (!arenas || !mgd_step_layout_is_wanted(machine(), device)) return;
  const int index = device_of(device).index();
  uint64_t unused = 0;
  sweep(device, 1, &unused);
  const auto room = static_cast<int64_t>(arenas->arena_room(index));
  const auto beside = static_cast<int64_t>(arenas->room_for_small(index));
  int64_t bytes = 0;
  const int code = mgd_step_layout_make(machine(), device, room, beside, MGD_PLACE_LEAST, &bytes);
  if (code == MGD_OK && bytes > 0 && arenas->open_arena(index, static_cast<std::size_t>(bytes))) return;
  if (code != MGD_E_ABSENT) mgd_step_layout_forget(machine(), device);
}

// A step that is followed keeps its plan until the next one gets addresses: without them its storages would lie in any
// gap of the arena, and what an operator uses may then leave no gap that is large enough for its result.
void plan(int device) {
  const CudaBridge* arenas = arenas_of(device);
  const uint64_t bit = uint64_t{1} << device;
  const bool waits = arenas && arenas->has_arena(device_of(device).index()) && private_pools.load() == 0;
  if (waits && state_of(device).follows) {
    if (!(to_plan.fetch_or(bit) & bit)) lay_out_later(device);
    to_lay_out.fetch_or(bit); // another thread may have just laid out the plan before
  } else if (make_plan(device) && arenas) {
    lay_out_later(device);
  }
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
  std::array<mgd_step_request, MGD_STEP_REQUESTS> of_last;
  const std::size_t requested = requests.take(device, of_last);
  const mgd_step_call call{operator_name, uses.data(), uses.size(), worked(device), of_last.data(), requested};
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
  if (C10_UNLIKELY(to_lay_out.load(std::memory_order_relaxed) >> device & 1) && moments[device].is_now(uses))
    lay_out(device);
} catch (const std::exception&) { // a kernel has failed: the operator's own calls report it
}

void note_request(int device, const void* at, int64_t bytes) {
  if (steps_watched.load(std::memory_order_relaxed) >> device & 1) requests.add(device, at, bytes);
}

void begin_work(int device) noexcept {
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (backend->begin_work && mgd_step_logs(machine(), device)) backend->begin_work(d.index());
}

void close_arena(int device) try {
  const WithoutGil no_gil;
  const CudaBridge* arenas = cuda_of(device);
  if (!arenas || !arenas->has_arena(device_of(device).index())) return;
  uint64_t unused = 0;
  mgd_step_layout_forget(machine(), device);
  sweep(device, 1, &unused);
  arenas->close_arena(device_of(device).index());
} catch (const std::exception&) { // a kernel has failed: the next call of the driver reports it
}

void close_arenas() {
  for (int id = 1; id < device_count(); id++) close_arena(id);
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
