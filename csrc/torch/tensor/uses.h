// uses.h: writes down which storages operators use, make and drop, and when the device comes to them: what a
// benchmark needs to compute the least that had to be moved. Off unless asked for.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace managed {

enum class UseKind : uint8_t { Made, Read, Written, Dropped };

extern std::atomic<bool> noting_uses;
// The same question for operators, asked once: somebody notes uses, or a device learns (steps.h).
extern std::atomic<bool> watching_uses;
void note_use_slow(const void* block, int64_t bytes, uint64_t tick, UseKind kind);
inline void log_use(const void* block, int64_t bytes, uint64_t tick, UseKind kind) {
  if (__builtin_expect(noting_uses.load(std::memory_order_relaxed), 0)) note_use_slow(block, bytes, tick, kind);
}

struct NotedUse {
  uint64_t storage; // numbered in the order in which they are met
  int64_t bytes;
  uint64_t tick;
  UseKind kind;
  double when; // ns from the beginning until the device comes to it
};
void begin_noting_uses();
std::vector<NotedUse> end_noting_uses(); // waits for the device

} // namespace managed
