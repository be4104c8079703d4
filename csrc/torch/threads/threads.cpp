// threads.cpp: see threads.h. Counts and waits; never touches a tensor.
#include "torch/threads/threads.h"

#include <pthread.h>
#include <torch/csrc/autograd/function.h>
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

#include "torch/api.h"
#include "torch/threads/forks.h"
#include "torch/threads/gil.h"

namespace managed {

namespace {

#if defined(__linux__) && !defined(__SANITIZE_THREAD__) // the sanitizer sees no barrier that another thread makes
bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }
bool can_fence_everybody() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) & MEMBARRIER_CMD_PRIVATE_EXPEDITED;
}

// Makes every thread of the process pass a full memory barrier. Registration takes the kernel some milliseconds, so it
// is done when something moves for the first time.
bool fence_everybody() {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
#else
bool can_fence_everybody() { return false; }
bool fence_everybody() { return false; }
#endif

} // namespace

std::atomic<uint64_t> exclusive_epoch{0};
const bool operators_fence = !can_fence_everybody();
constinit thread_local ThreadSlot* thread_slot = nullptr;

namespace {

struct ThreadSlots {
  std::mutex mutex; // a leaf: nothing is called while it is held
  std::condition_variable ended;
  std::vector<ThreadSlot*> all;
};

ThreadSlots& slots();

bool is_moving(uint64_t state) { return state & 1; }

// A child of fork() has the thread that forked and no other; nothing moves in it while it is made.
void slots_in_child() {
  slots().all.clear();
  if (thread_slot) slots().all.push_back(thread_slot);
  exclusive_epoch = exclusive_epoch & ~uint64_t{1};
  forget_waiters(slots().ended);
  slots().mutex.unlock();
}

ThreadSlots& slots() {
  static auto* all = [] {
    pthread_atfork([] { slots().mutex.lock(); }, [] { slots().mutex.unlock(); }, slots_in_child);
    return new ThreadSlots; // never destroyed: threads may outlive static destructors
  }();
  return *all;
}
const MadeAtStart slots_at_start([] { slots(); });

// Gives a thread's slot back when the thread ends. Operators that run later still, from
// destructors of other thread-local objects, take a new one, which is never freed.
struct Unregister {
  std::unique_ptr<ThreadSlot> slot;
  ~Unregister() {
    if (!slot) return;
    thread_slot = nullptr;
    std::lock_guard<std::mutex> lock(slots().mutex);
    auto& all = slots().all;
    all.erase(std::find(all.begin(), all.end(), slot.get()));
  }
};

} // namespace

ThreadSlot* register_thread() {
  static thread_local Unregister at_its_end;
  auto slot = std::make_unique<ThreadSlot>();
  slot->seen = exclusive_epoch & ~uint64_t{1}; // the thread has yet to wait for a move under way
  std::lock_guard<std::mutex> lock(slots().mutex);
  slots().all.push_back(slot.get());
  thread_slot = slot.get();
  if (at_its_end.slot) slot.release();
  else at_its_end.slot = std::move(slot);
  return thread_slot;
}

// Waits without the GIL: some operators are called with it, and the thread that moves a leaf may need it to destroy
// objects.
void catch_up(ThreadSlot& slot) {
  ThreadSlots& c = slots();
  while (is_moving(slot.seen = exclusive_epoch)) {
    slot.inside = false;
    {
      const WithoutGil no_gil;
      std::unique_lock<std::mutex> lock(c.mutex);
      c.ended.wait(lock, [] { return !is_moving(exclusive_epoch); });
    }
    slot.inside = true;
  }
}

// Makes the epoch odd, which stops operators that begin; makes all threads pass a barrier; then checks whether a thread
// is inside an operator. If one is, it restores the epoch and wakes the threads that wait.
ExclusiveSection::ExclusiveSection() {
  // The thread that called backward() is inside a section for the whole pass, and may use what it has read of leaves.
  if (mgd_torch_in_backward()) return;
  ThreadSlots& c = slots();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    if (is_moving(exclusive_epoch)) return;
    exclusive_epoch++;
    alone_ = (operators_fence || fence_everybody()) &&
        std::none_of(c.all.begin(), c.all.end(), [](const ThreadSlot* s) { return s != thread_slot && s->inside; });
    if (!alone_) exclusive_epoch--;
  }
  if (!alone_) c.ended.notify_all();
}

ExclusiveSection::~ExclusiveSection() {
  if (!alone_) return;
  ThreadSlots& c = slots();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    exclusive_epoch++;
    if (thread_slot) thread_slot->seen = exclusive_epoch;
  }
  c.ended.notify_all();
}

} // namespace managed

int mgd_torch_in_backward(void) { return torch::autograd::get_current_graph_task_id() != -1; }
