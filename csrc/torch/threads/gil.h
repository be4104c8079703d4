// gil.h: releases the GIL while a thread waits for another thread that may need it.
#pragma once
#include <Python.h>

namespace managed {

// Releases the GIL while it lives, if the calling thread has it; for code that is called with the GIL and without it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  // It may unwind: when the interpreter ends, a daemon thread that takes the GIL is ended there (pthread_exit).
  ~WithoutGil() noexcept(false) {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

} // namespace managed
