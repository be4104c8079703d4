// executor.cpp: see executor.h.
//
// The actions, and the state of the storage while one is carried out, when it is done, and when it has failed or was
// given up because an earlier action of an operator's plan failed:
//
//   action     what is done                                              begun      done      failed
//   FORGET     the copy on the host is freed                             -          -         cannot fail
//   MAKE_ROOM  the caller's function evicts other storages               -          -         -
//   SPILL      the bytes are copied to the peer, or to the host if the   SPILLING   SPILLED   RESIDENT, or SPILLED
//              peer has no room; their block is freed                                         if they were a guest
//   DROP       the block is freed: the host's copy is good               SPILLING   SPILLED   RESIDENT: the copy lies
//                                                                                            in a file that was written
//   SPARE      the bytes are copied to the host and stay                 SPILLING   RESIDENT  RESIDENT
//   RESTORE    the bytes are copied into a new block at home, for which
//     Operator   other storages may be evicted                           RESTORING  RESIDENT  SPILLED
//     Ahead      no storage is evicted                                   RESTORING  ARRIVING  SPILLED
//   JOIN       the device's work is ordered after the copy               RESTORING  RESIDENT  ARRIVING
//
// SPILL and SPARE of an arriving storage join its copy first.
#include "torch/residency/executor.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "torch/devices/devices.h"
#include "torch/tensor/host_memory.h"
#include "torch/tensor/record.h"
#include "torch/residency/staging.h"
#include "torch/residency/transfer.h"
#include "torch/devices/waiting.h"

namespace managed {

std::atomic<bool> overwrite_freed{false};

namespace {

StorageHandle* handle_from(const mgd_action& a) { return static_cast<StorageHandle*>(a.handle); }
HostMemory* memory_from(const mgd_action& a) { return static_cast<HostMemory*>(a.memory); }

// ---- blocks

thread_local int64_t requested = 0;
thread_local const mgd_handle* returned = nullptr;
thread_local bool no_room_making = false;

// While it lives, block requests of this thread evict nothing.
class AsGuest {
 public:
  AsGuest() { no_room_making = true; }
  ~AsGuest() { no_room_making = false; }
};

c10::DataPtr allocate_on(int device, std::size_t bytes, Urgency urgency, bool if_room = false) {
  struct Request {
    explicit Request(std::size_t n) { requested = static_cast<int64_t>(n); }
    ~Request() { requested = 0; }
  } const request(bytes);
  const c10::Device d = device_of(device);
  return backend_of(d.type())->allocate_for_copy(d.index(), bytes, -1, urgency, if_room);
}

// Returns what `allocate` returns, or nothing if there is no memory. Driver errors of any other kind are thrown.
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

// Allocates a block without evicting for it; returns an empty one if there is no room.
c10::DataPtr try_allocate_on(int device, std::size_t bytes, Urgency urgency) {
  const AsGuest guest;
  return or_nothing([=] { return allocate_on(device, bytes, urgency, true); });
}

// ---- copies

// Copies between the places of a storage whose home is that device, or from one of them to a target elsewhere.
CopyPtr begin_copy(int home, int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after, const PointPtr& point = nullptr) {
  const bool on_host = to == MGD_HOST && from == MGD_HOST;
  const c10::Device d = device_of(on_host ? home : from == MGD_HOST ? to : from);
  const Bridge* backend = backend_of(d.type());
  if (on_host && backend->values) { // no device is involved
    for (const CopyPtr& copy : after) wait_for(copy);
    std::memcpy(target, source, bytes);
    return nullptr;
  }
  auto index = [](int id) { return id == MGD_HOST ? -1 : static_cast<int>(device_of(id).index()); };
  return backend->begin_copy(index(to), target, index(from), source, bytes, urgency, after, point);
}

// A point after all operators on the storage, or null: then its copy comes after all that has been issued. Always null
// for a lent storage, which may be written without an operator.
PointPtr point_behind(const StorageHandle& h) { return h.was_lent ? nullptr : point_after(h.home, h.points); }

// Records one move of a storage in the history of the tensor that the program named last, with the time that this
// thread spent on it.
class Timed {
 public:
  Timed(const mgd_action& a, Purpose purpose) {
    constexpr int kEvents[] = {MGD_EV_SPILL, MGD_EV_DROP, -1, -1, MGD_EV_RESTORE, MGD_EV_SPARE, -1}; // of action kinds
    constexpr int16_t kReasons[] = {MGD_WHY_PRESSURE, MGD_WHY_NEEDED, MGD_WHY_PLANNED};
    e_.kind = static_cast<int16_t>(kEvents[a.kind]);
    if (e_.kind < 0) return;
    e_.time = now();
    e_.object = handle_from(a)->object;
    e_.reason = kReasons[static_cast<int>(purpose)];
    e_.from = static_cast<int16_t>(a.from);
    e_.to = static_cast<int16_t>(a.to);
    e_.bytes = a.bytes;
  }
  void done() {
    if (e_.kind < 0) return;
    e_.duration = now() - e_.time;
    record(e_);
  }

 private:
  mgd_event e_{};
};

// ---- away

void end_spill(StorageHandle* h, int to, HostMemory* memory) {
  void* left = nullptr;
  mgd_evict_end(machine(), h, to, memory, &left);
  free_host(left);
  if (mgd_handle_put(h, 1)) delete h;
  count_change();
}

// Takes the block that holds the bytes out of the handle; accesses to it without an operator throw from now on.
c10::DataPtr take_bytes(StorageHandle& h, int from) {
  if (from != h.home) return std::exchange(h.guest, {});
  if (h.coming.get_context()) return std::exchange(h.coming, {});
  c10::DataPtr block;
  take_block(h, &block);
  return block;
}

// Ends an eviction: the bytes are at `to`, or will be when `copy` has ended. Frees the old block, then marks the
// storage as spilled; an operator that needs the bytes waits until then. `copied`: the copy comes after all kernels
// that use the block.
void leave(StorageHandle* h, int from, int to, HostMemory* memory, const CopyPtr& copy, bool copied) {
  c10::DataPtr old = take_bytes(*h, from);
  if (C10_UNLIKELY(overwrite_freed.load(std::memory_order_relaxed)) && old.device().type() == c10::kPrivateUse1 &&
      backend_of(c10::kPrivateUse1)->values)
    std::memset(old.mutable_get(), 0xCB, h->size());
  const CopyPtr before = std::exchange(h->last, to == MGD_HOST ? nullptr : copy);
  (copied ? free_idle_block : free_block)(old, copy ? copy : before, h->size());
  end_spill(h, to, memory);
}

// False when the peer has no room after all.
bool spill_to_peer(StorageHandle* h, const mgd_action& a, Urgency urgency) {
  c10::DataPtr guest = try_allocate_on(a.to, h->size(), urgency);
  if (!guest.get()) return false;
  tell_owner(guest, MGD_HOLD_GUEST);
  CopyPtr copy = begin_copy(h->home, a.to, guest.mutable_get(), a.from, h->block.get(), h->size(), urgency, h->last,
                            point_behind(*h));
  h->guest = std::move(guest);
  leave(h, a.from, a.to, nullptr, copy, true);
  return true;
}

// Begins to copy the bytes to the host, into `memory` or, if that is null, into new memory. Returns the memory; null:
// the host has none.
HostMemory* begin_copy_to_host(StorageHandle* h, int from, HostMemory* memory, Urgency urgency, CopyPtr* copy) {
  HostMemory* made = memory ? nullptr : try_allocate_host(*h);
  if (!memory && !made) return nullptr;
  HostMemory* target = memory ? memory : made;
  try {
    const void* source = from == h->home ? h->block.get() : h->guest.get();
    const CopyPtr after[] = {last_copy(target), h->last}; // h->last may still read the block, which is freed next
    const PointPtr point = from == h->home ? point_behind(*h) : nullptr;
    *copy = begin_copy(h->home, MGD_HOST, data_of(target), from, source, h->size(), urgency, after, point);
  } catch (...) {
    free_host(made);
    throw;
  }
  last_copy(target) = *copy;
  return target;
}

bool spill_to_host(StorageHandle* h, const mgd_action& a, Urgency urgency) {
  CopyPtr copy;
  HostMemory* memory = begin_copy_to_host(h, a.from, memory_from(a), urgency, &copy);
  if (!memory) return false;
  leave(h, a.from, MGD_HOST, memory, copy, true);
  return true;
}

// False when the host has no memory.
bool make_spare(StorageHandle* h, const mgd_action& a, Urgency urgency) {
  CopyPtr copy;
  HostMemory* memory = begin_copy_to_host(h, a.from, memory_from(a), urgency, &copy);
  if (!memory) return false;
  h->last = copy;
  end_spill(h, h->home, memory);
  return true;
}

// ---- home

// A plan that is carried out ahead of need uses the storage meanwhile.
void end_restore(StorageHandle* h, enum mgd_residency state, Purpose purpose) {
  void* left = nullptr;
  mgd_restore_end(machine(), h, state, &left);
  free_host(left);
  count_change();
  if (purpose == Purpose::Ahead && mgd_handle_put(h, 1)) delete h;
}

// What this thread issues on the device from now on is ordered after the copy that brings the bytes.
void join(StorageHandle& h) {
  if (h.last) h.last->order(h.coming);
  restore_pointer(h, std::exchange(h.coming, {}));
  h.last = nullptr;
  note_points(h, h.home); // the streams wait for the copy from now on
}

// Begins to copy bytes of a file to a CUDA device, through page-locked buffers as far as there are any; *copy is the
// newest copy that has begun, also if it throws.
void begin_copy_from_file(int home, void* target, const void* source, std::size_t bytes, Urgency urgency,
                          CopyPtr* copy) {
  for (std::size_t at = 0, n = 0; at < bytes; at += n) {
    n = std::min(bytes - at, kLargestStaged);
    const char* piece = static_cast<const char*>(source) + at;
    Staged staged(piece, n);
    *copy = begin_copy(home, home, static_cast<char*>(target) + at, MGD_HOST, staged.get() ? staged.get() : piece, n,
                       urgency, *copy);
    if (staged.get()) staged.read_by(*copy);
  }
}

// Begins to copy the bytes into `block`; *copy as above.
void begin_return(StorageHandle* h, const mgd_action& a, c10::DataPtr& block, Urgency urgency, CopyPtr* copy) {
  HostMemory* memory = a.from == MGD_HOST ? memory_from(a) : nullptr;
  const void* source = memory ? data_of(memory) : h->guest.get();
  if (memory && is_in_file(memory) && block.device().is_cuda()) {
    begin_copy_from_file(h->home, block.mutable_get(), source, h->size(), urgency, copy);
  } else {
    const CopyPtr after = memory ? last_copy(memory) : h->last;
    *copy = begin_copy(h->home, a.to, block.mutable_get(), a.from, source, h->size(), urgency, after);
  }
  if (memory) last_copy(memory) = *copy;
}

// The bytes come home by `copy`; frees the block on the peer, if there is one. A lent storage may be written at any
// time, so no copy of it counts as current.
void come_home(StorageHandle* h, const CopyPtr& copy) {
  if (h->was_lent.load(std::memory_order_relaxed)) mgd_handle_write(h);
  c10::DataPtr guest = std::exchange(h->guest, {});
  free_idle_block(guest, copy, h->size());
}

// While it lives, this thread requests the block for a storage that comes home.
class Returning {
 public:
  explicit Returning(const mgd_handle* h) : before_(std::exchange(returned, h)) {}
  ~Returning() { returned = before_; }
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;

 private:
  const mgd_handle* const before_;
};

c10::DataPtr allocate_at_home(const StorageHandle* h, int home, bool ahead) {
  const Returning now(h);
  return ahead ? try_allocate_on(home, h->size(), Urgency::Soon) : allocate_on(home, h->size(), Urgency::Now);
}

// False when the device has no room for bytes that are fetched ahead of need.
bool carry_home(StorageHandle* h, const mgd_action& a, Purpose purpose) {
  const bool ahead = purpose == Purpose::Ahead;
  c10::DataPtr block = allocate_at_home(h, a.to, ahead);
  if (ahead && !block.get()) return false;
  CopyPtr copy;
  try {
    if (ahead) tell_owner(block, MGD_HOLD_MANAGED); // else restore_pointer() does
    begin_return(h, a, block, ahead ? Urgency::Soon : Urgency::Now, &copy);
    if (copy && !ahead) copy->order(block);
  } catch (...) {
    free_idle_block(block, copy, h->size());
    throw;
  }
  come_home(h, copy);
  h->last = ahead ? std::move(copy) : nullptr;
  if (ahead) h->coming = std::move(block);
  else restore_pointer(*h, std::move(block));
  end_restore(h, ahead ? MGD_ARRIVING : MGD_RESIDENT, purpose);
  return true;
}

// ---- the interpreter

// True: the action is done and has ended. If it is false or throws, the action has not ended.
bool carry_out_one(const mgd_action& a, Purpose purpose, RoomMaker make_room) {
  StorageHandle* h = handle_from(a);
  const Urgency urgency = purpose == Purpose::Ahead ? Urgency::Soon : Urgency::Now;
  switch (a.kind) {
    case MGD_DO_FORGET:
      free_host(a.memory);
      return true;
    case MGD_DO_MAKE_ROOM:
      make_room(a);
      return true;
    case MGD_DO_SPILL: // the host's copy of arriving bytes does not count: they are about to be written
      if (h->coming.get_context()) join(*h);
      return (a.to != MGD_HOST && spill_to_peer(h, a, urgency)) || spill_to_host(h, a, urgency);
    case MGD_DO_DROP: // kernels may still read the bytes
      if (!is_good(memory_from(a))) {
        if (h->coming.get_context()) join(*h);
        return false;
      }
      leave(h, a.from, MGD_HOST, memory_from(a), nullptr, false);
      return true;
    case MGD_DO_SPARE:
      if (h->coming.get_context()) join(*h);
      return make_spare(h, a, urgency);
    case MGD_DO_RESTORE:
      return carry_home(h, a, purpose);
    case MGD_DO_JOIN:
      join(*h);
      end_restore(h, MGD_RESIDENT, purpose);
      return true;
  }
  return false;
}

// Ends an action that was not carried out: the bytes are where they were.
void give_up(const mgd_action& a, Purpose purpose) {
  StorageHandle* h = handle_from(a);
  if (a.kind == MGD_DO_RESTORE) end_restore(h, MGD_SPILLED, purpose);
  else if (a.kind == MGD_DO_JOIN) end_restore(h, MGD_ARRIVING, purpose);
  else if (a.kind != MGD_DO_FORGET && a.kind != MGD_DO_MAKE_ROOM) end_spill(h, -1, nullptr);
}

// The actions of a plan that have not ended; the destructor gives them up.
struct Begun {
  c10::ArrayRef<mgd_action> rest;
  const Purpose purpose;
  ~Begun() {
    for (const mgd_action& a : rest) give_up(a, purpose);
  }
};

} // namespace

int64_t requested_by_this_thread() { return requested; }
const mgd_handle* returned_by_this_thread() { return returned; }
bool makes_no_room() { return no_room_making; }

Outcome carry_out(c10::ArrayRef<mgd_action> plan, Purpose purpose, RoomMaker make_room) {
  Outcome outcome;
  for (Begun begun{plan, purpose}; !begun.rest.empty();) {
    const mgd_action& a = begun.rest.front();
    Timed event(a, purpose);
    bool done = false, refused = false;
    try {
      done = carry_out_one(a, purpose, make_room);
      refused = !done;
    } catch (const std::exception&) {
      if (purpose == Purpose::Operator) throw;
      outcome.failure = std::current_exception();
    }
    begun.rest = begun.rest.slice(1);
    if (!done) {
      outcome.forgotten += a.kind == MGD_DO_DROP; // the next plan copies the bytes
      outcome.host_refused |= refused && (a.kind == MGD_DO_SPILL || a.kind == MGD_DO_SPARE);
      give_up(a, purpose);
      continue;
    }
    event.done();
    outcome.left += a.kind == MGD_DO_SPILL || a.kind == MGD_DO_DROP;
    outcome.forgotten += a.kind == MGD_DO_FORGET;
  }
  return outcome;
}

// ---- from where they are

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

// Begins the restore of one storage, without regard to room. False: another thread moves it. *n: 0 if it is at home.
bool begin_one(StorageHandle& h, std::array<mgd_action, 1 + MGD_MAX_DEVICES>& plan, std::size_t* n) {
  int64_t room[MGD_MAX_DEVICES];
  std::fill(std::begin(room), std::end(room), INT64_MAX);
  *n = plan.size();
  mgd_handle* handle = &h;
  int device = h.home;
  return mgd_restore_begin(machine(), &handle, 1, room, plan.data(), n, &device) == MGD_OK;
}

} // namespace

// Begins a restore and gives it up: in between, no other thread moves or frees the bytes.
bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target,
                           const c10::DataPtr* block, int* from) {
  const Use use(h);
  const Transfer moving;
  std::array<mgd_action, 1 + MGD_MAX_DEVICES> plan;
  std::size_t n = 0;
  if (!begin_one(h, plan, &n)) return false;
  if (n && plan[0].kind == MGD_DO_JOIN) {
    carry_out(plan[0], Purpose::Operator);
    n = 0;
  }
  const Begun begun{{plan.data(), n}, Purpose::Operator};
  const int where = n ? plan[0].from : h.home;
  HostMemory* memory = where == MGD_HOST ? memory_from(plan[0]) : nullptr;
  if (from) *from = where;
  const void* source = memory ? data_of(memory) : n ? h.guest.get() : h.block.get();
  const CopyPtr after = memory ? last_copy(memory) : n ? h.last : nullptr;
  CopyPtr copy =
      begin_copy(h.home, to, target, where, static_cast<const char*>(source) + offset, bytes, Urgency::Now, after);
  if (block && copy && n) {
    copy->order(*block);
    (memory ? last_copy(memory) : h.last) = copy;
  } else {
    wait_for(copy);
  }
  return true;
}

} // namespace managed
