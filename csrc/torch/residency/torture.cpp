// torture.cpp: see torture.h.
#include "torch/residency/torture.h"

#include <torch/csrc/autograd/python_variable.h>

#include "torch/api.h"
#include "torch/threads/forks.h"
#include "torch/residency/guard.h"
#include "torch/tensor/host_memory.h"
#include "torch/residency/executor.h"
#include "torch/residency/sweep.h"

namespace managed {

std::atomic<uint32_t> torture_odds{0};

namespace {

// All threads draw from one sequence, so that a run with one thread is reproducible.
std::mutex& seed_mutex() {
  static auto* mutex = [] {
    survive_fork<seed_mutex>();
    return new std::mutex;
  }();
  return *mutex;
}
const MadeAtStart seed_at_start([] { seed_mutex(); });
uint64_t seed = 0;

} // namespace

void torture_slow() {
  uint64_t mine;
  {
    std::lock_guard<std::mutex> lock(seed_mutex());
    mine = seed = seed * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX generator
  }
  sweep(0, torture_odds.load(std::memory_order_relaxed), &mine);
}

} // namespace managed

using namespace managed;

mgd_torture mgd_torch_torture(mgd_torture asked) {
  mgd_torture before{};
  {
    std::lock_guard<std::mutex> lock(seed_mutex());
    before.seed = std::exchange(seed, asked.seed);
  }
  before.overwrite = overwrite_freed.exchange(asked.overwrite != 0);
  before.odds = torture_odds.exchange(asked.odds);
  before.at_least = least_bytes_with_handle.exchange(asked.at_least);
  return before;
}

int mgd_torch_is_spilled(PyObject* o) {
  return guarded([&] {
    TORCH_CHECK_TYPE(THPVariable_Check(o), "managed: expected a tensor, not ", Py_TYPE(o)->tp_name);
    bool spilled = false;
    each_storage(THPVariable_Unpack(o), [&](c10::StorageImpl* s) {
      if (const StorageHandle* h = handle_of(s)) spilled |= mgd_handle_is_away(h);
    });
    return static_cast<int>(spilled);
  });
}

mgd_host_bytes mgd_torch_host_bytes(void) { return host_bytes(); }

int64_t mgd_torch_spill_all(void) {
  return guarded([] {
    const NoGil no_gil;
    uint64_t unused = 0;
    return sweep(0, 1, &unused);
  });
}
