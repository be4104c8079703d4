// guard.h: turns C++ exceptions into Python's, and releases the GIL.
//
// Only files that implement functions for csrc/python include it.
#pragma once
#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <type_traits>
#include <utility>

#include "torch/residency/out_of_memory.h"

namespace managed {

// Runs f and returns its result. A C++ exception becomes the Python exception that torch itself would raise for it
// (c10::OutOfMemoryError becomes managed's, with a table of what holds memory); the result is then NULL for pointers
// and -1 for numbers.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  using R = decltype(f());
  R failed{};
  if constexpr (!std::is_pointer_v<R>) failed = static_cast<R>(-1);
  HANDLE_TH_ERRORS
  try {
    return std::forward<F>(f)();
  } catch (const c10::OutOfMemoryError& e) {
    rethrow_out_of_memory(e, {});
  }
  END_HANDLE_TH_ERRORS_RET(failed)
}

// Releases the GIL, so that other Python threads run while bytes are copied. The destructor may unwind: when the
// interpreter ends, a daemon thread that takes the GIL is ended there (pthread_exit).
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  ~NoGil() noexcept(false) { PyEval_RestoreThread(state_); }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* state_;
};

} // namespace managed
