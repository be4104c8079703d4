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

// An empty tensor like t over this block of its device.
at::Tensor over_block(const at::Tensor& t, c10::DataPtr block) {
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey); // it gets its handle when it is complete
  at::Tensor r = at::empty({0}, t.options().device(block.device()));
  c10::StorageImpl* s = r.storage().unsafeGetStorageImpl();
  s->set_data_ptr_noswap(std::move(block));
  s->set_nbytes(t.nbytes());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  return r;
}

// The copy of t in this block. `coming`: the copy that brings the bytes, if nothing comes after it yet.
at::Tensor result_over(const at::Tensor& t, c10::DataPtr block, const Bridge& backend, CopyPtr coming) {
  at::Tensor r = over_block(t, std::move(block));
  mark(r);
  if (!mgd_torch_in_backward()) give_handle(r, true, coming ? &coming : nullptr); // as mark_result() has it
  c10::StorageImpl* s = r.storage().unsafeGetStorageImpl();
  if (coming) coming->order(s->data_ptr());
  // The block may be one that another stream had. A handle tells torch who uses it; without one it is told now.
  if (backend.retire && !handle_of(s)) backend.retire(s->data_ptr());
  return r;
}

// Copies t, which is in ordinary memory of the host, by way of page-locked memory: nobody waits for what the device has
// to do before. Undefined: there is no such memory.
at::Tensor copy_staged(const at::Tensor& t, c10::Device to, const Bridge& backend) {
  Staged staged(t.const_data_ptr(), t.nbytes());
  if (!staged.get()) return {};
  c10::DataPtr block = backend.allocate_for_copy(to.index(), t.nbytes(), Urgency::Soon, false);
  CopyPtr copy;
  try {
    copy = backend.begin_copy(to.index(), block.get(), -1, staged.get(), t.nbytes(), Urgency::Soon, {}, nullptr);
    staged.read_by(copy);
    copy->order(block);
  } catch (...) {
    free_idle_block(block, copy, t.nbytes());
    throw;
  }
  return result_over(t, std::move(block), backend, nullptr);
}

std::mutex& copying() {
  static auto* mutex = [] {
    survive_fork<copying>();
    return new std::mutex; // before a storage's; nobody waits for a device in it
  }();
  return *mutex;
}
const MadeAtStart copying_at_start([] { copying(); });

// Whether the bytes may be written without an operator that the hook sees and that would come after the copy.
bool is_written_past_us(const StorageHandle& h) {
  return h.was_lent.load() || Hold::is_written(&h) || mgd_handle_is_pinned(machine(), &h);
}

// Copies `bytes` from `offset` on into `target`; who writes the source next comes after that. For the handle has the
// newest of the copies that read it, and each comes after the one before: to begin one and to enter it is one step.
CopyPtr begin_and_enter(StorageHandle& h, std::size_t offset, std::size_t bytes, const c10::DataPtr& target,
                        const Bridge& backend) {
  std::unique_lock<std::mutex> alone(copying(), std::defer_lock);
  if (kernels_are_async.load(std::memory_order_relaxed)) alone.lock(); // others copy at once: that may take long
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

at::Tensor copy_beside(const at::Tensor& t, c10::Device to, bool now) {
  const Bridge* backend = to.is_cpu() ? nullptr : backend_of(to.type());
  if (!backend) return {};
  const HeldTensor held(t, false, id_of(to));
  c10::StorageImpl* s = t.storage().unsafeGetStorageImpl();
  StorageHandle* h = t.is_cpu() ? nullptr : handle_of(s);
  if (t.is_cpu() ? is_too_small(s) || t.is_pinned() : !h || t.device().type() != to.type()) return {};
  if (to.is_cuda() && t.is_cpu()) return copy_staged(t, to, *backend);
  if (backend->records && (backend->records(to.index()) || backend->records(t.device().index()))) return {};
  const Urgency urgency = h ? Urgency::Operand : Urgency::Soon;
  c10::DataPtr block = backend->allocate_for_copy(to.index(), t.nbytes(), urgency, false);
  CopyPtr copy;
  try {
    const std::size_t offset = static_cast<std::size_t>(t.storage_offset()) * t.element_size();
    copy = h ? begin_and_enter(*h, offset, t.nbytes(), block, *backend)
             : backend->copy_operand(block, t.storage().data_ptr(), offset, t.nbytes(), urgency, nullptr);
    // Who lets others have the bytes says so and then asks for the newest copy (last_read). Here the copy is entered
    // and then that is looked for. So one of the two sees the other.
    if (h && kernels_are_async.load(std::memory_order_relaxed) && is_written_past_us(*h))
      copy->order(h->block); // all streams of the program's come after it, as the current one does after torch's
    if (now && copy) copy->order(block); // before it has a handle, by which the bytes may leave
  } catch (...) {
    free_idle_block(block, copy, t.nbytes());
    throw;
  }
  return result_over(t, std::move(block), *backend, now ? nullptr : std::move(copy));
}

} // namespace managed
