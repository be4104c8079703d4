// forks.h: locks that a child of fork() finds free, and nobody who waits.
//
// The child has one thread, and a lock that another held would never be given
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

// In the child: glibc's counts the threads that wait in it and waits in notify_all() for those that it woke before,
// which the child lacks; its destructor would wait as well.
inline void forget_waiters(std::condition_variable& c) { new (&c) std::condition_variable; }

} // namespace managed
