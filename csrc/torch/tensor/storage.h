// storage.h: the handle of a storage whose bytes may leave its device.
//
// A handle is the context of its StorageImpl's DataPtr, so it is found at no cost and dies with the storage. The
// storage and every tensor over it stay the same when the bytes leave; an access that is no operator throws then.
// adopt.h gives storages their handles; core/evict.c and room.cpp decide which bytes leave, and when.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>

#include "core/handle.h"
#include "torch/devices/bridge.h"
#include "torch/devices/stream_marks.h"

namespace managed {

// Flags that every operator reads, so they lie beside the other members that it reads.
struct Marks {
  std::atomic<bool> waits_for_use{false}; // it is pinned until an operator uses it
  std::atomic<bool> was_lent{false};      // for good: it may be written without an operator
  std::atomic<bool> is_saved{false};      // the holders of its Python object only save it (saving.cpp)
  std::atomic<uint64_t> points{0}; // points_begun (stream_marks.h) after the last operator on it was issued
};

// The context of a managed storage's DataPtr is a StorageHandle (as Head*), its deleter drop_handle. `block` (of Head)
// is the allocator's DataPtr, empty while the bytes are away; `guest` is the block on a peer; `memory` (of mgd_handle)
// is the copy on the host. Only the thread that moves the bytes changes `guest`, `coming` and `last`, with one
// exception: a user of the bytes may begin a copy that reads them, and store it in `last` (mutex).
struct StorageHandle final : Head, Marks, mgd_handle {
  std::mutex mutex;                                // a leaf; guards `storage` and its pointer while bytes come and go
  std::atomic<c10::StorageImpl*> storage{nullptr}; // null before the handle is complete and after the storage died
  c10::DataPtr guest;                              // the bytes, while a peer holds them
  c10::DataPtr coming;                             // the block at home for bytes that are arriving
  CopyPtr last; // the copy that brings `guest` or `coming`, or reads `block`, if it may not have ended
  std::atomic<uint64_t> object{0};                 // id of the tensor to whose history its events belong
  uint64_t made = 0;                               // number of the handle; later handles have larger ones

  StorageHandle() : mgd_handle{} {}
  ~StorageHandle(); // frees the blocks of a storage that died while its bytes were moved
  std::size_t size() const { return static_cast<std::size_t>(bytes); }
};

// Notes that all work issued on the bytes so far lies before the device's next point.
inline void note_points(StorageHandle& h, int home) {
  h.points.store(points_begun[static_cast<std::size_t>(home)].load(std::memory_order_acquire),
                 std::memory_order_relaxed);
}

void drop_handle(void* context); // the deleter of a DataPtr whose context is a StorageHandle

// Passes the program's advice (enum mgd_advice) for the bytes of t to the core. Storages without a handle never leave,
// so they are skipped.
void advise_storages(const at::Tensor& t, uint32_t advice);

// How many storages have died, so that no handle lists them, but whose bytes are not free yet.
extern std::atomic<int> unfinished_deaths;

extern std::atomic<bool> handles_enabled; // whether storages may get handles: a backend's devices are known
extern std::atomic<int64_t> least_bytes_with_handle; // bytes; smaller storages stay where they are

// The counter that numbers uses. A Hold takes MGD_TICKS at a time, so that threads seldom contend for it.
extern uint64_t ticks;
inline uint64_t next_tick() { return mgd_ticks_take(&ticks); }

// This thread's uses, for the core; null before the first one.
extern constinit thread_local mgd_user* user_of_thread __attribute__((tls_model("initial-exec")));
mgd_user* join_slow();
inline mgd_user* this_user() { return C10_LIKELY(user_of_thread != nullptr) ? user_of_thread : join_slow(); }

inline StorageHandle* handle_of(c10::StorageImpl* s) {
  const c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  return C10_LIKELY(p.get_deleter() != &drop_handle) ? nullptr : static_cast<StorageHandle*>(p.get_context());
}

// Calls f with each storage that holds a tensor's bytes. It does not ask has_storage(), a virtual call: if that is
// false, the tensor's own storage is null here too.
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

// Whether the storage is too small for a handle. One with a symbolic size is fake, and counts as too small.
bool is_too_small(const c10::StorageImpl* s);

// The number of the newest handle of t's storages (StorageHandle::made); 0 if they have none.
uint64_t newest_handle_of(const at::Tensor& t);

// Frees a block of a device after the kernels that may use it, and the copy unless null, have ended. Never throws.
// `bytes`: its size; 0: unknown.
void free_block(c10::DataPtr& block, const CopyPtr& copy = nullptr, std::size_t bytes = 0) noexcept;
// Does the same for a block that no kernel uses, or none after the copy has ended: its memory can be reused at once,
// even if several streams are in use.
void free_idle_block(c10::DataPtr& block, const CopyPtr& copy = nullptr, std::size_t bytes = 0) noexcept;

// take_block() takes the block out of the handle into *taken, after the bytes have been copied elsewhere, and makes
// every access that is no operator throw. restore_pointer() puts a new block in and makes the storage readable again.
// Both return false if the storage has died.
bool take_block(StorageHandle& h, c10::DataPtr* taken);
bool restore_pointer(StorageHandle& h, c10::DataPtr block);

// tell_owner() tells a backend that profiles its devices which owner's bytes a block holds. tell_owner_of_copy() does
// so for a copy: it is kept as a replica, or else has become the program's.
void tell_owner(const c10::DataPtr& block, mgd_hold_owner owner);
void tell_owner_of_copy(c10::StorageImpl* s, bool kept);

// The core's veto before it evicts a storage (mgd_evict_veto): whether the bytes may leave their block. Called with the
// core's mutex held.
bool may_leave(const mgd_handle* handle);

// Gives a storage that has a handle another block (Bridge::replace). Throws c10::Error if its bytes are elsewhere.
void replace_block(c10::StorageImpl* storage, c10::DataPtr block, std::size_t bytes);

} // namespace managed
