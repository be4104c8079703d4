// transfer.h: fork() and bytes that are on their way between two places.
//
// A forked child has only the thread that called fork(). Bytes that another thread was carrying would be on their
// way for ever there. So fork() waits until no transfer is under way, and a transfer that begins meanwhile waits for
// fork().
#pragma once

namespace managed {

// Stands around the planning and the carrying out of a spill or a restore. Inside, nothing may wait for another
// thread's operator.
class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  static thread_local int depth_; // to bring one thing home others may have to leave
};

// Makes what fork() has to know of, now that a backend is attached and its own locks are named (forks.h).
void prepare_for_fork();

} // namespace managed
