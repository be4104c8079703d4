// raw.cpp: see raw.h.
#include "sim/device/raw.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>

#include "sim/device.h"
#include "sim/device/timeline.h"
#include "sim/storage.h"
#include "sim/values.h"

namespace managed::sim {
namespace {

// The bytes go before the reservation, as a twin's do.
struct RawBytes {
  Reservation reservation;
  c10::DataPtr bytes;
  RawBytes(int device, std::size_t n) : reservation(Reservation::Foreign{}, device, n) {}
};

struct Given {
  std::mutex lock;  // no other is taken inside
  std::unordered_map<void *, std::unique_ptr<RawBytes>> raw;
  std::unordered_map<void *, c10::DataPtr> caching;
};

Given &given() {
  static auto *all = new Given;  // never destroyed: programs free late
  return *all;
}

template <class T>
void *keep(std::unordered_map<void *, T> &kept, void *address, T bytes) {
  const std::lock_guard<std::mutex> held(given().lock);
  kept.emplace(address, std::move(bytes));
  return address;
}

// The bytes die when the lock is free.
template <class T>
void let_go(std::unordered_map<void *, T> &kept, void *address, const char *what) {
  if (!address) return;
  T dying;
  const std::lock_guard<std::mutex> held(given().lock);
  const auto found = kept.find(address);
  TORCH_CHECK_VALUE(found != kept.end(), address, " is no address that torch.sim.", what,
                    "() gave, or was freed before");
  dying = std::move(found->second);
  kept.erase(found);
}

}  // namespace

void *raw_alloc(int device, std::size_t bytes) {
  if (!bytes) return nullptr;
  try {
    auto own = std::make_unique<RawBytes>(device, bytes);
    own->bytes = holds_values() ? c10::GetCPUAllocator()->allocate(bytes) : take_addresses(bytes);
    void *address = own->bytes.get();
    return keep(given().raw, address, std::move(own));
  } catch (const std::bad_alloc &) { return nullptr; }
}

void raw_free(void *address) { let_go(given().raw, address, "raw_alloc"); }

void *caching_alloc(int device, std::size_t bytes, int stream) {
  if (!bytes) return nullptr;
  const TakenBy taker(stream);
  c10::DataPtr block = allocator_of(device)->allocate(bytes);
  void *address = block.get();
  return keep(given().caching, address, std::move(block));
}

void caching_delete(void *address) { let_go(given().caching, address, "caching_allocator_alloc"); }

void raw_survives_fork() {
  pthread_atfork([] { given().lock.lock(); }, [] { given().lock.unlock(); }, [] { given().lock.unlock(); });
}

}  // namespace managed::sim
