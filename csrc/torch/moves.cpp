// moves.cpp: see moves.h.
#include "moves.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "forks.h"
#include "host_memory.h"
#include "turns.h"

namespace managed {

namespace {

struct Moves {
  std::mutex mutex; // a leaf
  std::condition_variable changed;
  int running = 0;
  bool forking = false;
};

Moves& moves();

// A mover may be waiting for the GIL, which the forking thread has: it does not wait for ever.
void fork_begins() {
  std::unique_lock<std::mutex> lock(moves().mutex);
  moves().forking = true;
  moves().changed.wait_for(lock, std::chrono::nanoseconds(kPatience), [] { return moves().running == 0; });
  lock.release(); // held until both sides of the fork go on
}

void fork_ends() {
  moves().forking = false;
  moves().mutex.unlock();
  moves().changed.notify_all();
}

void child_begins() {
  moves().running = 0;
  moves().forking = false;
  forget_waiters(moves().changed);
  moves().mutex.unlock();
}

Moves& moves() {
  static auto* m = [] {
    kept_host(); // its lock is taken inside, so it is named earlier (forks.h)
    pthread_atfork(&fork_begins, &fork_ends, &child_begins);
    return new Moves; // never destroyed: threads may outlive static destructors
  }();
  return *m;
}

} // namespace

thread_local int Moving::depth_ = 0;

Moving::Moving() {
  if (depth_++ > 0) return;
  std::unique_lock<std::mutex> lock(moves().mutex);
  moves().changed.wait(lock, [] { return !moves().forking; });
  moves().running++;
}

Moving::~Moving() {
  if (--depth_ > 0) return;
  std::lock_guard<std::mutex> lock(moves().mutex);
  if (--moves().running == 0) moves().changed.notify_all();
}

} // namespace managed
