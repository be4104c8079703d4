// turns.h: where room is short, operators that hold storages run one after the other.
//
// Two that each hold their operands and need room for results would wait for
// each other for ever, and neither can be run again: it may have written. So for
// some time after a storage had to leave, an operator takes the only turn there is
// before it holds anything, and waits for it with empty hands. It is an advice and
// no lock: who has had it for too long, because it waits for
// another operator inside its own, is passed by.
#pragma once
#include <atomic>
#include <cstdint>

#include "storage.h"

namespace managed {

constexpr int64_t kPatience = 2'000'000'000; // ns to wait for others before what needs their room fails

extern std::atomic<uint64_t> short_until; // tick
inline bool room_is_short() { return __atomic_load_n(&ticks, __ATOMIC_RELAXED) < short_until.load(std::memory_order_relaxed); }
void note_shortage();

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
