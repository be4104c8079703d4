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
// Another thread may get bytes of the driver between the two figures; then both are read again.
int64_t most_of_libraries(int device) {
  constexpr int kTries = 4;
  mgd_usage known{};
  int64_t allocated = 0, before = 0, reserved = -1, free = 0;
  for (int i = 0; i < kTries && reserved != before; i++) {
    before = reserved;
    if (before < 0 && !allocator_usage(device, &allocated, &before)) return 0;
    free = memory_info(device_of(device)).first;
    if (!allocator_usage(device, &allocated, &reserved)) return 0;
  }
  return mgd_ledger_usage(machine(), device, &known) == MGD_OK ? known.capacity - reserved - free : 0;
}

bool may_ask() { return recording_graphs.load(std::memory_order_relaxed) == 0; }

// A holder that is not called because the deadline has passed has refused nothing.
void get_reports(const mgd_holder_calls& holders, mgd_holder_round* round, int64_t deadline) {
  for (int i = 0; i < round->count && now() < deadline; i++) {
    const int id = round->entries[i].id;
    const Calling calling(id);
    int64_t live = 0, cached = 0;
    if (holders.report(id, round->device, deadline, &live, &cached) == 0)
      mgd_holders_reported(machine(), round, id, live, cached);
    else mgd_holders_gave(machine(), round, id, 0);
  }
}

// What a holder answers does not count. What came free is what the allocator has more than before, or, since another
// thread may have taken it already, what other libraries have less.
int64_t reclaim(const mgd_holder_calls& holders, int64_t missing, int64_t deadline, mgd_holder_round* round) {
  get_reports(holders, round, deadline);
  const int device = round->device;
  int64_t gained = 0, bytes = 0;
  int id = 0;
  while (may_ask() && now() < deadline && mgd_holders_next(machine(), round, missing - gained, &id, &bytes) == MGD_OK) {
    const int64_t free_before = free_bytes(device), theirs_before = most_of_libraries(device);
    {
      const Calling calling(id);
      holders.reclaim(id, device, bytes, deadline);
    }
    const int64_t freed = std::max(free_bytes(device) - free_before, theirs_before - most_of_libraries(device));
    mgd_holders_gave(machine(), round, id, freed);
    gained += std::max<int64_t>(0, freed);
  }
  return gained;
}

} // namespace

int64_t ask_holders(int device, int64_t missing, int64_t deadline, mgd_holder_round* round) {
  const mgd_holder_calls* holders = calls.load(std::memory_order_acquire);
  round->count = round->device = 0;
  if (!holders || !may_ask()) return 0;
  missing = std::min(missing, most_of_libraries(device));
  if (missing <= 0) return 0;
  const WithoutGil no_gil;
  holders->find(deadline);
  if (mgd_holders_begin(machine(), device, requester, round) != MGD_OK) return 0;
  return reclaim(*holders, missing, deadline, round);
}

int64_t ask_resting_holders(int device, int64_t missing, int64_t deadline, mgd_holder_round* round) {
  if (round->device != device) return 0; // none was asked
  missing = std::min(missing, most_of_libraries(device));
  if (missing <= 0 || mgd_holders_wake(machine(), round) != MGD_OK) return 0;
  const WithoutGil no_gil;
  return reclaim(*calls.load(std::memory_order_acquire), missing, deadline, round);
}

} // namespace managed

void mgd_torch_set_holders(const struct mgd_holder_calls* c) { managed::calls.store(c, std::memory_order_release); }

int mgd_torch_exchange_requester(int id) { return std::exchange(managed::requester, id); }
