// admission.h: serialises operators that hold storages of one device while its room is short.
//
// Two operators that each hold their operands and need room for their results would deadlock. Neither can be stopped
// and run again, since it may have written.
//
// Each device has one turn for all threads. For some time after the device ran out of room, an operator takes the turn
// before it uses its first operand, and keeps it until its results have handles. An operator that copies to another
// device takes both turns, the lower id first, so that no two operators wait for each other. A turn is advice and no
// lock: after kPatience the next operator goes on without it, because the operator that has the turn may be waiting for
// another thread's operator.
#pragma once
#include <atomic>
#include <cstdint>

#include "torch/tensor/storage.h"

namespace managed {

constexpr int64_t kPatience = 2'000'000'000; // ns to wait for other threads' room before an operator fails

extern std::atomic<uint64_t> short_until; // the tick until which any device counts as short of room
inline bool room_is_short() {
  return __atomic_load_n(&ticks, __ATOMIC_RELAXED) < short_until.load(std::memory_order_relaxed);
}
void begin_turns(int device);

// The turns of an operator. They may outlive its use of operands, until its results can leave too.
class Turn {
 public:
  explicit Turn(int target = MGD_HOST) : target_(target) {} // target: the device that it copies to
  ~Turn() {
    if (C10_UNLIKELY(has_ != 0)) give();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // Takes the turns of its target and of `device` if their room is short; may return without them (kPatience). The
  // thread must have no turn yet.
  void take(int device);
  mgd_mask has() const { return has_; }

 private:
  void give();
  const int target_;
  mgd_mask has_ = 0;
};

// Called in a child of fork(): frees the turns of the threads that it lacks. `kept`: the turns of this thread.
void forget_turns(mgd_mask kept);

} // namespace managed
