// storage.h: the handle of a storage whose bytes may leave its device.
//
// Owns how a handle sits in a StorageImpl: in the context of its DataPtr, found
// at no cost and dead with it. The storage and every tensor over it stay what
// they are when the bytes leave; whoever then reads them finds an exception.
// How a storage gets its handle is in adopt.h. Which bytes leave, and when, is decided elsewhere (core/evict.c,
// room.cpp).
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>

#include "core/handle.h"
#include "torch/devices/bridge.h"
#include "torch/devices/stream_marks.h"

namespace managed {

// Read by every operator, so they lie beside what else it reads of a handle.
struct Marks {
  std::atomic<bool> waits_for_use{false}; // pinned until an operator uses it
  std::atomic<bool> was_lent{false};      // to what may write it past every operator, as long as it lives
  std::atomic<bool> is_saved{false};      // whoever holds the storage's Python object only saves it (saving.cpp)
  std::atomic<uint64_t> points{0}; // points_begun (stream_marks.h) when the last operator on it had been issued
};

// The context of a managed storage's DataPtr is a StorageHandle (as Head*), its deleter drop_handle. `block` (of Head)
// is the allocator's DataPtr, empty while the bytes are away; `guest` is the block on a peer; `memory` (of mgd_handle)
// is the copy on the host. Only who moves the bytes changes `guest`, `coming` and `last`; and who uses them may begin a
// copy that reads them, which is `last` then (mutex).
struct StorageHandle final : Head, Marks, mgd_handle {
  std::mutex mutex;                                // a leaf: `storage`, and what it points to, while bytes come and go
  std::atomic<c10::StorageImpl*> storage{nullptr}; // null until all of this is in place, and once it has died
  c10::DataPtr guest;                              // the bytes, while a peer holds them
  c10::DataPtr coming;                             // the block at home of bytes that are arriving
  CopyPtr last; // the copy that brings `guest` or `coming`, or reads `block`, if it may not have ended
  std::atomic<uint64_t> object{0};                 // whose history its events belong to
  uint64_t made = 0;                               // larger: it got its handle later

  StorageHandle() : mgd_handle{} {}
  ~StorageHandle(); // what is left of a storage that died while its bytes were moved
  std::size_t size() const { return static_cast<std::size_t>(bytes); }
};

// Whatever has been issued on the bytes so far lies before the device's next point.
inline void note_points(StorageHandle& h, int home) {
  h.points.store(points_begun[static_cast<std::size_t>(home)].load(std::memory_order_acquire),
                 std::memory_order_relaxed);
}

void drop_handle(void* context); // the deleter of a DataPtr whose context is a StorageHandle

// Tells the core what the program says of the bytes of t (enum mgd_advice). Storages without a handle never leave.
void advise_storages(const at::Tensor& t, uint32_t advice);

// How many storages have died whose bytes are not free yet: no handle tells of them any more.
extern std::atomic<int> unfinished_deaths;

extern std::atomic<bool> handles_enabled; // storages may get handles: there is a backend whose devices are known
extern std::atomic<int64_t> least_bytes_with_handle; // bytes; smaller storages stay where they are

// Numbers uses. An operator takes some together (`Hold`), so that threads seldom fight for the counter.
extern uint64_t ticks;
inline uint64_t next_tick() { return mgd_ticks_take(&ticks); }

// This thread's uses, for the core; null before its first.
extern constinit thread_local mgd_user* user_of_thread __attribute__((tls_model("initial-exec")));
mgd_user* join_slow();
inline mgd_user* this_user() { return C10_LIKELY(user_of_thread != nullptr) ? user_of_thread : join_slow(); }

inline StorageHandle* handle_of(c10::StorageImpl* s) {
  const c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  return C10_LIKELY(p.get_deleter() != &drop_handle) ? nullptr : static_cast<StorageHandle*>(p.get_context());
}

// Calls f with each storage that a tensor's bytes lie in. Whatever says false to has_storage(), a virtual call, has
// none here either.
void each_part(const at::Tensor& t, void (*f)(void*, c10::StorageImpl*), void* context);
template <class F>
inline void each_storage(const at::Tensor& t, F&& f) {
  if (c10::StorageImpl* s = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      C10_LIKELY(s != nullptr)) {
    f(s);
  } else if (t.defined()) {
    each_part(t, [](void* g, c10::StorageImpl* part) { (*static_cast<std::remove_reference_t<F>*>(g))(part); }, &f);
  }
}

// A storage whose size is a symbol is a fake one.
bool is_too_small(const c10::StorageImpl* s);

// When the bytes of t got their handle, as a number that grows; 0 for what has none.
uint64_t newest_handle_of(const at::Tensor& t);

// Frees a block of a device when the kernels that may use it have ended, and the copy, if there is one; never throws.
// `bytes`: its size, if that is known.
void free_block(c10::DataPtr& block, const CopyPtr& copy = nullptr, std::size_t bytes = 0) noexcept;
// The same for a block that no kernel uses any more, or none after the copy has ended: whoever needs room can have it
// at once, also where several streams are in use.
void free_idle_block(c10::DataPtr& block, const CopyPtr& copy = nullptr, std::size_t bytes = 0) noexcept;

// take_block(): the bytes have been copied elsewhere. Takes the block out of the handle into *taken, and makes every
// access that is no operator throw. restore_pointer(): puts a new block in and makes the storage readable again. False:
// the storage has died.
bool take_block(StorageHandle& h, c10::DataPtr* taken);
bool restore_pointer(StorageHandle& h, c10::DataPtr block);

// Tells a backend that profiles its devices whose bytes a block holds; or those of a copy, which is kept, or has become
// the program's.
void tell_owner(const c10::DataPtr& block, mgd_hold_owner owner);
void tell_owner_of_copy(c10::StorageImpl* s, bool kept);

// The core's question before it lets a block go.
bool may_leave(const mgd_handle* handle);

// For the bridge: another block for a storage that has a handle.
void replace_block(c10::StorageImpl* storage, c10::DataPtr block, std::size_t bytes);

} // namespace managed
