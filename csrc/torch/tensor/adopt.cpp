// adopt.cpp: see adopt.h.
#include "torch/tensor/adopt.h"

#include <memory>
#include <mutex>
#include <utility>

#include "core/growth.h"
#include "torch/devices/devices.h"
#include "torch/tensor/exposure_table.h"
#include "torch/tensor/host_memory.h"
#include "torch/threads/forks.h"
#include "torch/devices/graphs.h"
#include "torch/tensor/record.h"
#include "torch/tensor/state.h"
#include "torch/threads/threads.h"
#include "torch/tensor/torch_private.h"
#include "torch/tensor/uses.h"

namespace managed {
namespace {

constexpr const char* kUnreadable =
    "managed: the bytes of this tensor were moved to make room, and this access does not go through an operator that "
    "would bring them "
    "back. Use the tensor in any operator first, or pin() it to keep its bytes where they are";

std::mutex& adopting() {
  static auto* mutex = [] {
    survive_fork<adopting>(); // registered after the machine's lock, which is taken under it
    return new std::mutex;    // two threads that mark one tensor
  }();
  return *mutex;
}
const MadeAtStart adopting_at_start([] { adopting(); });

// Whether the bytes are a block of a backend that can replace it.
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
  auto& context = (p.*private_member(members::Pointer{})).*private_member(members::Context{});
  const c10::DeleterFnPtr deleter = context.get_deleter();
  h->block = c10::DataPtr(p.mutable_get(), context.release(), deleter, p.device());
  context = std::unique_ptr<void, c10::DeleterFnPtr>(h, &drop_handle);
}

} // namespace

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
  if (C10_UNLIKELY(mgd_growth_notes(machine()))) __atomic_store_n(&owned->site, call_site(), __ATOMIC_RELAXED);
  note_points(*owned, id);
  tell_owner(s->_mutable_data_ptr_no_checks(), MGD_HOLD_MANAGED);
  take_over(s, owned);
  if (coming && mgd_handle_arrive(machine(), owned) == MGD_OK) { // it cannot be evicted yet: `storage` is null
    owned->last = std::exchange(*coming, nullptr);
    owned->coming = std::exchange(owned->block, {});
    set_pointer(s->_mutable_data_ptr_no_checks(), nullptr);
    set_unreadable(s, true);
  }
  owned->storage.store(s, std::memory_order_release);
  log_use(owned, owned->bytes, owned->stamp, UseKind::Made);
}

// Other threads may read the pointer while it changes hands, so they must not be inside an operator.
StorageHandle* give_operand_handle_slow(const at::Tensor& t, c10::StorageImpl* s) {
  if (!has_key(t.unsafeGetTensorImpl()) || is_pinned(t)) return nullptr; // a plain operand may be used without the hook
  const ExclusiveSection alone;
  if (alone) give_handle_slow(s, false);
  StorageHandle* h = handle_of(s);
  const TensorState* state = h ? state_of(t) : nullptr;
  if (state) h->object = state->object;
  if (state && state->advice) mgd_handle_advise(machine(), h, state->advice);
  return h;
}

void keep_map_slow(const at::Tensor& t, const at::Tensor& copy) noexcept try {
  StorageHandle* h = copy.has_storage() ? handle_of(copy.storage().unsafeGetStorageImpl()) : nullptr;
  const bool same_bytes = h && keeps_maps.load(std::memory_order_relaxed) && t.layout() == at::kStrided &&
      h->size() == t.nbytes() && t.scalar_type() == copy.scalar_type() && t.strides() == copy.strides() &&
      t.is_non_overlapping_and_dense() && t.is_conj() == copy.is_conj() && t.is_neg() == copy.is_neg();
  if (!same_bytes) return;
  FilePart part = find_in_file(t.const_data_ptr(), t.nbytes());
  if (!part.file) return;
  HostMemory* memory = host_memory_in(std::move(part));
  if (mgd_handle_map(machine(), h, memory) != MGD_OK) free_host(memory); // the storage has left already
} catch (const std::exception&) { // no memory: the bytes will be copied to the host when they leave
}

} // namespace managed
