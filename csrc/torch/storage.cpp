// storage.cpp: see storage.h.
#include "storage.h"

#include <Python.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include "compat.h"
#include "devices.h"
#include "exposure.h"
#include "forks.h"
#include "graphs.h"
#include "host_memory.h"
#include "state.h"
#include "threads.h"
#include "uses.h"

namespace managed {

std::atomic<bool> handles_enabled{false};
uint64_t ticks = 0;
constinit thread_local mgd_user* user_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<int> unfinished_deaths{0};
std::atomic<int64_t> least_bytes_with_handle{int64_t{1} << 14};

namespace {

// Private members are reached through pointers that an explicit instantiation may name.
template <class Tag, typename Tag::type member>
struct Reach {
  friend typename Tag::type reach(Tag) { return member; }
};
struct Pointer {
  using type = c10::detail::UniqueVoidPtr c10::DataPtr::*;
  friend type reach(Pointer);
};
template struct Reach<Pointer, &c10::DataPtr::ptr_>;
struct Data {
  using type = void* c10::detail::UniqueVoidPtr::*;
  friend type reach(Data);
};
template struct Reach<Data, &c10::detail::UniqueVoidPtr::data_>;
struct Context {
  using type = std::unique_ptr<void, c10::DeleterFnPtr> c10::detail::UniqueVoidPtr::*;
  friend type reach(Context);
};
template struct Reach<Context, &c10::detail::UniqueVoidPtr::ctx_>;
struct ThrowsOnRead {
  using type = bool c10::StorageImpl::*;
  friend type reach(ThrowsOnRead);
};
template struct Reach<ThrowsOnRead, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
struct ChecksOnWrite {
  using type = bool c10::StorageImpl::*;
  friend type reach(ChecksOnWrite);
};
template struct Reach<ChecksOnWrite, &c10::StorageImpl::has_mutable_data_ptr_check_>;
struct Bytes { // sym_nbytes() makes a copy, which costs more than the question
  using type = c10::SymInt c10::StorageImpl::*;
  friend type reach(Bytes);
};
template struct Reach<Bytes, &c10::StorageImpl::size_bytes_>;

void set_pointer(c10::DataPtr& p, void* data) { (p.*reach(Pointer{})).*reach(Data{}) = data; }

// Torch's own way, release_data_and_set_meta_custom_data_ptr_error_msg_, gives the storage's block away and touches
// metadata that a dying storage frees on another thread.
void set_unreadable(c10::StorageImpl* s, bool unreadable) {
  s->*reach(ThrowsOnRead{}) = unreadable;
  s->*reach(ChecksOnWrite{}) = unreadable || has_materializer(*s);
}

constexpr const char* kUnreadable =
    "managed: the bytes of this tensor were moved to make room, and this access does not go through an operator that "
    "would bring them "
    "back. Use the tensor in any operator first, or pin() it to keep its bytes where they are";

std::mutex& adopting() {
  static auto* mutex = [] {
    survive_fork<adopting>(); // after the machine's, which is taken under it
    return new std::mutex;    // two threads that mark one tensor
  }();
  return *mutex;
}

bool can_leave(c10::StorageImpl* s) {
  const c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  if (!p.get() || !s->resizable() || !s->allocator()) return false;
  if (p.device().is_cuda()) discover(); // the first tensor there attaches the backend
  if (const Bridge* h = backend_of(p.device().type())) return h->owns(p);
  return false;
}

// Puts the handle in the place of the DataPtr's context; the allocator's context and deleter move into h->block. The
// data pointer does not change, so a thread may read it meanwhile. The context is written before the deleter: a thread
// that finds drop_handle as the deleter finds the handle as the context.
void take_over(c10::StorageImpl* s, StorageHandle* h) {
  c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  auto& context = (p.*reach(Pointer{})).*reach(Context{});
  const c10::DeleterFnPtr deleter = context.get_deleter();
  h->block = c10::DataPtr(p.mutable_get(), context.release(), deleter, p.device());
  context = std::unique_ptr<void, c10::DeleterFnPtr>(h, &drop_handle);
}

} // namespace

bool is_too_small(const c10::StorageImpl* s) {
  const auto bytes = (s->*reach(Bytes{})).maybe_as_int();
  return !bytes || *bytes < least_bytes_with_handle.load(std::memory_order_relaxed);
}

namespace {

// The allocator records an event for each stream of a block, and throws when the driver refuses, as it does after a
// device-side assert. It is called by its name, because a unique_ptr ends the process where its deleter throws. The
// block is lost then, and the device with it: the next call that waits for the device says why.
void free_with(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes) noexcept {
  if (copy && block.get_context()) return backend_of(block.device().type())->free_after(block, copy, last, bytes);
  const c10::DeleterFnPtr give_back = block.get_deleter();
  void* context = block.release_context();
  block.clear();
  try {
    if (context) give_back(context);
  } catch (const std::exception&) {
  }
}

} // namespace

void free_idle_block(c10::DataPtr& block, const CopyPtr& copy, std::size_t bytes) noexcept {
  free_with(block, copy, true, bytes);
}

void free_block(c10::DataPtr& block, const CopyPtr& copy, std::size_t bytes) noexcept {
  const Bridge* h = block.get() ? backend_of(block.device().type()) : nullptr;
  if (h && h->retire) h->retire(block);
  free_with(block, copy, false, bytes);
}

// A thread that ends leaves its counts behind. Whatever it still does after that joins again, for good.
mgd_user* join_slow() {
  struct Leaving {
    ~Leaving() { mgd_user_leave(machine(), std::exchange(user_of_thread, nullptr)); }
  };
  if (mgd_user_join(machine(), &user_of_thread) != MGD_OK) throw std::bad_alloc();
  static thread_local const Leaving leaving;
  static_cast<void>(leaving);
  return user_of_thread;
}

void give_handle_slow(c10::StorageImpl* s, bool fresh, CopyPtr* coming) {
  if (!can_leave(s)) return;
  if (!fresh &&
      (c10::raw::intrusive_ptr::use_count(s) != 1 || is_exposed(s) || graphs_recorded.load(std::memory_order_relaxed)))
    return;
  if (private_pools.load(std::memory_order_relaxed)) return;
  auto h = std::make_unique<StorageHandle>();
  h->stamp = next_tick(); // what was just made is about to be used
  static uint64_t handles_made = 0; // guarded by the lock
  std::lock_guard<std::mutex> lock(adopting());
  if (handle_of(s)) return;
  h->made = ++handles_made;
  const int id = id_of(s->device());
  if (kernels_are_async.load(std::memory_order_relaxed)) record_stream_use(s->device());
  if (id <= 0 || mgd_handle_open(machine(), h.get(), id, static_cast<int64_t>(s->nbytes())) != MGD_OK) return;
  s->get_extra_meta().custom_data_ptr_error_msg_ = kUnreadable;
  StorageHandle* owned = h.release();
  note_points(*owned, id);
  tell_owner(s->_mutable_data_ptr_no_checks(), MGD_HOLD_MANAGED);
  take_over(s, owned);
  if (coming && mgd_handle_arrive(machine(), owned) == MGD_OK) { // it cannot leave yet: nobody finds its storage
    owned->last = std::exchange(*coming, nullptr);
    owned->coming = std::exchange(owned->block, {});
    set_pointer(s->_mutable_data_ptr_no_checks(), nullptr);
    set_unreadable(s, true);
  }
  owned->storage.store(s, std::memory_order_release);
  log_use(owned, owned->bytes, owned->stamp, UseKind::Made);
}

uint64_t newest_handle_of(const at::Tensor& t) {
  uint64_t made = 0;
  each_storage(t, [&made](c10::StorageImpl* s) {
    if (const StorageHandle* h = handle_of(s)) made = std::max(made, h->made);
  });
  return made;
}

// Other threads may read the pointer while it changes hands, so they must not be inside an operator.
StorageHandle* give_operand_handle_slow(const at::Tensor& t, c10::StorageImpl* s) {
  if (!has_key(t.unsafeGetTensorImpl()) || is_pinned(t)) return nullptr; // a plain operand may next be used without us
  const ExclusiveSection alone;
  if (alone) give_handle_slow(s, false);
  StorageHandle* h = handle_of(s);
  const TensorState* state = h ? state_of(t) : nullptr;
  if (state) h->object = state->object;
  if (state && state->advice) mgd_handle_advise(machine(), h, state->advice);
  return h;
}

void advise_storages(const at::Tensor& t, uint32_t advice) {
  each_storage(t, [&](c10::StorageImpl* s) {
    if (StorageHandle* h = handle_of(s)) mgd_handle_advise(machine(), h, advice);
  });
}

// A copy may still use them.
StorageHandle::~StorageHandle() {
  free_block(block, last, size());
  free_idle_block(coming, last, size());
  free_idle_block(guest, last, size());
}

void drop_handle(void* context) {
  auto* h = static_cast<StorageHandle*>(static_cast<Head*>(context));
  {
    std::lock_guard<std::mutex> lock(h->mutex);
    h->storage = nullptr;
  }
  log_use(h, h->bytes, next_tick(), UseKind::Dropped);
  bool moving = false;
  void* memory = nullptr;
  unfinished_deaths++;
  mgd_handle_close(machine(), h, &moving, &memory);
  if (!moving) { // an operator that still holds the handle needs the bytes no more: they go now
    free_host(memory);
    free_block(h->block, h->last, h->size());
    free_idle_block(h->coming, h->last, h->size());
    free_idle_block(h->guest, h->last, h->size());
  }
  unfinished_deaths--;
  if (mgd_handle_put(h, MGD_ALIVE)) delete h;
}

void each_part(const at::Tensor& t, void (*f)(void*, c10::StorageImpl*), void* context) {
  if (t.key_set().has_any(kWrappers)) return;
  auto part = [&](const at::Tensor& p) {
    if (p.defined() && p.has_storage()) f(context, p.storage().unsafeGetStorageImpl());
  };
  if (t.layout() == at::kSparse) {
    auto* s = static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
    part(s->indices());
    part(s->values());
  } else if (t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc || t.layout() == at::kSparseBsr ||
             t.layout() == at::kSparseBsc) {
    auto* s = static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
    part(s->compressed_indices());
    part(s->plain_indices());
    part(s->values());
  }
}

bool take_block(StorageHandle& h, c10::DataPtr* taken) {
  std::lock_guard<std::mutex> lock(h.mutex);
  *taken = std::move(h.block);
  h.block.clear();
  c10::StorageImpl* s = h.storage;
  if (!s) return false;
  set_pointer(s->_mutable_data_ptr_no_checks(), nullptr);
  set_unreadable(s, true);
  return true;
}

void tell_owner(const c10::DataPtr& block, mgd_hold_owner owner) {
  const Bridge* backend = block.get() ? backend_of(block.device().type()) : nullptr;
  if (backend && backend->own) backend->own(block, owner);
}

void tell_owner_of_copy(c10::StorageImpl* s, bool kept) {
  StorageHandle* h = handle_of(s);
  if (!h) return tell_owner(s->_mutable_data_ptr_no_checks(), kept ? MGD_HOLD_REPLICA : MGD_HOLD_OTHER);
  std::lock_guard<std::mutex> lock(h->mutex); // the block may be on its way elsewhere
  tell_owner(h->block, kept ? MGD_HOLD_REPLICA : MGD_HOLD_MANAGED);
}

bool restore_pointer(StorageHandle& h, c10::DataPtr block) {
  tell_owner(block, MGD_HOLD_MANAGED);
  std::lock_guard<std::mutex> lock(h.mutex);
  h.block = std::move(block);
  c10::StorageImpl* s = h.storage;
  if (!s) return false;
  set_pointer(s->_mutable_data_ptr_no_checks(), h.block.mutable_get());
  set_unreadable(s, false);
  return true;
}

// A program that holds the storage's Python object reads the bytes past every operator; the storage itself holds that
// object too, so one reference is nobody's. A storage that dies waits for the core's mutex, which is held here; so the
// object lives, and its count is read without the GIL, whose owner may be waiting for that mutex.
bool may_leave(const mgd_handle* handle) {
  const auto* h = static_cast<const StorageHandle*>(handle);
  c10::StorageImpl* s = h->storage.load(std::memory_order_acquire);
  if (!s) return false;
  const c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  if (p.get_deleter() != &drop_handle || p.get_context() != static_cast<const Head*>(h))
    return false; // somebody gave the storage another block
  if (recording_graphs.load(std::memory_order_relaxed)) return false;
  const PyObject* object = s->pyobj_slot()->load_pyobj();
  if (object && __atomic_load_n(&object->ob_refcnt, __ATOMIC_RELAXED) != 1 &&
      !h->is_saved.load(std::memory_order_relaxed))
    return false;
  return !h->block.get() || !backend_of(h->block.device().type())->is_shared(h->block);
}

void replace_block(c10::StorageImpl* storage, c10::DataPtr block, std::size_t bytes) {
  StorageHandle& h = *handle_of(storage);
  void* memory = nullptr;
  TORCH_CHECK(mgd_handle_resize(machine(), &h, static_cast<int64_t>(bytes), &memory) == MGD_OK,
              "managed: this storage was resized while its bytes were elsewhere; use the tensor in any operator first");
  free_host(memory);
  tell_owner(block, MGD_HOLD_MANAGED);
  CopyPtr last;
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    std::swap(h.block, block);
    last = std::exchange(h.last, nullptr);
    set_pointer(storage->_mutable_data_ptr_no_checks(), h.block.mutable_get());
    storage->set_nbytes(bytes);
  }
  if (last) free_block(block, last); // it may still read the old one
}

} // namespace managed
