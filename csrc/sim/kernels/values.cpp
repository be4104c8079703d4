// values.cpp: see values.h.
//
// Addresses are cut from regions that the system reserves without memory. A region of large blocks faults on any access;
// one of small blocks takes memory where it is written. Beside each region stands a table with a byte for each unit of it,
// which says what is known of the block that has the unit; it takes memory where something is known, too.
#include "sim/values.h"

#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace managed::sim {

#ifndef MANAGED_VIRTUAL_GPU
bool values_held = true;
#endif

namespace {

constexpr std::size_t kUnit = 512;
constexpr std::size_t kMostFloating = 512;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kRegion = std::size_t{1} << 36;  // sanitizers have little room between their shadows
#else
constexpr std::size_t kRegion = std::size_t{1} << 40;
#endif
constexpr int kMostRegions = 96;

struct Region {
  char *begin, *end;
  std::atomic<uint8_t> *known;
};

struct Cut {
  char *next = nullptr, *end = nullptr;  // of the region that blocks are cut from now
};

struct Addresses {
  std::mutex mutex;
  Region regions[kMostRegions];
  std::atomic<int> count{0};  // regions below it do not change any more
  Cut small, large;
  std::unordered_map<std::size_t, std::vector<char *>> free;  // by size
};

Addresses &addresses() {
  static auto *const all = new Addresses;  // never destroyed: tensors may outlive static destructors
  return *all;
}

void *reserve(std::size_t bytes, int rights) {
  void *p = mmap(nullptr, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

// A region with room for a block of that size.
void begin_region_locked(Addresses &a, Cut &cut, std::size_t block, bool small) {
  const std::size_t size = std::max(kRegion, block);
  const int n = a.count.load(std::memory_order_relaxed);
  auto *begin = n < kMostRegions ? static_cast<char *>(reserve(size, small ? PROT_READ | PROT_WRITE : PROT_NONE)) : nullptr;
  auto *known = begin ? reserve(size / kUnit + 1, PROT_READ | PROT_WRITE) : nullptr;
  if (begin && !known) munmap(begin, size);
  TORCH_CHECK(known, "this process has no address space left for ", block, " bytes of simulated devices without values");
  a.regions[n] = {begin, begin + size, static_cast<std::atomic<uint8_t> *>(known)};  // the system's zeros are `nothing`
  a.count.store(n + 1, std::memory_order_release);
  cut = {begin, begin + size};
}

// Eight sizes for each power of two, so that blocks serve again.
std::size_t size_of_block(std::size_t bytes) {
  if (bytes <= kUnit) return kUnit;
  const std::size_t step = std::max(kUnit, (std::size_t{1} << c10::llvm::Log2_64(bytes)) / 8);
  return (bytes + step - 1) / step * step;
}

struct Block {
  char *at;
  std::size_t size;
};

void give_back(void *context) {
  auto *block = static_cast<Block *>(context);
  set_known_at(block->at, block->size, Known::nothing);
  Addresses &a = addresses();
  {
    std::lock_guard<std::mutex> held(a.mutex);
    a.free[block->size].push_back(block->at);
  }
  delete block;
}

std::atomic<uint8_t> *known_of(const void *address) {
  const auto *at = static_cast<const char *>(address);
  Addresses &a = addresses();
  const int n = a.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++) {
    const Region &r = a.regions[i];
    if (at >= r.begin && at < r.end) return &r.known[static_cast<std::size_t>(at - r.begin) / kUnit];
  }
  return nullptr;
}

thread_local bool computing = false;
std::atomic<bool> nothing_is_known{false};

}  // namespace

c10::DataPtr take_addresses(std::size_t bytes) {
  const std::size_t size = size_of_block(bytes);
  Addresses &a = addresses();
  auto *block = new Block{nullptr, size};
  c10::DataPtr owner(block, block, [](void *p) { delete static_cast<Block *>(p); }, c10::Device(c10::kCPU));
  {
    std::lock_guard<std::mutex> held(a.mutex);
    auto &kept = a.free[size];
    if (!kept.empty()) {
      block->at = kept.back();
      kept.pop_back();
    } else {
      const bool small = bytes <= kMostKnown;
      Cut &cut = small ? a.small : a.large;
      if (size > static_cast<std::size_t>(cut.end - cut.next)) begin_region_locked(a, cut, size, small);
      block->at = std::exchange(cut.next, cut.next + size);
    }
  }
  owner.release_context();
  return {block->at, block, &give_back, c10::Device(c10::kCPU)};
}

bool may_know(std::size_t bytes, bool floating) {
  return bytes <= (floating ? kMostFloating : kMostKnown) && !nothing_is_known.load(std::memory_order_relaxed);
}

void know_nothing(bool yes) { nothing_is_known = yes; }

bool is_address_only(const void *address) { return known_of(address) != nullptr; }

Known known_at(const void *address) {
  const auto *known = known_of(address);
  return known ? static_cast<Known>(known->load(std::memory_order_relaxed)) : Known::nothing;
}

void set_known_at(const void *begin, std::size_t bytes, Known now) {
  auto *known = known_of(begin);
  // Writing what is there already would take memory for the table.
  if (!known || known->load(std::memory_order_relaxed) == static_cast<uint8_t>(now)) return;
  for (std::size_t i = 0; i < (bytes + kUnit - 1) / kUnit; i++) known[i].store(static_cast<uint8_t>(now), std::memory_order_relaxed);
}

Computing::Computing(bool on) : before_(computing) { computing = on; }
Computing::~Computing() { computing = before_; }
bool Computing::now() { return computing; }

void hold_no_values() {
#ifndef MANAGED_VIRTUAL_GPU
  values_held = false;
#endif
  pthread_atfork([] { addresses().mutex.lock(); }, [] { addresses().mutex.unlock(); }, [] { addresses().mutex.unlock(); });
}

}  // namespace managed::sim
