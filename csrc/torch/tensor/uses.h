// uses.h: records which storages operators use, make and drop, and when the device gets there. A benchmark computes
// from this how few bytes had to be moved. It is off until begin_noting_uses().
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace managed {

enum class UseKind : uint8_t { Made, Read, Written, Dropped };

extern std::atomic<bool> noting_uses;
// Whether uses are noted or a device learns (steps.h): operators read this one flag.
extern std::atomic<bool> watching_uses;
void note_use_slow(const void* block, int64_t bytes, uint64_t tick, UseKind kind);
inline void log_use(const void* block, int64_t bytes, uint64_t tick, UseKind kind) {
  if (__builtin_expect(noting_uses.load(std::memory_order_relaxed), 0)) note_use_slow(block, bytes, tick, kind);
}

struct NotedUse {
  uint64_t storage; // a number: storages are numbered in the order of their first use
  int64_t bytes;
  uint64_t tick;
  UseKind kind;
  double when; // ns from the beginning until the device reaches the use
};
void begin_noting_uses();
std::vector<NotedUse> end_noting_uses(); // waits for the device

} // namespace managed
