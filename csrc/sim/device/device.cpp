// device.cpp: see device.h.
#include "sim/device.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>

#include "sim/device/faults.h"
#include "sim/device/timeline.h"

namespace managed::sim {

// Invariants: used + foreign is the sum of bytes of the list, and at most the capacity unless
// that was lowered meanwhile; stats.allocated_bytes[0].current == used.
struct Device {
  std::mutex lock;
  std::size_t capacity = 0;
  std::size_t limit = SIZE_MAX;
  std::size_t used = 0, foreign = 0;  // bytes of tensors, and of other libraries
  Reservation *first = nullptr;
  c10::CachingDeviceAllocator::DeviceStats stats;

  std::size_t most() const { return std::min(capacity, limit); }  // a larger tensor never fits
  std::size_t left_to_tensors() const { return capacity - std::min(capacity, foreign); }
  std::size_t allowed() const { return std::min(left_to_tensors(), limit); }  // to tensors
  std::size_t room(std::size_t most) const { return most - std::min(most, used); }
  bool try_take(Reservation *r);
  void give_back(Reservation *r);
  void link(Reservation *r);
  void unlink(Reservation *r);
  void take_again(int device);
};

namespace {

// Leaked: tensors may be freed after static destructors have run.
Device *const g_devices = new Device[kMaxDevices];
std::atomic<int> g_count{0};
thread_local int t_current = 0;
Bridge g_bridge;

// torch keeps three arrays per figure (all, small pool, large pool); there are no pools here.
constexpr std::size_t kAll = 0;

void count_up(c10::CachingDeviceAllocator::DeviceStats &s, std::size_t n) {
  s.allocation[kAll].increase(1);
  s.active[kAll].increase(1);
  for (auto *sum : {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes}) (*sum)[kAll].increase(n);
  s.num_device_alloc++;
}

void count_down(c10::CachingDeviceAllocator::DeviceStats &s, std::size_t n) {
  s.allocation[kAll].decrease(1);
  s.active[kAll].decrease(1);
  for (auto *sum : {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes}) (*sum)[kAll].decrease(n);
  s.num_device_free++;
}

std::string readable(std::size_t bytes) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, unit++;
  char text[64];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

std::string exact(std::size_t bytes) {
  if (bytes < 1024) return readable(bytes);
  return readable(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

// What stood on the device when the request failed, read under its lock.
struct Situation {
  std::size_t capacity, most, used, foreign, room, largest, blocks;
};

Situation look(Device &d) {
  std::lock_guard<std::mutex> held(d.lock);
  Situation s{d.capacity, d.most(), d.used, d.foreign, d.room(d.allowed()), 0, 0};
  for (const Reservation *r = d.first; r; r = r->next()) {
    if (r->is_foreign()) continue;
    s.largest = std::max(s.largest, r->bytes());
    s.blocks++;
  }
  d.stats.num_ooms++;
  return s;
}

// A simulated device stands in for one of CUDA's. Lightning, for one, knows the error by these words: see managed/errors.py.
constexpr const char *kOnCuda = " CUDA's allocator would say \"CUDA out of memory.\"";

[[noreturn]] void fail(int device, std::size_t bytes) {
  const Situation s = look(g_devices[device]);
  const std::string budget = s.most < s.capacity ? ", budget " + exact(s.most) : "";
  const std::string foreign = s.foreign ? ", of other libraries " + exact(s.foreign) : "";
  const char *advice = bytes > s.most
      ? "This can never fit here: split the tensor, use a device with more memory, or simulate with a larger memory=."
      : "Free tensors, use smaller batches, move something to another device, or simulate with a larger memory=.";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "sim:", device, " out of memory. Tried to allocate ", exact(bytes),
                   ". Capacity ", exact(s.capacity), budget, ", used ", exact(s.used), " in ", s.blocks,
                   " storages (largest ", exact(s.largest), ")", foreign, ", free ", exact(s.room), ". ", advice,
                   kOnCuda);
}

[[noreturn]] void fail_as_asked(int device, std::size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "sim:", device, " out of memory. Tried to allocate ", exact(bytes),
                   ", and managed.debug.torture(fail_allocation=...) asked for this to fail.", kOnCuda);
}

// The hook may run Python-free code that waits for other threads, and those may
// need the GIL; some allocations (constructors called from Python) hold it.
bool ask_for_room(int device, std::size_t bytes) {
  if (!g_bridge.make_room) return false;
  {
    std::lock_guard<std::mutex> held(g_devices[device].lock);
    if (bytes > g_devices[device].most()) return false;
    g_devices[device].stats.num_alloc_retries++;
  }
  struct WithoutGil {
    PyThreadState *gil = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    ~WithoutGil() noexcept(false) { // a daemon thread that outlives the interpreter is ended there
      if (gil) PyEval_RestoreThread(gil);
    }
  } const without;
  return g_bridge.make_room(device, bytes);
}

// Tells the clock how much the device holds at once: what leaves is in use until its copy has ended. Not under the
// device's lock, since fork() takes the clock's first; so it is repeated if another thread has changed it meanwhile.
void tell_clock(int device) {
  Device &d = g_devices[device];
  const auto most = [&] {
    std::lock_guard<std::mutex> held(d.lock);
    return d.allowed() + std::min(d.capacity, d.foreign);
  };
  for (std::size_t told = SIZE_MAX, now = most(); told != now; now = most()) set_clock_capacity(device, told = now);
}

void lock_devices() {
  for (int i = 0; i < kMaxDevices; i++) g_devices[i].lock.lock();
}
void unlock_devices() {
  for (int i = kMaxDevices; i-- > 0;) g_devices[i].lock.unlock();
}

}  // namespace

bool Device::try_take(Reservation *r) {
  std::lock_guard<std::mutex> held(lock);
  if (r->bytes_ > room(r->is_foreign_ ? left_to_tensors() : allowed())) return false;
  (r->is_foreign_ ? foreign : used) += r->bytes_;
  link(r);
  if (!r->is_foreign_) count_up(stats, r->bytes_);
  return true;
}

void Device::give_back(Reservation *r) {
  std::lock_guard<std::mutex> held(lock);
  (r->is_foreign_ ? foreign : used) -= r->bytes_;
  unlink(r);
  if (!r->is_foreign_) count_down(stats, r->bytes_);
}

void Device::link(Reservation *r) {
  r->next_ = first;
  if (first) first->previous_ = r;
  first = r;
}

void Device::unlink(Reservation *r) {
  (r->previous_ ? r->previous_->next_ : first) = r->next_;
  if (r->next_) r->next_->previous_ = r->previous_;
}

Reservation::Reservation(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes && fails_now(Fault::Allocation)) fail_as_asked(device, bytes);
  while (!g_devices[device].try_take(this)) {
    if (!ask_for_room(device, bytes)) fail(device, bytes);
  }
  take_time();
}

Reservation::Reservation(Foreign, int device, std::size_t bytes) : device_(device), bytes_(bytes), is_foreign_(true) {
  if (!g_devices[device].try_take(this)) throw std::bad_alloc();
  tell_clock(device);
  take_time();
}

void Reservation::take_time() {
  try {
    if (bytes_) hold_ = take_bytes(device_, taking_stream(device_), bytes_);
  } catch (...) {
    g_devices[device_].give_back(this);
    throw;
  }
}

void Device::take_again(int device) {
  for (Reservation *r = first; r; r = r->next_) {
    const mgd_hold *before = r->hold_;
    r->hold_ = r->bytes_ ? take_bytes(device, 0, r->bytes_) : nullptr;
    r->is_written_ = false;
    r->written_ = {};
    if (before && r->hold_) mgd_clock_hold_own(r->hold_, mgd_clock_hold_owner(before));
  }
}

void Reservation::used_on(int stream) const {
  if (hold_) mgd_clock_hold_use(hold_, stream);
}

void Reservation::hand_over(int stream, bool alone) const {
  if (hold_) hand_over_bytes(hold_, stream, alone);
}

void Reservation::belongs_to(mgd_hold_owner owner) const {
  if (hold_) mgd_clock_hold_own(hold_, owner);
}

void Reservation::written_by(int stream) {
  note_end(device_, stream, &written_);
  is_written_ = true;
}

// Tensors die with and without the GIL and under torch's own locks, so the hook
// must not wait for anything here: see bridge.h.
Reservation::~Reservation() {
  if (hold_) give_bytes(hold_, end_.get());
  if (is_written_) forget(&written_);
  g_devices[device_].give_back(this);
  if (is_foreign_) tell_clock(device_);
  if (bytes_ && g_bridge.freed) g_bridge.freed(device_, bytes_);
}

void devices_create(int count, const std::size_t *capacities) {
  for (int i = 0; i < count; i++) set_capacity(i, capacities[i]);
  g_count.store(count, std::memory_order_release);
}

int device_count() noexcept { return g_count.load(std::memory_order_acquire); }
int current_device() noexcept { return t_current; }
void set_current_device(int device) noexcept { t_current = device; }

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "there is no device sim:", device, ": this process simulates ", device_count(),
              " devices, sim:0 to sim:", device_count() - 1);
}

Memory memory_of(int device) {
  Device &d = g_devices[device];
  std::lock_guard<std::mutex> held(d.lock);
  return {d.capacity, d.used, static_cast<std::size_t>(d.stats.allocated_bytes[kAll].peak), d.foreign,
          d.room(d.allowed())};
}

void set_capacity(int device, std::size_t bytes) {
  {
    std::lock_guard<std::mutex> held(g_devices[device].lock);
    g_devices[device].capacity = bytes;
  }
  tell_clock(device);
}

void set_limit(int device, std::size_t bytes) {
  {
    std::lock_guard<std::mutex> held(g_devices[device].lock);
    g_devices[device].limit = bytes;
  }
  tell_clock(device);
}

void reset_peak(int device) {
  auto &d = g_devices[device];
  std::lock_guard<std::mutex> held(d.lock);
  auto &s = d.stats;
  for (auto *figure : {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes}) (*figure)[kAll].reset_peak();
}

void reset_accumulated(int device) {
  auto &d = g_devices[device];
  std::lock_guard<std::mutex> held(d.lock);
  auto &s = d.stats;
  for (auto *figure : {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes})
    (*figure)[kAll].reset_accumulated();
  s.num_alloc_retries = s.num_ooms = 0;
}

c10::CachingDeviceAllocator::DeviceStats stats_of(int device) {
  std::lock_guard<std::mutex> held(g_devices[device].lock);
  return g_devices[device].stats;
}

Bridge &bridge() noexcept { return g_bridge; }

void take_bytes_again() {
  for (int i = 0; i < device_count(); i++) {
    tell_clock(i);
    g_devices[i].take_again(i);
  }
}

void devices_survive_fork() { pthread_atfork(&lock_devices, &unlock_devices, &unlock_devices); }

}  // namespace managed::sim
