// torture.h: for tests: everything that nobody uses leaves before an operator runs (managed.debug.torture).
#pragma once
#include <atomic>
#include <cstdint>

namespace managed {

extern std::atomic<uint32_t> torture_odds; // 0: off; n: each storage leaves with a chance of one in n

void torture_slow();
inline void torture_now() {
  if (__builtin_expect(torture_odds.load(std::memory_order_relaxed) != 0, 0)) torture_slow();
}

} // namespace managed
