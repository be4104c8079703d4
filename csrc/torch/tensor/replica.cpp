// replica.cpp: see replica.h.
#include "torch/tensor/replica.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <forward_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch/devices/devices.h"
#include "torch/tensor/exposure_table.h"
#include "torch/threads/forks.h"
#include "torch/tensor/state.h"
#include "torch/tensor/storage.h"

namespace managed {

std::atomic<int64_t> sources_alive{0};

namespace {

// Copies of plain tensors are kept only in managed.on(), and are valid until a thread leaves it, which begins a new
// era.
std::atomic<uint64_t> plain_era{1};

// The era in which a copy of t is valid; 0: any.
uint64_t era_of(const at::Tensor& t) { return has_key(t.unsafeGetTensorImpl()) ? 0 : plain_era.load(); }

// What is kept under a slot of the core's directory. The version counter reveals writes through tensors that are not
// managed, which never pass the hook.
struct Kept {
  at::Tensor values;
  c10::VariableVersion counter;
  uint32_t version = 0;
  uint64_t era = 0;
  std::weak_ptr<NodePtr> trip_home;

  bool is_current() const {
    return (!counter.enabled() || counter.current_version() == version) && (era == 0 || era == plain_era.load());
  }
  bool serves(const at::Tensor& t) const {
    return is_current() && values.sizes() == t.sizes() && values.scalar_type() == t.scalar_type();
  }
};

struct Directory {
  std::mutex mutex; // guards everything here and TensorState::source; only the core is called under it
  std::vector<std::forward_list<Kept>> kept; // by slot: one or none
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<Source>> sources;
  std::unordered_map<const c10::StorageImpl*, int32_t> copies; // storage of a kept copy -> slot
  std::forward_list<Kept> late; // entries that may not die yet
  std::atomic<int64_t> hits{0};
};

std::mutex& directory_mutex();

Directory& directory() {
  static auto* d = [] {
    survive_fork<directory_mutex>(); // registered after the machine's lock, which is taken under it
    return new Directory; // never destroyed: tensors may outlive static destructors
  }();
  return *d;
}

std::mutex& directory_mutex() { return directory().mutex; }
const MadeAtStart directory_at_start([] { directory(); });

const c10::StorageImpl* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

// Entries taken from the directory; they die after the lock is released. It is a list because moving an entry between
// lists allocates nothing: destructors do that.
using Dying = std::forward_list<Kept>;

void take(Dying& from, Dying& to) { to.splice_after(to.before_begin(), from); }

void reap_locked(Directory& d, Dying& dying) {
  take(d.late, dying);
  int32_t slot = 0;
  while (mgd_replica_reap(machine(), &slot) == MGD_OK) {
    if (static_cast<std::size_t>(slot) >= d.kept.size() || d.kept[slot].empty()) continue; // it was never put there
    take(d.kept[slot], dying);
    const auto found = d.copies.find(storage_of(dying.front().values));
    if (found != d.copies.end() && found->second == slot) d.copies.erase(found);
  }
}

// If memory runs out, the core's slot is given back and nothing has changed.
void put_locked(Directory& d, int32_t slot, Kept kept, Dying& dying) {
  Dying one;
  try {
    one.push_front(std::move(kept));
    if (d.kept.size() <= static_cast<std::size_t>(slot)) d.kept.resize(slot + 1);
    d.copies[storage_of(one.front().values)] = slot;
  } catch (...) {
    mgd_replica_drop(machine(), slot);
    reap_locked(d, dying);
    throw;
  }
  tell_owner_of_copy(one.front().values.storage().unsafeGetStorageImpl(), true);
  take(one, d.kept[slot]);
}

// Hashes the offset, sizes, strides and dtype of t, and the stream that uses the copy: a copy made on one stream may
// not be finished when another stream reads it, and its block returns to the memory of the first.
uint64_t extent_of(const at::Tensor& t, c10::Device to) {
  uint64_t h = static_cast<uint64_t>(t.scalar_type());
  auto mix = [&](int64_t x) {
    h = (h ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15u; // Fibonacci hashing (Knuth, 6.4)
    h ^= h >> 32;
  };
  mix(t.storage_offset());
  for (const int64_t n : t.sizes()) mix(n);
  for (const int64_t n : t.strides()) mix(n);
  if (!to.is_cpu()) mix(c10::impl::getDeviceGuardImpl(to.type())->getStream(to).id());
  return h;
}

// A tensor made in inference mode could not share the copy's version counter.
at::Tensor object_over(const at::Tensor& values) {
  std::optional<c10::InferenceMode> off;
  if (C10_UNLIKELY(c10::InferenceMode::is_enabled())) off.emplace(false);
  auto* impl = values.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

} // namespace

struct Source {
  const c10::StorageImpl* storage;
  c10::weak_intrusive_ptr<c10::StorageImpl> address; // keeps the address from being used again
  uint64_t id = 0;

  explicit Source(const c10::Storage& s) : storage(s.unsafeGetStorageImpl()), address(s.getWeakStorageImpl()) {
    TORCH_CHECK_WITH(OutOfMemoryError, mgd_source_open(machine(), &id) == MGD_OK,
                     "managed: ", mgd_text_error(MGD_E_NOMEM));
  }
  ~Source() {
    Directory& d = directory();
    Dying dying;
    std::lock_guard<std::mutex> lock(d.mutex);
    const auto found = d.sources.find(storage);
    if (found != d.sources.end() && found->second.expired())
      d.sources.erase(found); // not its successor at the same address
    sources_alive = static_cast<int64_t>(d.sources.size());
    mgd_source_close(machine(), id);
    reap_locked(d, dying);
  }
};

namespace {

// The source of t's bytes. `retired` takes what must not die under the lock.
Source& source_locked(Directory& d, TensorState& state, const at::Tensor& t, std::shared_ptr<Source>& retired) {
  const c10::StorageImpl* storage = storage_of(t);
  if (state.source && state.source->storage == storage) return *state.source;
  retired = std::exchange(state.source, nullptr);
  auto& entry = d.sources[storage];
  state.source = entry.lock();
  if (!state.source) {
    entry = state.source = std::make_shared<Source>(t.storage());
    sources_alive = static_cast<int64_t>(d.sources.size());
  }
  return *state.source;
}

} // namespace

bool may_keep(const at::Tensor& t) {
  return t.storage().unsafeGetStorageImpl()->allocator() != nullptr && !t.is_conj() && !t.is_neg();
}

Replica find_replica(const at::Tensor& t, c10::Device to) {
  TensorState& state = make_state(t);
  const uint64_t extent = extent_of(t, to);
  Directory& d = directory();
  std::shared_ptr<Source> retired;
  Dying dying;
  Replica found;
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    const Source& source = source_locked(d, state, t, retired);
    if (mgd_replica_find(machine(), source.id, id_of(to), extent, &found.slot) == MGD_OK) {
      const Kept& kept = d.kept[found.slot].front();
      if (kept.serves(t)) {
        found.values = kept.values;
        found.trip_home = kept.trip_home.lock();
      } else {
        mgd_replica_drop(machine(), found.slot);
      }
    }
    reap_locked(d, dying);
  }
  if (!found.values.defined()) return Replica{};
  d.hits.fetch_add(1, std::memory_order_relaxed);
  found.values = object_over(found.values);
  return found;
}

bool has_replica(const at::Tensor& t, c10::Device to) {
  const uint64_t extent = extent_of(t, to);
  Directory& d = directory();
  std::shared_ptr<Source> source; // its destructor takes the lock
  std::lock_guard<std::mutex> lock(d.mutex);
  const auto entry = d.sources.find(storage_of(t));
  if (entry != d.sources.end()) source = entry->second.lock();
  int32_t slot = -1;
  return source && mgd_replica_peek(machine(), source->id, id_of(to), extent, &slot) == MGD_OK &&
      d.kept[slot].front().serves(t);
}

SourceMark mark_source(const at::Tensor& t, const at::Tensor& through) {
  TensorState& state = make_state(t);
  Directory& d = directory();
  std::shared_ptr<Source> retired;
  SourceMark mark;
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    mark.source = source_locked(d, state, t, retired).id;
    mgd_source_writes(machine(), mark.source, &mark.writes);
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    mark.version = counter.enabled() ? counter.current_version() : 0;
    mark.era = era_of(t);
  }
  if (may_change_unseen(t, through)) mark.source = 0; // tested last: a later exposure counts as a write
  return mark;
}

bool is_current(const SourceMark& mark, const at::Tensor& t) {
  const TensorState* state = state_of(t);
  if (!mark.source || !state || may_change_unseen(t, {})) return false;
  const auto& counter = t.unsafeGetTensorImpl()->version_counter();
  uint64_t writes = 0;
  std::lock_guard<std::mutex> lock(directory().mutex);
  return state->source && state->source->id == mark.source && state->source->storage == storage_of(t) &&
      mgd_source_writes(machine(), mark.source, &writes) == MGD_OK && writes == mark.writes && era_of(t) == mark.era &&
      (!counter.enabled() || counter.current_version() == mark.version);
}

Replica SourceSnapshot::keep(c10::Device to, const at::Tensor& copy) {
  if (!mark_.source) return {copy, {}, -1};
  Directory& d = directory();
  Dying dying;
  Replica made{copy, {}, -1};
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    const auto bytes = static_cast<int64_t>(copy.storage().nbytes());
    if (mgd_replica_add(machine(), mark_.source, mark_.writes, id_of(to), extent_of(t_, to), bytes, &made.slot) ==
        MGD_OK) {
      reap_locked(d, dying); // the copies that the new one replaces
      put_locked(d, made.slot, {copy, t_.unsafeGetTensorImpl()->version_counter(), mark_.version, mark_.era, {}},
                 dying);
    } else {
      made.slot = -1;
    }
  }
  if (made.slot >= 0) made.values = object_over(copy);
  return made;
}

void keep_trip_home(const Replica& replica, const NodeHold& node) {
  if (replica.slot < 0) return;
  Directory& d = directory();
  std::lock_guard<std::mutex> lock(d.mutex);
  for (Kept& kept : d.kept[replica.slot])
    if (storage_of(kept.values) == storage_of(replica.values)) kept.trip_home = node;
}

namespace {

// Whether the storage can have copies; lock-free. This file and exposure_table.cpp hold a weak reference to each
// storage that they know. The weak count includes all strong references as one, so a count of 1 means: no. Weak
// references from elsewhere only cost a look-up.
bool may_have_source(c10::StorageImpl* storage) {
  auto borrowed = c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage);
  const auto holders = borrowed.weak_use_count(); // all strong ones together are one of them
  borrowed.release();
  return holders > 1;
}

} // namespace

void invalidate_storage_copies(c10::StorageImpl* storage) noexcept {
  if (C10_LIKELY(!may_have_source(storage))) return;
  Directory& d = directory();
  Dying dying;
  std::shared_ptr<Source> source;
  std::lock_guard<std::mutex> lock(d.mutex);
  const auto found = d.sources.find(storage);
  if (found == d.sources.end()) return;
  source = found->second.lock();
  if (source) mgd_source_written(machine(), source->id);
  reap_locked(d, dying);
}

void invalidate_copies_slow(const at::Tensor& t) noexcept {
  if (t.defined()) each_storage(t, [](c10::StorageImpl* s) { invalidate_storage_copies(s); });
}

void give_up_replica_of(const at::Tensor& result) {
  if (!result.defined() || result.layout() != at::kStrided || !result.has_storage()) return;
  Directory& d = directory();
  Dying dying;
  std::lock_guard<std::mutex> lock(d.mutex);
  const auto found = d.copies.find(storage_of(result));
  if (found == d.copies.end()) return;
  tell_owner_of_copy(result.storage().unsafeGetStorageImpl(), false);
  mgd_replica_drop(machine(), found->second);
  reap_locked(d, dying);
}

void end_plain_era() { plain_era++; }

bool drop_replicas(int device, int64_t bytes, bool all, bool only_there) {
  Directory& d = directory();
  Dying dying;
  std::lock_guard<std::mutex> lock(d.mutex);
  const bool dropped = mgd_replica_make_room(machine(), device, bytes, all) == MGD_OK;
  reap_locked(d, dying); // a budget that has shrunk dooms copies without a request for room
  if (only_there) {
    for (auto before = dying.before_begin(), k = dying.begin(); k != dying.end(); k = std::next(before)) {
      if (id_of(k->values.device()) == device) before = k;
      else d.late.splice_after(d.late.before_begin(), dying, before);
    }
  }
  return dropped || !dying.empty();
}

void reap_replicas() {
  Directory& d = directory();
  Dying dying;
  std::lock_guard<std::mutex> lock(d.mutex);
  reap_locked(d, dying);
}

int64_t replica_hits() { return directory().hits; }

} // namespace managed
