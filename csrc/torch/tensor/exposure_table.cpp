// exposure_table.cpp: see exposure_table.h.
#include "torch/tensor/exposure_table.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "torch/threads/forks.h"
#include "torch/facts/key.h"
#include "torch/tensor/on_mode.h"

namespace managed {
namespace {

struct Exposed {
  c10::weak_intrusive_ptr<c10::StorageImpl> address; // keeps the address from being used again
  bool for_good;
  uint64_t times = 1; // how often the bytes have been handed out
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

  // How often the bytes have been handed out; UINT64_MAX: for good.
  uint64_t times(const c10::StorageImpl* storage) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto entry = storages.find(storage);
    if (entry == storages.end()) return 0;
    return entry->second.for_good ? UINT64_MAX : entry->second.times;
  }

  // The program does not hold the storage any more. If the bytes have been handed out since `times` was read, the entry
  // stays.
  void forget(const c10::StorageImpl* storage, uint64_t times) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto entry = storages.find(storage);
    if (entry != storages.end() && !entry->second.for_good && entry->second.times == times) storages.erase(entry);
  }
};
const MadeAtStart exposure_at_start([] { ExposureTable::table(); });

} // namespace

bool is_in_program(const c10::impl::PyObjectSlot* slot) { return slot->load_pyobj() && !slot->has_unique_reference(); }

bool is_held_beyond(c10::StorageImpl* storage, uint32_t known) {
  const auto* slot = storage->pyobj_slot();
  if (is_in_program(slot)) return true;
  return c10::raw::intrusive_ptr::use_count(storage) > known + (slot->load_pyobj() ? 1 : 0);
}

void note_exposure(const at::Tensor& t, bool for_good) { ExposureTable::table().add(t, for_good); }

bool is_exposed(const c10::StorageImpl* storage) {
  ExposureTable& r = ExposureTable::table();
  std::lock_guard<std::mutex> lock(r.mutex);
  const auto entry = r.storages.find(storage);
  return entry != r.storages.end() && entry->second.for_good && !entry->second.address.expired();
}

// Refcounts of Python objects are read under the GIL, whose owner may be waiting for the mutex, so they are read
// outside of the mutex. Once the program does not hold the storage, its entry is erased: copies in other threads hold
// the storage for a moment each, and must not count as writers.
bool may_change_unseen(const at::Tensor& t, const at::Tensor& through) {
  ExposureTable& r = ExposureTable::table();
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const uint64_t times = r.times(storage);
  if (times == 0 || times == UINT64_MAX) return times != 0;
  if (is_held_beyond(t.storage().unsafeGetStorageImpl(), through.defined() ? 2 : 1)) return true;
  r.forget(storage, times);
  return false;
}

bool is_held_plainly(const at::TensorBase& t) {
  if (has_key(t.unsafeGetTensorImpl()) || on_mode() != MGD_OFF) return false;
  return is_in_program((t.is_view() ? t._base() : t).unsafeGetTensorImpl()->pyobj_slot());
}

bool is_written_plainly(const at::Tensor& operand) {
  if (!has_key(operand.unsafeGetTensorImpl())) return on_mode() == MGD_OFF;
  return operand.is_view() && is_held_plainly(operand._base());
}

} // namespace managed
