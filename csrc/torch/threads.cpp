// threads.cpp: see threads.h. Counts and waits; never touches a tensor.
#include "threads.h"

#include <Python.h>
#include <pthread.h>
#include <torch/csrc/autograd/function.h>

#include <condition_variable>
#include <mutex>

namespace managed {

constinit thread_local bool thread_counted = false;

namespace {

struct Crowd {
  std::mutex mutex; // a leaf: nothing is called while it is held
  std::condition_variable rested;
  int threads = 0;
  bool moving = false; // then threads is 1, and that thread moves a leaf
};

Crowd& crowd();

// A child of fork() has the thread that forked and no other; nothing moves in it while it is made.
void child_begins() {
  crowd().threads = thread_counted ? 1 : 0;
  crowd().moving = false;
  crowd().mutex.unlock();
}

Crowd& crowd() {
  static auto* all = [] {
    pthread_atfork([] { crowd().mutex.lock(); }, [] { crowd().mutex.unlock(); }, child_begins);
    return new Crowd; // never destroyed: threads may outlive static destructors
  }();
  return *all;
}

struct Leaves {
  bool counted = false;
  ~Leaves() {
    if (!counted) return;
    std::lock_guard<std::mutex> lock(crowd().mutex);
    crowd().threads--;
  }
};

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

bool join() {
  Crowd& c = crowd();
  std::unique_lock<std::mutex> lock(c.mutex);
  const bool waited = c.moving;
  c.rested.wait(lock, [&] { return !c.moving; });
  c.threads++;
  return waited;
}

} // namespace

// Who moves a leaf may need the GIL for what dies meanwhile, and some operators are called with it.
bool count_thread_slow() {
  if (in_backward()) return false;
  PyThreadState* gil = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  const bool waited = join();
  if (gil) PyEval_RestoreThread(gil);
  static thread_local Leaves at_its_end;
  thread_counted = at_its_end.counted = true;
  return waited;
}

OnlyThread::OnlyThread() : alone_(false) {
  if (!thread_counted || in_backward()) return;
  Crowd& c = crowd();
  std::lock_guard<std::mutex> lock(c.mutex);
  alone_ = c.threads == 1 && !c.moving;
  if (alone_) c.moving = true;
}

OnlyThread::~OnlyThread() {
  if (!alone_) return;
  Crowd& c = crowd();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    c.moving = false;
  }
  c.rested.notify_all();
}

} // namespace managed
