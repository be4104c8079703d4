// storage.cpp: see storage.h.
#include "torch/tensor/storage.h"

#include <Python.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include "torch/devices/devices.h"
#include "torch/devices/graphs.h"
#include "torch/tensor/host_memory.h"
#include "torch/tensor/torch_private.h"
#include "torch/tensor/uses.h"

namespace managed {

std::atomic<bool> handles_enabled{false};
uint64_t ticks = 0;
constinit thread_local mgd_user* user_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<int> unfinished_deaths{0};
std::atomic<int64_t> least_bytes_with_handle{int64_t{1} << 14};

bool is_too_small(const c10::StorageImpl* s) {
  const auto bytes = (s->*private_member(members::Bytes{})).maybe_as_int();
  return !bytes || *bytes < least_bytes_with_handle.load(std::memory_order_relaxed);
}

namespace {

// The allocator records an event for each stream of a block, and throws when the driver refuses, as it does after a
// device-side assert. The deleter is called directly, because the process ends if a unique_ptr's deleter throws. After
// such an error the block is lost, and the device with it: the next call that waits for the device reports why.
void free_with(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes) noexcept {
  if (copy && block.get_context()) return backend_of(block.device().type())->free_after(block, copy, last, bytes);
  const c10::DeleterFnPtr give_back = block.get_deleter();
  void* context = block.release_context();
  block.clear();
  try {
    if (context) give_back(context);
  } catch (const std::exception&) {}
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

// A thread that ends leaves its counts behind. If it uses a storage after that, it joins again, for good.
mgd_user* join_slow() {
  struct Leaving {
    ~Leaving() { mgd_user_leave(machine(), std::exchange(user_of_thread, nullptr)); }
  };
  if (mgd_user_join(machine(), &user_of_thread) != MGD_OK) throw std::bad_alloc();
  static thread_local const Leaving leaving;
  static_cast<void>(leaving);
  return user_of_thread;
}

uint64_t newest_handle_of(const at::Tensor& t) {
  uint64_t made = 0;
  each_storage(t, [&made](c10::StorageImpl* s) {
    if (const StorageHandle* h = handle_of(s)) made = std::max(made, h->made);
  });
  return made;
}

void advise_storages(const at::Tensor& t, uint32_t advice) {
  each_storage(t, [&](c10::StorageImpl* s) {
    if (StorageHandle* h = handle_of(s)) mgd_handle_advise(machine(), h, advice);
  });
}

// A copy may still use the blocks, so their memory is reused only after it.
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
  if (!moving) { // an operator that still holds the handle no longer needs the bytes: they are freed now
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
  std::lock_guard<std::mutex> lock(h->mutex); // another thread may be moving the block
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

// A program that holds the storage's Python object can read the bytes without an operator; the storage itself holds one
// reference to that object, so a refcount of 1 is not the program's. A storage that dies waits for the core's mutex,
// which is held here; so the object lives, and its count is read without the GIL, whose owner may be waiting for that
// mutex.
bool may_leave(const mgd_handle* handle) {
  const auto* h = static_cast<const StorageHandle*>(handle);
  c10::StorageImpl* s = h->storage.load(std::memory_order_acquire);
  if (!s) return false;
  const c10::DataPtr& p = s->_mutable_data_ptr_no_checks();
  if (p.get_deleter() != &drop_handle || p.get_context() != static_cast<const Head*>(h))
    return false; // the storage was given another block
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
  if (last) free_block(block, last); // the copy may still read the old block
}

} // namespace managed
