// threads.h: which threads of the program use managed tensors.
//
// A leaf that moves by itself changes its storage and its device under whoever
// reads it. Nobody can tell what another thread is reading, so leaves move only
// while there is no other thread.
#pragma once

namespace managed {

// One byte of static thread-local storage: every operator reads it.
extern constinit thread_local bool thread_counted __attribute__((tls_model("initial-exec")));

// Counts this thread until it ends; true when it had to wait for a leaf that was
// moving, so that what it read before is of no use. The engine's threads work
// for a thread that waits for them, and are not counted.
__attribute__((cold, noinline)) bool count_thread_slow();
inline bool count_thread() { return __builtin_expect(!thread_counted, 0) && count_thread_slow(); }

// While one of these says yes, no other thread of the program uses managed
// tensors: those that begin to wait, without the GIL, until it has gone.
class OnlyThread {
 public:
  OnlyThread();
  ~OnlyThread();
  OnlyThread(const OnlyThread&) = delete;
  OnlyThread& operator=(const OnlyThread&) = delete;
  explicit operator bool() const { return alone_; }

 private:
  bool alone_;
};

} // namespace managed
