// threads.cpp: see threads.h. Counts and waits; never touches a tensor.
#include "threads.h"

#include <Python.h>
#include <pthread.h>
#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "api.h"
#include "forks.h"

namespace managed {

namespace {

#if defined(__linux__) && !defined(__SANITIZE_THREAD__) // the sanitizer sees no barrier that another thread makes
bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }
bool can_fence_everybody() { return syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) & MEMBARRIER_CMD_PRIVATE_EXPEDITED; }

// Makes every thread of the process pass a full memory barrier. To register takes the kernel some milliseconds, which only who moves something pays.
bool fence_everybody() {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
#else
bool can_fence_everybody() { return false; }
bool fence_everybody() { return false; }
#endif

} // namespace

std::atomic<uint64_t> move_state{0};
const bool visitors_fence = !can_fence_everybody();
constinit thread_local Seat* thread_seat = nullptr;

namespace {

struct Crowd {
  std::mutex mutex; // a leaf: nothing is called while it is held
  std::condition_variable rested;
  std::vector<Seat*> seats;
};

Crowd& crowd();

bool is_moving(uint64_t state) { return state & 1; }

// A child of fork() has the thread that forked and no other; nothing moves in it while it is made.
void child_begins() {
  crowd().seats.clear();
  if (thread_seat) crowd().seats.push_back(thread_seat);
  move_state = move_state & ~uint64_t{1};
  forget_waiters(crowd().rested);
  crowd().mutex.unlock();
}

Crowd& crowd() {
  static auto* all = [] {
    pthread_atfork([] { crowd().mutex.lock(); }, [] { crowd().mutex.unlock(); }, child_begins);
    return new Crowd; // never destroyed: threads may outlive static destructors
  }();
  return *all;
}

// Gives a thread's seat back when the thread ends. Operators that run later still, from
// destructors of other thread-local objects, take a new one, which nobody frees.
struct Leaves {
  std::unique_ptr<Seat> seat;
  ~Leaves() {
    if (!seat) return;
    thread_seat = nullptr;
    std::lock_guard<std::mutex> lock(crowd().mutex);
    auto& seats = crowd().seats;
    seats.erase(std::find(seats.begin(), seats.end(), seat.get()));
  }
};

} // namespace

Seat* take_seat() {
  static thread_local Leaves at_its_end;
  auto seat = std::make_unique<Seat>();
  seat->seen = move_state & ~uint64_t{1}; // a move that is under way is yet to be waited for
  std::lock_guard<std::mutex> lock(crowd().mutex);
  crowd().seats.push_back(seat.get());
  thread_seat = seat.get();
  if (at_its_end.seat) seat.release();
  else at_its_end.seat = std::move(seat);
  return thread_seat;
}

// Who moves a leaf may need the GIL for what dies meanwhile, and some operators are called with it.
void catch_up(Seat& seat) {
  Crowd& c = crowd();
  while (is_moving(seat.seen = move_state)) {
    seat.inside = false;
    PyThreadState* gil = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    {
      std::unique_lock<std::mutex> lock(c.mutex);
      c.rested.wait(lock, [] { return !is_moving(move_state); });
    }
    if (gil) PyEval_RestoreThread(gil);
    seat.inside = true;
  }
}

Stillness::Stillness() {
  if (mgd_torch_in_backward()) return; // the thread that waits for it may hold what it has read
  Crowd& c = crowd();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    if (is_moving(move_state)) return;
    move_state++;
    still_ = (visitors_fence || fence_everybody()) &&
             std::none_of(c.seats.begin(), c.seats.end(), [](const Seat* s) { return s != thread_seat && s->inside; });
    if (!still_) move_state--;
  }
  if (!still_) c.rested.notify_all();
}

Stillness::~Stillness() {
  if (!still_) return;
  Crowd& c = crowd();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    move_state++;
    if (thread_seat) thread_seat->seen = move_state;
  }
  c.rested.notify_all();
}

} // namespace managed
