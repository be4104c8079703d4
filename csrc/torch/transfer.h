// transfer.h: bytes on their way, and fork().
//
// What is planned or carried by a thread that the child lacks would be on its
// way for ever, so fork waits for it, and who comes meanwhile waits for fork.
#pragma once

namespace managed {

// Stands around the planning and carrying of whatever goes from one place to another. Nothing waits for another thread's operator inside.
class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  static thread_local int depth_; // to bring one thing home others may have to leave
};

} // namespace managed
