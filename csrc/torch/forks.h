// forks.h: locks that a child of fork() finds free.
//
// The child has one thread, and a lock that another held would never be given
// back. A lock that is taken while another is held must be named here earlier.
#pragma once
#include <pthread.h>

#include <mutex>

namespace managed {

template <std::mutex& (*mutex)()>
void survive_fork() {
  pthread_atfork([] { mutex().lock(); }, [] { mutex().unlock(); }, [] { mutex().unlock(); });
}

} // namespace managed
