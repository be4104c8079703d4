// faults.h: for tests: allocations and copies that fail because somebody asked for it.
//
// Owns which ones fail, and counts. Nothing is counted while nobody asks.
#pragma once
#include <atomic>
#include <cstdint>

namespace managed::sim {

enum class Fault { Allocation, Copy };

// The `first` to the `last` of a kind fail, counted from 1 since `seen` was 0; none when first is 0.
struct Faults {
  std::int64_t first, last, seen;
};

// Asks for these from now on and returns what was asked for before. Another thread that is just counting may count
// for either.
Faults exchange_faults(Fault kind, const Faults &asked);

extern std::atomic<bool> faults_asked[2];

bool count_fault(Fault kind);

// Called before each allocation or copy: whether this one is to fail.
inline bool fails_now(Fault kind) {
  return __builtin_expect(faults_asked[static_cast<int>(kind)].load(std::memory_order_relaxed), 0) && count_fault(kind);
}

}  // namespace managed::sim
