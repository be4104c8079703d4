// transfer.cpp: see transfer.h.
#include "torch/residency/transfer.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "torch/threads/forks.h"
#include "torch/residency/admission.h"

namespace managed {

namespace {

struct Transfers {
  std::mutex mutex; // a leaf
  std::condition_variable changed;
  int running = 0;
  bool forking = false;
};

Transfers& transfers();

// fork() waits for running transfers, but at most kPatience: one may be waiting for the GIL, which the forking thread
// holds.
void transfers_before_fork() {
  std::unique_lock<std::mutex> lock(transfers().mutex);
  transfers().forking = true;
  transfers().changed.wait_for(lock, std::chrono::nanoseconds(kPatience), [] { return transfers().running == 0; });
  lock.release(); // held until both sides of the fork go on
}

void transfers_after_fork() {
  transfers().forking = false;
  transfers().mutex.unlock();
  transfers().changed.notify_all();
}

void transfers_in_child() {
  transfers().running = 0;
  transfers().forking = false;
  forget_waiters(transfers().changed);
  transfers().mutex.unlock();
}

Transfers& transfers() {
  static auto* m = [] {
    // Locks that are taken inside a transfer must be registered earlier (forks.h), so that fork() takes them after it
    // has waited: otherwise it would hold such a lock while it waits for a transfer that needs it.
    MadeAtStart::make_all();
    pthread_atfork(&transfers_before_fork, &transfers_after_fork, &transfers_in_child);
    return new Transfers; // never destroyed: threads may outlive static destructors
  }();
  return *m;
}

} // namespace

thread_local int Transfer::depth_ = 0;

void prepare_for_fork() { transfers(); }

Transfer::Transfer() {
  if (depth_++ > 0) return;
  std::unique_lock<std::mutex> lock(transfers().mutex);
  transfers().changed.wait(lock, [] { return !transfers().forking; });
  transfers().running++;
}

Transfer::~Transfer() {
  if (--depth_ > 0) return;
  std::lock_guard<std::mutex> lock(transfers().mutex);
  if (--transfers().running == 0) transfers().changed.notify_all();
}

} // namespace managed
