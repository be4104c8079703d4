// room.cpp: see room.h.
#include "room.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <exception>
#include <vector>

#include "../core/testing.h"
#include "api.h"
#include "devices.h"
#include "garbage.h"
#include "guard.h"
#include "hold.h"
#include "host_memory.h"
#include "transfer.h"
#include "record.h"
#include "replica.h"
#include "turns.h"
#include "waiting.h"

namespace managed {

std::atomic<bool> overwrite_freed{false};

namespace {

constexpr std::size_t kPlan = 32; // actions of one plan; more room takes another plan
constexpr int kTries = 2;         // plans none of whose actions succeeded, before it gives up

StorageHandle* handle_from(const mgd_action& a) { return static_cast<StorageHandle*>(a.handle); }

// True while this thread requests a block for another device's storage: for such a guest no storage leaves.
thread_local bool no_room_making = false;

class AsGuest {
 public:
  AsGuest() { no_room_making = true; }
  ~AsGuest() { no_room_making = false; }
};

thread_local int64_t requested = 0;

c10::DataPtr allocate_on(int device, std::size_t bytes) {
  struct Request {
    explicit Request(std::size_t n) { requested = static_cast<int64_t>(n); }
    ~Request() { requested = 0; }
  } const request(bytes);
  const c10::DeviceGuard guard(device_of(device));
  return c10::GetAllocator(device_of(device).type())->allocate(bytes);
}

// What `allocate` returns, or nothing where there is no memory. A driver that refuses for another reason says so by an
// error that is no lack of memory.
template <class Allocate>
auto or_nothing(const Allocate& allocate) -> decltype(allocate()) {
  constexpr int32_t kNoMemory = 2; // cudaErrorMemoryAllocation
  try {
    return allocate();
  } catch (const c10::AcceleratorError& e) {
    if (e.get_error_code() != kNoMemory) throw;
  } catch (const std::exception&) {
  }
  return {};
}

HostMemory* try_allocate_host(const StorageHandle& h) {
  return or_nothing([&] { return allocate_host(h.size(), device_of(h.home).type()); });
}

// A block on a peer, or nothing when another thread has taken the room meanwhile.
c10::DataPtr allocate_guest(int device, std::size_t bytes) {
  const AsGuest guest;
  return or_nothing([=] { return allocate_on(device, bytes); });
}

// Between places of a storage whose home is that device, or from one of them to others.
void copy_bytes(int home, int to, void* target, int from, const void* source, std::size_t bytes) {
  const bool on_host = to == MGD_HOST && from == MGD_HOST;
  if (on_host && backend_of(device_of(home).type())->values)
    return static_cast<void>(std::memcpy(target, source, bytes)); // no device has a part in it
  const c10::Device d = device_of(on_host ? home : from == MGD_HOST ? to : from);
  auto index = [](int id) { return id == MGD_HOST ? -1 : static_cast<int>(device_of(id).index()); };
  backend_of(d.type())->copy(index(to), target, index(from), source, bytes);
}

// Records one move of a storage, and how long it took, in the history of the tensor that the program named last.
class Timed {
 public:
  Timed(enum mgd_event_kind kind, enum mgd_reason why, const mgd_action& a) {
    e_.time = now();
    e_.object = handle_from(a)->object;
    e_.kind = static_cast<int16_t>(kind);
    e_.reason = static_cast<int16_t>(why);
    e_.from = static_cast<int16_t>(a.from);
    e_.to = static_cast<int16_t>(a.to);
    e_.bytes = a.bytes;
  }
  void done() {
    e_.duration = now() - e_.time;
    record(e_);
  }

 private:
  mgd_event e_{};
};

void end_spill(StorageHandle* h, int to, HostMemory* memory) {
  void* left = nullptr;
  mgd_evict_end(machine(), h, to, memory, &left);
  free_host(left);
  if (mgd_handle_put(h, 1)) delete h;
  count_change();
}

// The bytes are at `to`. Frees the block that they leave with `free`, and then files the storage as spilled: an
// operator that wants the bytes waits until that is done.
void leave_home(StorageHandle* h, int from, int to, HostMemory* memory, void (*free)(c10::DataPtr&) noexcept) {
  c10::DataPtr old;
  if (from == h->home) take_block(*h, &old);
  else old = std::exchange(h->guest, {});
  if (C10_UNLIKELY(overwrite_freed.load(std::memory_order_relaxed)) && old.device().type() == c10::kPrivateUse1 &&
      backend_of(c10::kPrivateUse1)->values)
    std::memset(old.mutable_get(), 0xCB, h->size());
  free(old);
  end_spill(h, to, memory);
}

// Copies to a peer; false when it has no room after all.
bool spill_to_peer(StorageHandle* h, const mgd_action& a) {
  c10::DataPtr guest = allocate_guest(a.to, h->size());
  if (!guest.get()) return false;
  tell_owner(guest, MGD_HOLD_GUEST);
  copy_bytes(h->home, a.to, guest.mutable_get(), a.from, h->block.get(), h->size());
  h->guest = std::move(guest);
  leave_home(h, a.from, a.to, nullptr, &free_idle_block);
  return true;
}

// False when the host has no memory.
bool spill_to_host(StorageHandle* h, const mgd_action& a) {
  auto* memory = static_cast<HostMemory*>(a.memory);
  HostMemory* made = memory ? nullptr : try_allocate_host(*h);
  if (!memory && !made) return false;
  try {
    const void* source = a.from == h->home ? h->block.get() : h->guest.get();
    copy_bytes(h->home, MGD_HOST, data_of(memory ? memory : made), a.from, source, h->size());
  } catch (...) {
    free_host(made);
    throw;
  }
  leave_home(h, a.from, MGD_HOST, memory ? memory : made, &free_idle_block);
  return true;
}

// False when the bytes stay: the host had no memory, or a device failed. Its error is in *failure then.
bool spill(const mgd_action& a, std::exception_ptr* failure) {
  StorageHandle* h = handle_from(a);
  Timed event(MGD_EV_SPILL, MGD_WHY_PRESSURE, a);
  bool left = false;
  try {
    left = (a.to != MGD_HOST && spill_to_peer(h, a)) || spill_to_host(h, a);
  } catch (const std::exception&) {
    *failure = std::current_exception();
  }
  if (left) event.done();
  else end_spill(h, -1, nullptr);
  return left;
}

void drop(const mgd_action& a) {
  Timed event(MGD_EV_DROP, MGD_WHY_PRESSURE, a);
  leave_home(handle_from(a), a.from, MGD_HOST, static_cast<HostMemory*>(a.memory),
             &free_block); // nothing was copied, so kernels may still read it
  event.done();
}

// Returns how many storages left: fewer than were planned when a copy failed. *forgotten: how many copies on the host
// were freed to make room there.
int64_t carry_out(const mgd_action* actions, std::size_t n, std::exception_ptr* failure, int64_t* forgotten = nullptr) {
  int64_t left = 0;
  for (const mgd_action* a = actions; a != actions + n; a++) {
    if (a->kind == MGD_DO_SPILL) left += spill(*a, failure);
    if (a->kind == MGD_DO_DROP) drop(*a), left++;
    if (a->kind == MGD_DO_FORGET) {
      free_host(a->memory);
      if (forgotten) ++*forgotten;
    }
  }
  return left;
}

// Plans one departure or several and carries them out. Returns what mgd_evict_begin() said; *left and *forgotten as
// above.
int let_somebody_leave(int device, int64_t bytes, const int64_t* room, int64_t* left, int64_t* forgotten,
                       std::exception_ptr* failure) {
  const Transfer moving;
  std::array<mgd_action, kPlan> plan;
  std::size_t n = plan.size();
  const int code = mgd_evict_begin(machine(), device, bytes, room, Hold::uses_of_this_thread(device), plan.data(), &n);
  if (code == MGD_OK) *left = carry_out(plan.data(), n, failure, forgotten);
  return code;
}

} // namespace

int64_t requested_by_this_thread() { return requested; }

void restore(const mgd_action& a) {
  StorageHandle* h = handle_from(a);
  Timed event(MGD_EV_RESTORE, MGD_WHY_NEEDED, a);
  void* left = nullptr;
  c10::DataPtr block;
  try {
    block = allocate_on(a.to, h->size());
    const void* source = a.from == MGD_HOST ? data_of(static_cast<HostMemory*>(a.memory)) : h->guest.get();
    copy_bytes(h->home, a.to, block.mutable_get(), a.from, source, h->size());
  } catch (...) {
    mgd_restore_end(machine(), h, false, &left);
    free_host(left);
    count_change();
    throw;
  }
  if (h->was_lent.load(std::memory_order_relaxed))
    mgd_handle_write(h); // who has its pointer may write at any time, so no copy of it counts as current
  restore_pointer(*h, std::move(block));
  c10::DataPtr guest = std::exchange(h->guest, {});
  free_idle_block(guest);
  mgd_restore_end(machine(), h, true, &left);
  free_host(left);
  event.done();
  count_change();
}

namespace {

// A use of the bytes, wherever they are.
class Use {
 public:
  explicit Use(StorageHandle& h) : handle_(h), user_(this_user()) { mgd_handle_use(&h, user_, next_tick()); }
  ~Use() {
    if (mgd_handle_unuse(&handle_, user_, 1)) delete &handle_;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  StorageHandle& handle_;
  mgd_user* const user_;
};

// Keeps bytes that are away where they are, while they are read there: a restore has begun, and will end as failed.
// In between nobody else moves or frees them.
class StillAway {
 public:
  explicit StillAway(const mgd_action& action) : restore_(action) {}
  ~StillAway() {
    void* left = nullptr;
    mgd_restore_end(machine(), restore_.handle, false, &left);
    free_host(left);
    count_change();
  }
  StillAway(const StillAway&) = delete;
  StillAway& operator=(const StillAway&) = delete;

  const void* bytes() const {
    return restore_.from == MGD_HOST ? data_of(static_cast<HostMemory*>(restore_.memory))
                                     : handle_from(restore_)->guest.get();
  }

 private:
  const mgd_action& restore_;
};

} // namespace

bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target, int* from) {
  const Use use(h);
  const Transfer moving;
  int64_t room[MGD_MAX_DEVICES]; // no bytes come home, so room is not asked for
  std::fill(std::begin(room), std::end(room), INT64_MAX);
  std::array<mgd_action, 1 + MGD_MAX_DEVICES> plan;
  std::size_t n = plan.size();
  mgd_handle* handle = &h;
  int device = h.home;
  if (mgd_restore_begin(machine(), &handle, 1, room, plan.data(), &n, &device) != MGD_OK) return false;
  const auto copy = [&](int where, const void* source) {
    if (from) *from = where;
    copy_bytes(h.home, to, target, where, static_cast<const char*>(source) + offset, bytes);
  };
  if (n == 0) {
    copy(h.home, h.block.get());
  } else {
    const StillAway away(plan[0]);
    copy(plan[0].from, away.bytes());
  }
  return true;
}

namespace {

// Free bytes of each device that could take guests of this one, as the devices' allocators report them; it takes their
// locks. A simulated device and one that is not are no peers.
void read_room(int device, int64_t room[MGD_MAX_DEVICES]) {
  const int n = device_count();
  for (int id = 0; id < n; id++) room[id] = device_of(id).type() == device_of(device).type() ? free_bytes(id) : 0;
}

// One attempt to make room. True as soon as anything came free, so that the caller asks its allocator again: kept
// copies were dropped, a storage left, or another thread freed bytes. A locked allocator gets one search and no
// waiting. `waits`: only a caller that holds nothing waits here, until the deadline, and only while another thread may
// still free something. A plan that failed (no memory on the host, a device that failed) is tried again, kTries times
// in all.
bool find_room(int device, int64_t bytes, Caller caller, std::exception_ptr* failure) {
  const bool locked = caller == Caller::LockedAllocator;
  const uint64_t freed_before = change_count();
  const int64_t missing = std::max<int64_t>(1, bytes - free_bytes(device));
  if (drop_replicas(device, missing, locked)) return true;
  int64_t room[MGD_MAX_DEVICES] = {};
  if (!locked) read_room(device, room);
  const bool waits =
      caller == Caller::Free && requested == 0; // who brings operands home waits in hold.cpp, where it holds nothing
  const int64_t deadline = now() + kPatience;
  begin_turns();
  int failures = 0;
  for (;;) {
    const uint64_t before = change_count();
    int64_t left = 0, forgotten = 0;
    const int code = let_somebody_leave(device, missing, room, &left, &forgotten, failure);
    if (left) return true;
    if (code == MGD_OK) { // the host has no memory, or a device failed; copies that were freed are progress
      failures += forgotten == 0;
      if (failures < kTries) continue;
      return false;
    }
    if (locked) return false;
    const bool more_to_come = code == MGD_E_BUSY || unfinished_deaths.load() > 0;
    if (change_count() != freed_before) return true; // another thread has freed bytes: the caller looks again
    if (!waits || !more_to_come || !wait_for_change(before, deadline)) return false;
  }
}

} // namespace

bool make_room(int device, int64_t bytes, Caller caller) {
  if (no_room_making) return false;
  std::exception_ptr failure;
  if (find_room(device, bytes, caller, &failure) || (caller == Caller::Free && collect_garbage())) return true;
  if (failure && caller != Caller::LockedAllocator) std::rethrow_exception(failure);
  return false;
}

void set_budget(int device, int64_t bytes) {
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (!backend || !backend->limit) return;
  const auto limit = [&] { backend->limit(d.index(), static_cast<std::size_t>(bytes)); };
  limit();
  // What has left may lie in the allocator's cache, or wait there for streams, and is no room then. To set the limit
  // again gives it back, so that nobody leaves in vain.
  while (free_bytes(device) == 0 && make_room(device, 1)) limit();
}

int64_t spill_some(uint32_t odds, uint64_t* seed) {
  int64_t left = 0;
  std::exception_ptr ignored; // what cannot leave stays
  const Transfer moving;
  for (int id = 1; id < device_count(); id++) {
    mgd_residency_usage there{};
    mgd_residency_read(machine(), id, &there);
    std::vector<mgd_action> plan(2 * static_cast<std::size_t>(there.storages) + 2); // each may cost a spare of another
    std::size_t n = plan.size();
    if (mgd_evict_random(machine(), id, odds, seed, plan.data(), &n) != MGD_OK) continue;
    left += carry_out(plan.data(), n, &ignored);
  }
  return left;
}

} // namespace managed

int mgd_torch_set_budget(int device, int64_t bytes) {
  return managed::guarded([&] {
    const managed::NoGil no_gil;
    managed::set_budget(device, bytes);
    return 0;
  });
}
