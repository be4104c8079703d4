// torture.h: for tests: evicts unused storages before each operator (managed.debug.torture).
#pragma once
#include <atomic>
#include <cstdint>

namespace managed {

extern std::atomic<uint32_t> torture_odds; // 0: off; n: each storage is evicted with a chance of one in n

void torture_slow();
inline void torture_now() {
  if (__builtin_expect(torture_odds.load(std::memory_order_relaxed) != 0, 0)) torture_slow();
}

} // namespace managed
