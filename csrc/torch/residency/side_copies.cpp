// side_copies.cpp: see side_copies.h.
#include "torch/residency/side_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <utility>

#include "torch/tensor/adopt.h"
#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/threads/forks.h"
#include "torch/residency/hold.h"
#include "torch/residency/staging.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

// Returns an uninitialized tensor like t over this block, on the device of the block.
at::Tensor over_block(const at::Tensor& t, c10::DataPtr block) {
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey); // it gets its handle when it is complete
  at::Tensor r = at::empty({0}, t.options().device(block.device()));
  c10::StorageImpl* s = r.storage().unsafeGetStorageImpl();
  s->set_data_ptr_noswap(std::move(block));
  s->set_nbytes(t.nbytes());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  return r;
}

// Wraps `block`, which holds or receives the copy of t. `coming`: the copy that brings the bytes, if no stream is
// ordered after it yet.
at::Tensor result_over(const at::Tensor& t, c10::DataPtr block, const Bridge& backend, CopyPtr coming,
                       Waiting waiting) {
  at::Tensor r = over_block(t, std::move(block));
  mark(r);
  if (waiting == Waiting::HookedUses || !mgd_torch_in_backward()) give_handle(r, true, coming ? &coming : nullptr);
  c10::StorageImpl* s = r.storage().unsafeGetStorageImpl();
  if (coming) coming->order(s->data_ptr());
  // The block may have belonged to another stream. A handle tells torch which streams use it; without a handle, torch
  // is told now.
  if (backend.retire && !handle_of(s)) backend.retire(s->data_ptr());
  return r;
}

// Copies t from pageable host memory through a page-locked buffer, so that the thread does not wait for earlier work of
// the device. Undefined: there is no such buffer.
at::Tensor copy_staged(const at::Tensor& t, c10::Device to, const Bridge& backend, Waiting waiting) {
  Staged staged(t.const_data_ptr(), t.nbytes());
  if (!staged.get()) return {};
  c10::DataPtr block = backend.allocate_for_copy(to.index(), t.nbytes(), -1, Urgency::Soon, false);
  CopyPtr copy;
  try {
    copy = backend.begin_copy(to.index(), block.get(), -1, staged.get(), t.nbytes(), Urgency::Soon, {}, nullptr);
    staged.read_by(copy);
    copy->order(block);
  } catch (...) {
    free_idle_block(block, copy, t.nbytes());
    throw;
  }
  return result_over(t, std::move(block), backend, nullptr, waiting);
}

std::mutex& copying() {
  static auto* mutex = [] {
    survive_fork<copying>();
    return new std::mutex; // before a storage's; no thread waits for a device under it
  }();
  return *mutex;
}
const MadeAtStart copying_at_start([] { copying(); });

// Whether the bytes may be written other than by an operator that the hook sees and orders after the copy.
bool is_written_past_us(const StorageHandle& h) {
  return h.was_lent.load() || Hold::is_written(&h) || mgd_handle_is_pinned(machine(), &h);
}

// Copies `bytes` bytes of h, from `offset` on, into `target`; the next writer of the source is ordered after the copy.
// h.last is the newest copy that reads h, and each copy is ordered after the one before: so beginning a copy and
// entering it is one step, under a lock.
CopyPtr begin_and_enter(StorageHandle& h, std::size_t offset, std::size_t bytes, const c10::DataPtr& target,
                        const Bridge& backend) {
  std::unique_lock<std::mutex> alone(copying(), std::defer_lock);
  if (kernels_are_async.load(std::memory_order_relaxed)) alone.lock(); // other backends copy synchronously
  CopyPtr after;
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    after = h.last;
  }
  CopyPtr copy = backend.copy_operand(target, h.block, offset, bytes, Urgency::Operand, after);
  std::lock_guard<std::mutex> lock(h.mutex);
  h.last = copy;
  mgd_handle_read_by_copy(&h);
  return copy;
}

} // namespace

CopyPtr last_read(StorageHandle& h) {
  const std::scoped_lock lock(copying(), h.mutex);
  return h.last;
}

at::Tensor copy_beside(const at::Tensor& t, c10::Device to, Waiting waiting) {
  const Bridge* backend = to.is_cpu() ? nullptr : backend_of(to.type());
  if (!backend) return {};
  const HeldTensor held(t, false, id_of(to));
  c10::StorageImpl* s = t.storage().unsafeGetStorageImpl();
  StorageHandle* h = t.is_cpu() ? nullptr : handle_of(s);
  if (t.is_cpu() ? is_too_small(s) || t.is_pinned() : t.device().type() != to.type()) return {};
  if (to.is_cuda() && t.is_cpu()) return copy_staged(t, to, *backend, waiting);
  if (backend->records && (backend->records(to.index()) || backend->records(t.device().index()))) return {};
  const Urgency urgency = t.is_cpu() ? Urgency::Soon : Urgency::Operand;
  c10::DataPtr block =
      backend->allocate_for_copy(to.index(), t.nbytes(), t.is_cpu() ? -1 : t.device().index(), urgency, false);
  CopyPtr copy;
  try {
    const std::size_t offset = static_cast<std::size_t>(t.storage_offset()) * t.element_size();
    copy = h ? begin_and_enter(*h, offset, t.nbytes(), block, *backend)
             : backend->copy_operand(block, t.storage().data_ptr(), offset, t.nbytes(), urgency, nullptr);
    // A thread that exposes the bytes first marks them, then reads the newest copy (last_read). Here the copy is
    // entered first and the mark is read second, so one of the two sees the other. Without a handle no write of the
    // source would come after the copy by itself.
    if (h ? kernels_are_async.load(std::memory_order_relaxed) && is_written_past_us(*h) : copy && !t.is_cpu())
      copy->order(h ? h->block : t.storage().data_ptr()); // all streams of the program come after it
    if (waiting == Waiting::All && copy) copy->order(block); // before it has a handle: with one, the bytes may leave
  } catch (...) {
    free_idle_block(block, copy, t.nbytes());
    throw;
  }
  return result_over(t, std::move(block), *backend, waiting == Waiting::All ? nullptr : std::move(copy), waiting);
}

} // namespace managed
