// faults.h: for tests: makes chosen allocations and copies fail.
//
// Owns which ones fail, and their counts. Nothing is counted while no failure is requested.
#pragma once
#include <atomic>
#include <cstdint>

namespace managed::sim {

enum class Fault { Allocation, Copy };

// The `first` to the `last` of a kind fail, counted from 1 since `seen` was 0; none fails if first is 0.
struct Faults {
  std::int64_t first, last, seen;
};

// Sets the faults from now on and returns the previous ones. What another thread counts at the same time may count for
// either.
Faults exchange_faults(Fault kind, const Faults &asked);

extern std::atomic<bool> faults_asked[2];

bool count_fault(Fault kind);

// Must be called before each allocation or copy. True: this one has to fail.
inline bool fails_now(Fault kind) {
  return __builtin_expect(faults_asked[static_cast<int>(kind)].load(std::memory_order_relaxed), 0) && count_fault(kind);
}

}  // namespace managed::sim
