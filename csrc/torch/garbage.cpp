// garbage.cpp: see garbage.h.
#include "garbage.h"

#include <Python.h>

#include <atomic>

#include "api.h"
#include "devices.h"
#include "waiting.h"

namespace managed {
namespace {

std::atomic<int (*)(void)> collector{nullptr};

} // namespace

bool collect_garbage() {
  int (*collect)(void) = collector.load();
  if (!collect) return false;
  const uint64_t seen = change_count();
  PyThreadState* gil = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  const bool collected = collect() != 0;
  if (gil) PyEval_RestoreThread(gil);
  return collected && change_count() != seen;
}

} // namespace managed

void mgd_torch_set_collector(int (*collect)(void)) { managed::collector = collect; }
