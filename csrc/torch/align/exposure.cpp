// exposure.cpp: see exposure.h.
#include "torch/align/exposure.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/residency/side_copies.h"
#include "torch/devices/devices.h"
#include "torch/tensor/exposure_table.h"
#include "torch/threads/gil.h"
#include "torch/residency/hold.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/storage.h"
#include "torch/devices/waiting.h"

namespace managed {
namespace {

// A leaked pointer may be used on a stream that managed does not know. So this thread waits for the copy that reads the
// bytes, and, if they have just come home (`came`), for the current stream, which comes after the copy that brought
// them.
void await_copies(StorageHandle& h, const CopyPtr& last, bool came) {
  if (last) wait_for(last);
  if (!came) return;
  const c10::Device d = device_of(h.home);
  const c10::impl::VirtualGuardImpl device(d.type());
  count_host_wait();
  device.getStream(d).synchronize();
}

// Hands the bytes out after the copy that reads them. A storage that is lent is used by operators of torch's,
// most of them on the current stream or one that was used before: these come after the copy. A copy that begins later
// finds that the bytes are lent or pinned (side_copies.cpp).
void let_go_after_copies(StorageHandle& h, bool for_good, bool came) {
  const WithoutGil no_gil;
  CopyPtr last = last_read(h);
  if (last && last->has_ended()) last = nullptr;
  if (for_good) await_copies(h, last, came);
  else if (last) last->order(h.block);
}

// Enters the storage into the table, makes its kept copies stale, and brings its bytes home. for_good: a pointer has
// left, so they are kept home from now on. Otherwise they are lent: they stay at home while the program holds the
// storage (may_leave), and never again count as unchanged (was_lent).
void add_exposure(const at::Tensor& t, bool for_good) {
  if (!t.defined() || t.layout() != at::kStrided || !t.has_storage()) return;
  note_exposure(t, for_good);
  if (StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl()))
    h->is_saved = false; // before it is brought home
  invalidate_copies(t); // after the entry: a copy that is being made now is not kept either
  const HeldTensor held(t, true);
  StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl()); // it may have got one now
  if (!h) return;
  // As long as the program holds a storage that is lent, may_leave() (storage.cpp) keeps its bytes at home.
  if (for_good) mgd_handle_pin(machine(), h, MGD_PIN_POINTER, true);
  else h->was_lent = true;
  if (kernels_are_async.load(std::memory_order_relaxed)) let_go_after_copies(*h, for_good, held.came());
}

} // namespace

void expose(const at::Tensor& t) { add_exposure(t, true); }
void lend(const at::Tensor& t) { add_exposure(t, false); }

void lend_in_place(const at::Tensor& t) {
  note_exposure(t, false);
  invalidate_copies(t);
}

namespace {

// The tensors of a move that have bytes of one storage.
struct Holders {
  uint32_t count = 0;
  std::vector<std::pair<std::size_t, std::size_t>> pieces; // from, to

  bool overlap() {
    std::sort(pieces.begin(), pieces.end());
    for (std::size_t i = 1; i < pieces.size(); i++)
      if (pieces[i].first < pieces[i - 1].second) return true;
    return false;
  }
};
using HoldersOf = std::unordered_map<c10::StorageImpl*, Holders>;

void add_holder(HoldersOf& found, const at::Tensor& t) {
  each_storage(t, [&](c10::StorageImpl* s) {
    Holders& h = found[s];
    h.count += t.is_view() ? 2 : 1;
    if (!t.has_storage() || t.layout() != at::kStrided) return;
    const std::size_t from = static_cast<std::size_t>(t.storage_offset()) * t.element_size();
    h.pieces.emplace_back(from, from + at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size()));
  });
}

} // namespace

bool have_bytes_alone(c10::ArrayRef<at::Tensor> tensors) {
  HoldersOf found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& t : tensors) {
    const at::Tensor grad = t.is_leaf() ? t.grad() : at::Tensor();
    for (const at::Tensor* one : {&t, &grad}) {
      if (!one->defined() || !seen.insert(one->unsafeGetTensorImpl()).second) continue;
      if (one->is_view() && is_in_program(one->_base().unsafeGetTensorImpl()->pyobj_slot())) return false;
      add_holder(found, *one);
    }
  }
  for (auto& [storage, of] : found)
    if (is_exposed(storage) || is_held_beyond(storage, of.count) || of.overlap()) return false;
  return true;
}

} // namespace managed
