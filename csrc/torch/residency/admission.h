// admission.h: where room is short, operators that hold storages of one device run one after the other.
//
// Two operators that each hold their operands and need room for their results would wait for
// each other for ever. Neither can be stopped and run again, since it may have written.
//
// Each device has one turn for all threads. For some time after a storage had to leave it, an operator takes the turn
// before it uses its first operand, and keeps it until its results have handles. One that copies to another device
// takes the turns of both, the lower id first, so that no two operators wait for each other. A turn is advice and no
// lock: after kPatience the next operator goes on without it, because the one that has it may be waiting for another
// thread's operator.
#pragma once
#include <atomic>
#include <cstdint>

#include "torch/tensor/storage.h"

namespace managed {

constexpr int64_t kPatience = 2'000'000'000; // ns to wait for others before what needs their room fails

extern std::atomic<uint64_t> short_until; // tick, of whichever device is short for longest
inline bool room_is_short() {
  return __atomic_load_n(&ticks, __ATOMIC_RELAXED) < short_until.load(std::memory_order_relaxed);
}
void begin_turns(int device);

// The turns of an operator, which may outlive its use of operands: until what it made can leave, too.
class Turn {
 public:
  explicit Turn(int target = MGD_HOST) : target_(target) {} // the device that it copies to
  ~Turn() {
    if (C10_UNLIKELY(has_ != 0)) give();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // Takes the turns of its target and of `device`, where room is short, or goes on without. Not for a thread that has
  // one.
  void take(int device);
  mgd_mask has() const { return has_; }

 private:
  void give();
  const int target_;
  mgd_mask has_ = 0;
};

// In a child of fork(), which has this thread and no other. `kept`: the turns of this thread.
void forget_turns(mgd_mask kept);

} // namespace managed
