// turns.h: where room is short, operators that hold storages run one after the other.
//
// Two operators that each hold their operands and need room for their results would wait for
// each other for ever. Neither can be stopped and run again, since it may have written.
// So for some time after a storage had to leave, an operator takes the turn, of which there is one,
// before it holds anything. It waits for the turn while it holds nothing. The turn is advice and
// no lock: an operator that has had it for too long, because it waits for
// another operator inside its own, is passed by.
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
