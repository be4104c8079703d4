// forks.h: makes locks free, and condition variables without waiters, in a child of fork().
//
// The child has one thread, and a lock that another thread held would never be released there. If lock B is taken while
// lock A is held, survive_fork() must be called for B first.
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
// locks are named before these, because some are taken while one of these is held. Use it only at namespace scope.
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

// Called in the child; makes the condition variable anew without destroying it. glibc's counts its waiters, and
// notify_all() and the destructor wait for woken threads, which the child lacks.
inline void forget_waiters(std::condition_variable& c) { new (&c) std::condition_variable; }

} // namespace managed
