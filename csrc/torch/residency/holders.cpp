// holders.cpp: see holders.h.
#include "torch/residency/holders.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/devices/graphs.h"
#include "torch/devices/registry.h"
#include "torch/threads/gil.h"

namespace managed {
namespace {

std::atomic<const mgd_holder_calls*> calls{nullptr};
constinit thread_local int requester __attribute__((tls_model("initial-exec"))) = 0;

// While it lives, this thread runs a function of that holder.
class Calling {
 public:
  explicit Calling(int id) : before_(mgd_torch_exchange_requester(id)) {}
  ~Calling() { mgd_torch_exchange_requester(before_); }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  const int before_;
};

// The most that can come free for torch when other libraries free what they have. A budget leaves the rest to them.
int64_t most_of_libraries(int device) {
  mgd_usage known{};
  int64_t allocated = 0, reserved = 0;
  allocator_usage(device, &allocated, &reserved);
  if (mgd_ledger_usage(machine(), device, &known) != MGD_OK) return 0;
  return known.capacity - reserved - memory_info(device_of(device)).first;
}

void get_reports(const mgd_holder_calls& holders, mgd_holder_round* round, int64_t deadline) {
  for (int i = 0; i < round->count; i++) {
    const int id = round->entries[i].id;
    const Calling now(id);
    int64_t live = 0, cached = 0;
    if (holders.report(id, round->device, deadline, &live, &cached) == 0)
      mgd_holders_reported(machine(), round, id, live, cached);
    else mgd_holders_gave(machine(), round, id, 0);
  }
}

} // namespace

// What a holder answers does not count: the device tells what came free.
int64_t ask_holders(int device, int64_t missing, int64_t deadline) {
  const mgd_holder_calls* holders = calls.load(std::memory_order_acquire);
  if (!holders || recording_graphs.load(std::memory_order_relaxed)) return 0;
  missing = std::min(missing, most_of_libraries(device));
  if (missing <= 0) return 0;
  const WithoutGil no_gil;
  holders->find(deadline);
  mgd_holder_round round;
  if (mgd_holders_begin(machine(), device, requester, &round) != MGD_OK || round.count == 0) return 0;
  get_reports(*holders, &round, deadline);
  int64_t gained = 0, bytes = 0;
  int id = 0;
  while (mgd_holders_next(machine(), &round, missing - gained, &id, &bytes) == MGD_OK) {
    const int64_t before = free_bytes(device);
    {
      const Calling now(id);
      holders->reclaim(id, device, bytes, deadline);
    }
    const int64_t freed = free_bytes(device) - before;
    mgd_holders_gave(machine(), &round, id, freed);
    gained += std::max<int64_t>(0, freed);
  }
  return gained;
}

} // namespace managed

void mgd_torch_set_holders(const struct mgd_holder_calls* c) { managed::calls.store(c, std::memory_order_release); }

int mgd_torch_exchange_requester(int id) { return std::exchange(managed::requester, id); }
