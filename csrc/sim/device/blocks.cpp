// blocks.cpp: see blocks.h.
#include "sim/device/blocks.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <array>
#include <list>
#include <mutex>

#include "sim/device.h"

namespace managed::sim {
namespace {

constexpr std::size_t kLarge = std::size_t{1} << 20;  // the C library itself keeps smaller ones

struct Kept {
  std::size_t bytes;
  c10::DataPtr block;
};

struct Blocks {
  std::mutex mutex;
  std::array<std::list<Kept>, kMaxDevices> kept;  // oldest first
  std::array<std::size_t, kMaxDevices> bytes{};   // their sums
};

Blocks &blocks() {
  static auto *all = new Blocks;  // never destroyed: tensors may outlive static destructors
  return *all;
}

// The oldest go until there are no more than `room` bytes. They die when the lock is free.
void trim_locked(Blocks &b, int device, std::size_t room, std::list<Kept> &dying) {
  auto &kept = b.kept[device];
  while (b.bytes[device] > room) {
    b.bytes[device] -= kept.front().bytes;
    dying.splice(dying.end(), kept, kept.begin());
  }
}

std::size_t once_used(int device, std::size_t coming_back) {
  const Memory m = memory_of(device);
  return m.peak + coming_back > m.used ? m.peak + coming_back - m.used : 0;
}

}  // namespace

c10::DataPtr take_block(int device, std::size_t bytes) {
  std::list<Kept> dying;
  if (bytes >= kLarge) {
    Blocks &b = blocks();
    std::lock_guard<std::mutex> held(b.mutex);
    auto &kept = b.kept[device];
    for (auto at = kept.rbegin(); at != kept.rend(); at++) {
      if (at->bytes != bytes) continue;
      c10::DataPtr block = std::move(at->block);
      b.bytes[device] -= bytes;
      kept.erase(std::prev(at.base()));
      return block;
    }
    trim_locked(b, device, once_used(device, 0), dying);
  }
  dying.clear();
  return c10::GetCPUAllocator()->allocate(bytes);
}

void keep_block(int device, std::size_t bytes, c10::DataPtr &block) noexcept {
  if (bytes < kLarge || block.get_deleter() != c10::GetCPUAllocator()->raw_deleter()) return;
  std::list<Kept> dying;
  try {
    std::list<Kept> mine;
    mine.push_back({bytes, {}});
    Blocks &b = blocks();
    std::lock_guard<std::mutex> held(b.mutex);
    mine.back().block = std::move(block);
    b.kept[device].splice(b.kept[device].end(), mine);
    b.bytes[device] += bytes;
    trim_locked(b, device, once_used(device, bytes), dying);
  } catch (const std::bad_alloc &) {  // it is freed instead
  }
}

void forget_blocks() {
  Blocks &b = blocks();
  std::list<Kept> dying;
  std::lock_guard<std::mutex> held(b.mutex);
  for (int d = 0; d < kMaxDevices; d++) trim_locked(b, d, 0, dying);
}

void blocks_survive_fork() {
  pthread_atfork([] { blocks().mutex.lock(); }, [] { blocks().mutex.unlock(); }, [] { blocks().mutex.unlock(); });
}

}  // namespace managed::sim
