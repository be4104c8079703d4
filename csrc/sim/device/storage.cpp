// storage.cpp: see storage.h.
#include "sim/storage.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "sim/device/blocks.h"

namespace managed::sim {
namespace {

// What the DataPtr of a twin owns. The bytes go before the reservation, so that
// a device never promises memory the host has not got back yet.
struct TwinBytes {
  Reservation reservation;
  c10::DataPtr bytes;
  TwinBytes(int device, std::size_t n) : reservation(device, n) {}
  ~TwinBytes() { keep_block(reservation.device(), reservation.bytes(), bytes); }
};

void drop_bytes(void *p) { delete static_cast<TwinBytes *>(p); }
void drop_twin(void *p) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl *>(p)); }

c10::DataPtr own_bytes(std::unique_ptr<TwinBytes> own) {
  void *data = own->bytes.get();
  return {data, own.release(), &drop_bytes, c10::Device(c10::kCPU)};
}

// Two whole blocks; the second may be larger.
void copy_block(void *to, const void *from, std::size_t n) {
  const Known known = holds_values() ? Known::values : known_at(from);
  if (known == Known::values) std::memcpy(to, from, n);
  if (!holds_values()) set_known_at(to, n, known);
}

// A twin's allocator: a CPU kernel that grows its result allocates through it,
// so that a device without room says so before anything was changed.
struct TwinAllocator final : c10::Allocator {
  int device = 0;
  c10::DataPtr allocate(std::size_t n) override {
    auto own = std::make_unique<TwinBytes>(device, n);  // reserve before touching the host's memory
    own->bytes = holds_values() || (Computing::now() && n > kMostKnown) ? take_block(device, n) : take_addresses(n);
    return own_bytes(std::move(own));
  }
  void copy_data(void *to, const void *from, std::size_t n) const override { copy_block(to, from, n); }
};

TwinAllocator *twin_allocator(int device) {
  static TwinAllocator *const all = [] {
    auto *a = new TwinAllocator[kMaxDevices];
    for (int i = 0; i < kMaxDevices; i++) a[i].device = i;
    return a;
  }();
  return &all[device];
}

c10::DataPtr sim_pointer(c10::Storage twin, int device) {
  void *data = const_cast<void *>(twin.unsafeGetStorageImpl()->data());
  return {data, twin.unsafeReleaseStorageImpl(), &drop_twin, device_at(device)};
}

c10::Storage new_twin(int device, std::size_t n) {
  auto *a = twin_allocator(device);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), n, a->allocate(n), a, true);
}

c10::Storage over(c10::Storage twin, int device) {
  const std::size_t n = twin.nbytes();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), n, sim_pointer(std::move(twin), device), allocator_of(device), true);
}

struct SimAllocator final : c10::Allocator {
  int device = 0;
  c10::DataPtr allocate(std::size_t n) override { return sim_pointer(new_twin(device, n), device); }
  void copy_data(void *to, const void *from, std::size_t n) const override { copy_block(to, from, n); }
};

struct CurrentDeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t n) override { return allocator_of(current_device())->allocate(n); }
  void copy_data(void *to, const void *from, std::size_t n) const override { copy_block(to, from, n); }
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t) override { forget_blocks(); }
  void recordStream(const c10::DataPtr &pointer, c10::Stream s) override { note_use(pointer, static_cast<int>(s.id())); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override {
    check_device(d);
    return stats_of(d);
  }
  void resetAccumulatedStats(c10::DeviceIndex d) override {
    check_device(d);
    reset_accumulated(d);
  }
  void resetPeakStats(c10::DeviceIndex d) override {
    check_device(d);
    reset_peak(d);
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex d) override {
    check_device(d);
    const Memory m = memory_of(d);
    const std::size_t used = m.used + m.foreign;
    return {m.capacity - std::min(m.capacity, used), m.capacity};
  }
};

bool hook_keeps_block(c10::StorageImpl *sim) { return bridge().head && sim->_mutable_data_ptr_no_checks().get_deleter() == bridge().head; }

// The block of a storage: its own pointer, or the one that the managed hook keeps for it.
const c10::DataPtr &block_of(c10::StorageImpl *sim) {
  const auto &pointer = sim->_mutable_data_ptr_no_checks();
  return hook_keeps_block(sim) ? static_cast<Head *>(pointer.get_context())->block : pointer;
}

}  // namespace

c10::DeviceAllocator *device_allocator() {
  static auto *const a = new CurrentDeviceAllocator;
  return a;
}

c10::Allocator *allocator_of(int device) {
  static SimAllocator *const all = [] {
    auto *a = new SimAllocator[kMaxDevices];
    for (int i = 0; i < kMaxDevices; i++) a[i].device = i;
    return a;
  }();
  return &all[device];
}

c10::Storage new_storage(int device, std::size_t bytes) { return over(new_twin(device, bytes), device); }

namespace {

c10::Storage adopt_known(const c10::Storage &cpu, int device, bool floating) {
  c10::Storage sim = new_storage(device, cpu.nbytes());
  if (may_know(cpu.nbytes(), floating) && cpu.nbytes()) {
    std::memcpy(sim.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(), cpu.data(), cpu.nbytes());
    set_known(sim, Known::values);
  }
  return sim;
}

}  // namespace

c10::Storage adopt(c10::Storage cpu, int device, bool floating) {
  if (!holds_values()) return cpu.device_type() == c10::kMeta ? new_storage(device, cpu.nbytes()) : adopt_known(cpu, device, floating);
  auto *impl = cpu.unsafeGetStorageImpl();
  auto &pointer = impl->_mutable_data_ptr_no_checks();
  // The context tells: an earlier adoption of this very storage has reserved its bytes.
  if (pointer.get_deleter() != &drop_bytes) {
    auto own = std::make_unique<TwinBytes>(device, impl->nbytes());
    own->bytes = std::move(pointer);
    pointer = own_bytes(std::move(own));
    impl->set_allocator(twin_allocator(device));
  }
  return over(std::move(cpu), device);
}

c10::Storage bare_storage(int device, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, device_at(device)), allocator_of(device), false);
}

bool owns(const c10::DataPtr &pointer) { return pointer.get_context() && pointer.get_deleter() == &drop_twin; }

bool is_shared(const c10::DataPtr &pointer) { return c10::raw::intrusive_ptr::use_count(static_cast<c10::StorageImpl *>(pointer.get_context())) != 1; }

bool may_move(const c10::Storage &sim) { return hook_keeps_block(sim.unsafeGetStorageImpl()); }

c10::Storage twin_of(const c10::Storage &sim) {
  const auto &pointer = block_of(sim.unsafeGetStorageImpl());
  if (!owns(pointer)) return {};
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl *>(pointer.get_context()));
}

c10::Storage look_at(const c10::Storage &sim, bool reads) {
  const void *data =
      reads ? sim.unsafeGetStorageImpl()->data() : nullptr; // throws the hook's error for bytes that it moved
  TORCH_CHECK(data || !reads || !sim.nbytes(), "this storage of ", sim.nbytes(), " bytes on ", sim.device(),
              " has no memory: its bytes were released while a tensor still used them");
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), sim.nbytes(), c10::DataPtr(const_cast<void *>(data), c10::Device(c10::kCPU)),
                                               c10::GetCPUAllocator(), true);
}

c10::Storage form_of(const c10::Storage &sim) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), sim.nbytes(), c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                               c10::GetAllocator(c10::kMeta), true);
}

Known known_of(const c10::Storage &sim) {
  return sim.nbytes() ? known_at(block_of(sim.unsafeGetStorageImpl()).get()) : Known::values;
}

void set_known(const c10::Storage &sim, Known known) {
  set_known_at(block_of(sim.unsafeGetStorageImpl()).get(), sim.nbytes(), known);
}

void forget_bytes(c10::StorageImpl *sim, std::size_t bytes) { put_block(sim, new_twin(sim->device().index(), bytes)); }

namespace {

Reservation *reservation_of_twin(c10::StorageImpl *twin) {
  const auto &bytes = twin->_mutable_data_ptr_no_checks();
  return bytes.get_deleter() == &drop_bytes ? &static_cast<TwinBytes *>(bytes.get_context())->reservation : nullptr;
}

// The bytes that a pointer of a device stands for; null if they are foreign.
Reservation *reservation_of(const c10::DataPtr &pointer) {
  const bool kept = bridge().head && pointer.get_deleter() == bridge().head;
  const auto &block = kept ? static_cast<Head *>(pointer.get_context())->block : pointer;
  return owns(block) ? reservation_of_twin(static_cast<c10::StorageImpl *>(block.get_context())) : nullptr;
}

}  // namespace

void note_use(const c10::DataPtr &pointer, int stream) {
  if (const Reservation *r = reservation_of(pointer)) r->used_on(stream);
}

void hand_over(const c10::DataPtr &pointer, int stream, bool alone) {
  if (const Reservation *r = reservation_of(pointer)) r->hand_over(stream, alone);
}

void stay_until(const c10::DataPtr &pointer, std::shared_ptr<const mgd_moment> end) {
  if (Reservation *r = reservation_of(pointer)) r->stay_until(std::move(end));
}

void note_written(const c10::DataPtr &pointer, int stream) {
  if (Reservation *r = reservation_of(pointer)) r->written_by(stream);
}

void note_twin_written(const c10::Storage &twin, int stream) {
  if (Reservation *r = reservation_of_twin(twin.unsafeGetStorageImpl())) r->written_by(stream);
}

const mgd_moment *written(const c10::DataPtr &pointer) {
  const Reservation *r = reservation_of(pointer);
  return r ? r->written() : nullptr;
}

void note_owner(const c10::DataPtr &block, mgd_hold_owner owner) {
  if (const Reservation *r = reservation_of(block)) r->belongs_to(owner);
}

void note_use(c10::StorageImpl *sim, int stream) { note_use(sim->_mutable_data_ptr_no_checks(), stream); }

void note_write(c10::StorageImpl *sim) {
  if (hook_keeps_block(sim)) bridge().wrote(sim);
}

void note_collective(c10::StorageImpl *sim) {
  if (bridge().collective_wrote) bridge().collective_wrote(sim);
}

void put_block(c10::StorageImpl *sim, c10::Storage twin) {
  const std::size_t n = twin.nbytes();
  c10::DataPtr block = sim_pointer(std::move(twin), sim->device().index());
  if (hook_keeps_block(sim)) return bridge().replace(sim, std::move(block), n);
  sim->set_data_ptr_noswap(std::move(block));
  sim->set_nbytes(n);
}

void follow_twin(c10::StorageImpl *sim, const c10::Storage &twin) {
  auto *t = twin.unsafeGetStorageImpl();
  if (twin.device_type() == c10::kMeta) { // it tells a size
    if (sim->nbytes() != t->nbytes()) forget_bytes(sim, t->nbytes());
    return;
  }
  if (sim->_mutable_data_ptr_no_checks().get() == t->data() && sim->nbytes() == t->nbytes()) return;
  put_block(sim, twin);
}

void resize_storage(const c10::Storage &sim, std::size_t bytes) {
  TORCH_CHECK(sim.resizable(), "Trying to resize storage that is not resizable");
  auto *impl = sim.unsafeGetStorageImpl();
  const int device = sim.device().index();
  c10::Storage fresh = new_twin(device, bytes);
  const std::size_t kept = std::min(bytes, sim.nbytes());
  if (kept && holds_values()) std::memcpy(fresh.mutable_data(), impl->data(), kept);
  else if (kept && known_of(sim) == Known::values && kept == bytes) copy_block(fresh.mutable_data(), block_of(impl).get(), kept);
  put_block(impl, std::move(fresh));
}

}  // namespace managed::sim
