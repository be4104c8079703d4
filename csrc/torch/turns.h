// turns.h: where room is short, operators that hold storages run one after the other.
//
// Two operators that each hold their operands and need room for their results would wait for
// each other for ever. Neither can be stopped and run again, since it may have written.
//
// There is one turn for all threads. For some time after a storage had to leave, an operator takes the turn before it
// uses its first operand, and keeps it until its results have handles. The turn is advice and no lock: after kPatience
// the next operator goes on without it, because the one that has it may be waiting for another thread's operator.
#pragma once
#include <atomic>
#include <cstdint>

#include "storage.h"

namespace managed {

constexpr int64_t kPatience = 2'000'000'000; // ns to wait for others before what needs their room fails

extern std::atomic<uint64_t> short_until; // tick
inline bool room_is_short() {
  return __atomic_load_n(&ticks, __ATOMIC_RELAXED) < short_until.load(std::memory_order_relaxed);
}
void begin_turns();

// The turn of an operator, which may outlive its use of operands: until what it made can leave, too.
class Turn {
 public:
  Turn() = default;
  ~Turn() {
    if (C10_UNLIKELY(has_)) give();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  void take(); // or goes on without; not for a thread that has it
  bool has() const { return has_; }

 private:
  void give();
  bool has_ = false;
};

// In a child of fork(), which has this thread and no other.
void forget_turns(bool has_turn);

} // namespace managed
