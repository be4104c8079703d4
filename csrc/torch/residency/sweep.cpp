// sweep.cpp: see sweep.h.
#include "torch/residency/sweep.h"

#include <vector>

#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/residency/transfer.h"

namespace managed {

int64_t sweep(int device, uint32_t odds, uint64_t* seed) {
  int64_t left = 0;
  const Transfer moving;
  for (int id = 1; id < device_count(); id++) {
    if (device && id != device) continue;
    mgd_residency_usage there{};
    mgd_residency_read(machine(), id, &there);
    std::vector<mgd_action> plan(2 * static_cast<std::size_t>(there.storages) + 2); // each may drop a spare of another
    std::size_t n = plan.size();
    if (mgd_evict_random(machine(), id, odds, seed, plan.data(), &n) != MGD_OK) continue;
    left += carry_out({plan.data(), n}, Purpose::Room).left;
  }
  return left;
}

} // namespace managed
