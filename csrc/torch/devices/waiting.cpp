// waiting.cpp: see waiting.h.
#include "torch/devices/waiting.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "torch/api.h"
#include "torch/threads/forks.h"
#include "torch/threads/gil.h"

namespace managed {
namespace {

struct Waiting {
  std::mutex mutex;
  std::condition_variable freed;
  std::atomic<int> waiters{0};
  std::atomic<uint64_t> count{0};
};

Waiting& waiting() {
  static auto* w = new Waiting; // never destroyed: threads may outlive static destructors
  return *w;
}

std::mutex& waiting_mutex() { return waiting().mutex; }

std::atomic<uint64_t> waits_of_host{0};

// What this thread has added to the count of changes.
constinit thread_local uint64_t freed_here __attribute__((tls_model("initial-exec"))) = 0;

} // namespace

void prepare_waiting() { survive_fork<waiting_mutex>(); }

void forget_waiting() {
  waiting().waiters = 0;
  forget_waiters(waiting().freed);
}

uint64_t change_count() { return waiting().count; }
uint64_t changes_by_others() { return change_count() - freed_here; }
bool has_waiters() { return waiting().waiters.load() != 0; }
void count_change() { bytes_came_back(0, 0); }

// Called on every free, so it takes no lock while no thread waits. The count goes up first: a thread that registers as
// a waiter afterwards sees it and does not sleep.
void bytes_came_back(int, std::size_t) {
  Waiting& w = waiting();
  w.count++;
  freed_here++;
  if (w.waiters.load() == 0) return;
  { std::lock_guard<std::mutex> lock(w.mutex); }
  w.freed.notify_all();
}

bool wait_for_change(uint64_t seen, int64_t deadline) {
  Waiting& w = waiting();
  const WithoutGil no_gil;
  w.waiters++;
  bool woken = false;
  {
    std::unique_lock<std::mutex> lock(w.mutex);
    const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
    woken = w.freed.wait_until(lock, until, [&] { return w.count != seen; });
  }
  w.waiters--;
  return woken;
}

void wait_for(const CopyPtr& copy) {
  if (!copy) return;
  count_host_wait();
  copy->wait();
}

void count_host_wait() { waits_of_host++; }
uint64_t host_waits(bool reset) { return reset ? waits_of_host.exchange(0) : waits_of_host.load(); }

} // namespace managed

uint64_t mgd_torch_freed_count(void) { return managed::change_count(); }
void mgd_torch_notify_freed(void) { managed::count_change(); }
int mgd_torch_wait_freed(uint64_t seen, int64_t deadline) { return managed::wait_for_change(seen, deadline); }
