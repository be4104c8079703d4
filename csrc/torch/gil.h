// gil.h: gives the GIL away while a thread waits for what another thread may need it for.
#pragma once
#include <Python.h>

namespace managed {

// For code that is called with the GIL and without it.
class NoGilIfHeld {
 public:
  NoGilIfHeld() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~NoGilIfHeld() {
    if (state_) PyEval_RestoreThread(state_);
  }
  NoGilIfHeld(const NoGilIfHeld&) = delete;
  NoGilIfHeld& operator=(const NoGilIfHeld&) = delete;

 private:
  PyThreadState* state_;
};

} // namespace managed
