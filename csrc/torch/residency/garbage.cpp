// garbage.cpp: see garbage.h.
#include "torch/residency/garbage.h"

#include <atomic>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/threads/gil.h"
#include "torch/devices/waiting.h"

namespace managed {
namespace {

std::atomic<int (*)(int64_t)> collector{nullptr};

} // namespace

bool collect_garbage(int64_t deadline) {
  int (*collect)(int64_t) = collector.load();
  if (!collect) return false;
  const uint64_t seen = change_count();
  bool collected = false;
  {
    const WithoutGil no_gil;
    collected = collect(deadline) != 0;
  }
  return collected && change_count() != seen;
}

} // namespace managed

void mgd_torch_set_collector(int (*collect)(int64_t)) { managed::collector = collect; }
