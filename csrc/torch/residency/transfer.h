// transfer.h: keeps fork() and transfers of bytes apart.
//
// A forked child has only the thread that called fork(). A transfer that another thread was making would never end
// there. So fork() waits until no transfer is under way, at most kPatience (admission.h), and a transfer that begins
// meanwhile waits for fork().
#pragma once

namespace managed {

// Lives while a spill or a restore is planned and carried out. Meanwhile its thread must not wait for another thread's
// operator.
class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  static thread_local int depth_; // transfers nest: a restore may have to evict
};

// Registers fork()'s handlers and locks (forks.h). Call it when a backend is attached and its own locks are named.
void prepare_for_fork();

} // namespace managed
