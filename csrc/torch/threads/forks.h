// forks.h: locks that a child of fork() finds free, and no thread that waits.
//
// The child has one thread, and a lock that another thread held would never be given
// back. A lock that is taken while another is held must be named here earlier.
#pragma once
#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>

namespace managed {

template <std::mutex& (*mutex)()>
void survive_fork() {
  pthread_atfork([] { mutex().lock(); }, [] { mutex().unlock(); }, [] { mutex().unlock(); });
}

// Makes an object with such a lock when a backend is attached (attach.cpp). If a thread made the object at its first
// use while another thread forks, the child would wait for ever for the first thread to finish it. The backend's own
// locks are named before these, because some are taken while one of these is held. Objects of namespace scope only.
class MadeAtStart {
 public:
  explicit MadeAtStart(void (*make)()) : make_(make), next_(first_) { first_ = this; }
  static void make_all() {
    for (const MadeAtStart* o = first_; o; o = o->next_) o->make_();
  }

 private:
  void (*make_)();
  const MadeAtStart* next_;
  static inline constinit const MadeAtStart* first_ = nullptr;
};

// In the child: glibc's counts the threads that wait in it and waits in notify_all() for those that it woke before,
// which the child lacks; its destructor would wait as well.
inline void forget_waiters(std::condition_variable& c) { new (&c) std::condition_variable; }

} // namespace managed
