// hooks.cpp: what torch asks a backend in general: presence, generators, pinned memory.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "sim/generator.h"
#include "sim/device/register.h"
#include "sim/storage.h"

namespace managed::sim {
namespace {

// Pinned memory is ordinary memory whose addresses are remembered.
class PinnedMemory {
 public:
  void add(void *p, size_t n) {
    std::lock_guard<std::mutex> held(lock_);
    blocks_[p] = n;
  }
  void remove(void *p) {
    std::lock_guard<std::mutex> held(lock_);
    blocks_.erase(p);
  }
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  // Addresses inside a block count: views of a pinned tensor are pinned.
  bool holds(const void *p) {
    std::lock_guard<std::mutex> held(lock_);
    auto after = blocks_.upper_bound(p);
    if (after == blocks_.begin()) return false;
    const auto &[start, size] = *--after;
    return static_cast<const char *>(p) < static_cast<const char *>(start) + std::max<size_t>(size, 1);
  }

 private:
  std::mutex lock_;
  std::map<const void *, size_t> blocks_;
};

PinnedMemory &pinned() {
  static auto *const memory = new PinnedMemory;
  return *memory;
}

void unpin(void *p) {
  pinned().remove(p);
  c10::GetCPUAllocator()->raw_deallocate(p);
}

// A pinning thread may be at work when a data loader forks its workers.
void lock_pinned() { pinned().lock(); }
void unlock_pinned() { pinned().unlock(); }

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t n) override {
    void *p = c10::GetCPUAllocator()->raw_allocate(std::max<size_t>(n, 1));
    c10::DataPtr own(p, p, &unpin, c10::Device(c10::kCPU));  // first, so that a failure below frees it
    pinned().add(p, n);
    return own;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
  bool record_event(void *, void *, c10::Stream) override { return true; }  // copies have finished when they return
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator *pinned_allocator() {
  static auto *const a = new PinnedAllocator;
  return a;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex d) const override { return default_generator(d); }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return new_generator(d); }
  bool isPinnedPtr(const void *p) const override { return pinned().holds(p); }
  c10::Allocator *getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  void setCurrentDevice(c10::DeviceIndex d) const override {
    check_device(d);
    set_current_device(d);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    const auto before = getCurrentDevice();
    if (d >= 0) setCurrentDevice(d);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  c10::Device getDeviceFromPtr(void *) const override {
    TORCH_CHECK(false, "memory of other libraries cannot become a tensor on a simulated device: make a CPU tensor of it and copy that");
  }
  void resizePrivateUse1Bytes(const c10::Storage &s, size_t n) const override { resize_storage(s, n); }
};

}  // namespace

void register_hooks() {
  at::setHostAllocator(kDevice, pinned_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  pthread_atfork(&lock_pinned, &unlock_pinned, &unlock_pinned);
}

}  // namespace managed::sim
