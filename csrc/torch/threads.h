// threads.h: what keeps a leaf still while somebody uses it.
//
// A leaf that moves by itself changes its storage and its device in place. So a
// thread says when it is inside an operator on managed tensors, and leaves move
// only while nobody else is inside one; who comes meanwhile waits.
#pragma once
#include <atomic>
#include <cstdint>

namespace managed {

// What one thread says of itself.
struct ThreadSlot {
  std::atomic<bool> inside{false};
  uint64_t seen = 0; // the state of moves when it last looked
  int depth = 0;     // of operators inside operators
};

extern std::atomic<uint64_t> settle_epoch; // moves that ended, times two; odd: one is under way
// Whether visitors make their word visible themselves, with a locked store. They need not where the kernel
// lets a mover do it for all threads at once: membarrier(2).
extern const bool operators_fence;
// One word of static thread-local storage: every operator reads it.
extern constinit thread_local ThreadSlot* thread_slot __attribute__((tls_model("initial-exec")));

__attribute__((cold, noinline)) ThreadSlot* register_thread();
__attribute__((cold, noinline)) void catch_up(ThreadSlot& slot); // waits, without the GIL, for a move that is under way

// Stands around each operator and each backward pass. The two accesses in sequence are what a mover relies on:
// either it sees us inside, or we see it.
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
    if (__builtin_expect(settle_epoch.load() != slot_->seen, 0)) {
      catch_up(*slot_);
      is_late_ = true;
    }
  }
  ~OperatorSection() {
    if (--slot_->depth == 0) slot_->inside.store(false, std::memory_order_release);
  }
  OperatorSection(const OperatorSection&) = delete;
  OperatorSection& operator=(const OperatorSection&) = delete;

  // Something has moved since this thread's last operator: what was read before, such as the call's key set, may be of no use.
  bool is_late() const { return is_late_; }

 private:
  ThreadSlot* slot_;
  bool is_late_ = false;
};

// While one of these says yes, no other thread is inside an operator.
class ExclusiveSection {
 public:
  ExclusiveSection();
  ~ExclusiveSection();
  ExclusiveSection(const ExclusiveSection&) = delete;
  ExclusiveSection& operator=(const ExclusiveSection&) = delete;
  explicit operator bool() const { return still_; }

 private:
  bool still_ = false;
};

} // namespace managed
