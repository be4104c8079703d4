// exposure.cpp: see exposure.h.
#include "exposure.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "beside.h"
#include "devices.h"
#include "forks.h"
#include "gil.h"
#include "hold.h"
#include "key.h"
#include "on.h"
#include "replica.h"
#include "storage.h"
#include "waiting.h"

namespace managed {
namespace {

struct Exposed {
  c10::weak_intrusive_ptr<c10::StorageImpl> address; // keeps the address from being used again
  bool for_good;
  uint64_t times = 1; // how often somebody got hold of the bytes
};

struct ExposureTable {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Exposed> storages;
  std::size_t sweep_at = 64;

  ExposureTable() { survive_fork<table_mutex>(); }
  static std::mutex& table_mutex() { return table().mutex; }
  static ExposureTable& table() {
    static auto* r = new ExposureTable; // never destroyed: tensors may outlive static destructors
    return *r;
  }

  // Entries of storages that have died go when the table has doubled: a constant cost for each entry.
  void sweep() {
    if (storages.size() < sweep_at) return;
    for (auto it = storages.begin(); it != storages.end();)
      it = it->second.address.expired() ? storages.erase(it) : std::next(it);
    sweep_at = std::max<std::size_t>(64, 2 * storages.size());
  }

  void add(const at::Tensor& t, bool for_good) {
    std::lock_guard<std::mutex> lock(mutex);
    sweep();
    Exposed fresh{t.storage().getWeakStorageImpl(), for_good};
    const auto [entry, is_new] = storages.emplace(t.storage().unsafeGetStorageImpl(), std::move(fresh));
    if (is_new) return;
    entry->second.for_good |= for_good;
    entry->second.times++;
  }

  // How often somebody got hold of the bytes; 0: nobody did. UINT64_MAX: somebody has them for good.
  uint64_t times(const c10::StorageImpl* storage) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto entry = storages.find(storage);
    if (entry == storages.end()) return 0;
    return entry->second.for_good ? UINT64_MAX : entry->second.times;
  }

  // Nobody holds the storage any more. Whoever got hold of it since its times were read keeps the entry.
  void forget(const c10::StorageImpl* storage, uint64_t times) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto entry = storages.find(storage);
    if (entry != storages.end() && !entry->second.for_good && entry->second.times == times) storages.erase(entry);
  }
};

// Who has a pointer may use it on a stream that nobody can order. So this thread waits for the copy that reads what is
// there, and for one that brought them just now (`came`), behind which the current stream is.
void await_copies(StorageHandle& h, const CopyPtr& last, bool came) {
  if (last) wait_for(last);
  if (!came) return;
  const c10::Device d = device_of(h.home);
  const c10::impl::VirtualGuardImpl device(d.type());
  count_host_wait();
  device.getStream(d).synchronize();
}

// Who has the storage uses it by operators of torch's, most of them on the current stream or one that was used before:
// these come after the copy. Who copies the bytes from now on finds that they are lent or pinned (beside.cpp).
void let_go_after_copies(StorageHandle& h, bool for_good, bool came) {
  const WithoutGil no_gil;
  CopyPtr last = last_read(h);
  if (last && last->has_ended()) last = nullptr;
  if (for_good) await_copies(h, last, came);
  else if (last) last->order(h.block);
}

// Enters the storage into the table, makes its kept copies stale, and brings its bytes home. for_good: a pointer has
// left, so they are kept home from now on. Otherwise they are lent: they stay at home while somebody holds the storage
// (may_leave), and never again count as unchanged (was_lent).
void add_exposure(const at::Tensor& t, bool for_good) {
  if (!t.defined() || t.layout() != at::kStrided || !t.has_storage()) return;
  ExposureTable::table().add(t, for_good);
  if (StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl()))
    h->is_saved = false; // before it is brought home
  invalidate_copies(t); // after the entry: a copy that is being made now is not kept either
  const HeldTensor held(t, true);
  StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl()); // it may have got one now
  if (!h) return;
  // As long as somebody holds a storage that is lent, may_leave() (storage.cpp) keeps its bytes at home.
  if (for_good) mgd_handle_pin(machine(), h, MGD_PIN_POINTER, true);
  else h->was_lent = true;
  if (kernels_are_async.load(std::memory_order_relaxed)) let_go_after_copies(*h, for_good, held.came());
}

// Torch's Python object of a tensor or a storage is kept by it when nothing else refers to that object; then no program
// can write through it.
bool is_in_program(const c10::impl::PyObjectSlot* slot) { return slot->load_pyobj() && !slot->has_unique_reference(); }

bool is_held(c10::StorageImpl* storage, uint32_t known) {
  const auto* slot = storage->pyobj_slot();
  if (is_in_program(slot)) return true;
  return c10::raw::intrusive_ptr::use_count(storage) > known + (slot->load_pyobj() ? 1 : 0);
}

} // namespace

bool is_exposed(const c10::StorageImpl* storage) {
  ExposureTable& r = ExposureTable::table();
  std::lock_guard<std::mutex> lock(r.mutex);
  const auto entry = r.storages.find(storage);
  return entry != r.storages.end() && entry->second.for_good && !entry->second.address.expired();
}

void expose(const at::Tensor& t) { add_exposure(t, true); }
void lend(const at::Tensor& t) { add_exposure(t, false); }

void lend_in_place(const at::Tensor& t) {
  ExposureTable::table().add(t, false);
  invalidate_copies(t);
}

// How many refer to a Python object is asked under the GIL, whose owner may be waiting for the lock: so not under the
// lock. Once nobody holds the storage its entry goes: the copies of other threads hold it for a moment each, and must
// not count as somebody who may write.
bool may_change_unseen(const at::Tensor& t, const at::Tensor& through) {
  ExposureTable& r = ExposureTable::table();
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const uint64_t times = r.times(storage);
  if (times == 0 || times == UINT64_MAX) return times != 0;
  if (is_held(t.storage().unsafeGetStorageImpl(), through.defined() ? 2 : 1)) return true;
  r.forget(storage, times);
  return false;
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
    if (is_exposed(storage) || is_held(storage, of.count) || of.overlap()) return false;
  return true;
}

bool is_held_plainly(const at::TensorBase& t) {
  if (has_key(t.unsafeGetTensorImpl()) || mgd_torch_on() != MGD_OFF) return false;
  return is_in_program((t.is_view() ? t._base() : t).unsafeGetTensorImpl()->pyobj_slot());
}

bool is_written_plainly(const at::Tensor& operand) {
  if (!has_key(operand.unsafeGetTensorImpl())) return mgd_torch_on() == MGD_OFF;
  return operand.is_view() && is_held_plainly(operand._base());
}

} // namespace managed
