// threads.h: a tensor does not change by itself while an operator of another thread uses it.
//
// Two changes are made to tensors that other threads may know: a tensor moves to another device by itself (move.cpp),
// and a storage gets its handle (adopt.cpp). Each thread marks the time that it is inside an operator on managed
// tensors (OperatorSection). Such a change is made only while no other thread is inside one (ExclusiveSection); an
// operator that begins meanwhile waits. This is a readers-writer lock in which readers write to no shared memory. A
// move that the program asks for takes no section: torch leaves such races to the program.
#pragma once
#include <atomic>
#include <cstdint>

namespace managed {

// The state of one thread. Only that thread writes it; exclusive sections of other threads read `inside`.
struct ThreadSlot {
  std::atomic<bool> inside{false};
  uint64_t seen = 0; // exclusive_epoch when the thread last read it
  int depth = 0;     // how many operators of the thread are nested now
};

extern std::atomic<uint64_t> exclusive_epoch; // twice the exclusive sections that ended; odd: one is under way
// True: each operator orders its write of `inside` before its read of the epoch with a locked store. False, on kernels
// with membarrier(2): an exclusive section does that for all threads at once, and operators store without a fence.
extern const bool operators_fence;
// It is in static thread-local storage, because every operator reads it.
extern constinit thread_local ThreadSlot* thread_slot __attribute__((tls_model("initial-exec")));

__attribute__((cold, noinline)) ThreadSlot* register_thread();
__attribute__((cold, noinline)) void catch_up(
    ThreadSlot& slot); // waits, without the GIL, for an exclusive section that is under way

// Lives during each operator and each backward pass. It writes `inside` and then reads exclusive_epoch; an exclusive
// section writes exclusive_epoch and then reads `inside`. So at least one of the two sees the other.
class OperatorSection {
 public:
  OperatorSection() : slot_(thread_slot) {
    if (__builtin_expect(!slot_, 0)) slot_ = register_thread();
    if (slot_->depth++ != 0) return;
    if (__builtin_expect(operators_fence, 0)) {
      slot_->inside.store(true);
    } else {
      slot_->inside.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (__builtin_expect(exclusive_epoch.load() != slot_->seen, 0)) {
      catch_up(*slot_);
      is_late_ = true;
    }
  }
  ~OperatorSection() {
    if (--slot_->depth == 0) slot_->inside.store(false, std::memory_order_release);
  }
  OperatorSection(const OperatorSection&) = delete;
  OperatorSection& operator=(const OperatorSection&) = delete;

  // Whether a tensor may have moved since this thread's last operator. Then data read before, such as the call's key
  // set, may be stale.
  bool is_late() const { return is_late_; }

 private:
  ThreadSlot* slot_;
  bool is_late_ = false;
};

// While such an object is true, no other thread is inside an operator. False: another thread is inside one or in
// another exclusive section, or this thread is in a backward pass. The constructor does not wait.
class ExclusiveSection {
 public:
  ExclusiveSection();
  ~ExclusiveSection();
  ExclusiveSection(const ExclusiveSection&) = delete;
  ExclusiveSection& operator=(const ExclusiveSection&) = delete;
  explicit operator bool() const { return alone_; }

 private:
  bool alone_ = false;
};

} // namespace managed
