// room.cpp: see room.h.
#include "torch/residency/room.h"

#include <algorithm>
#include <array>
#include <climits>
#include <exception>
#include <utility>
#include <vector>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/residency/garbage.h"
#include "torch/residency/holders.h"
#include "torch/tensor/record.h"
#include "torch/tensor/replica.h"
#include "torch/residency/steps.h"
#include "torch/residency/transfer.h"
#include "torch/residency/admission.h"
#include "torch/devices/waiting.h"

namespace managed {

namespace {

constexpr std::size_t kPlan = 32; // actions of one plan; more room takes another plan
constexpr int kTries = 2;         // failed plans (no action succeeded) before find_room() gives up
constexpr int64_t kExplains = 1'000'000'000; // ns after a shortage on the host in which it explains an error

thread_local HostShortage host_shortage;

// Plans that the storages of a window leave. Returns the code of mgd_window_evict().
int plan_hole(int device, int64_t missing, const Hole& hole, std::vector<mgd_action>* plan) {
  const auto at = [](const mgd_handle* h) -> const void* { return static_cast<const StorageHandle*>(h)->block.get(); };
  std::size_t n = 2 * hole.blocks.size() + 2; // each may give up a copy on the host as well
  plan->resize(n);
  const int code = mgd_window_evict(machine(), device, hole.bytes, missing, hole.blocks.data(), hole.blocks.size(), at,
                                    plan->data(), &n);
  plan->resize(code == MGD_OK ? n : 0);
  return code;
}

// Plans one eviction or several and carries them out. Returns the code of the plan, as mgd_evict_begin() does; *outcome
// is that of carry_out().
int evict_some(int device, int64_t bytes, int64_t own_uses, const int64_t* room, const Hole& hole, Outcome* outcome) {
  const Transfer moving;
  std::vector<mgd_action> window;
  std::array<mgd_action, kPlan> plan;
  std::size_t n = plan.size();
  int code = hole.blocks.empty() ? MGD_E_ABSENT : plan_hole(device, bytes, hole, &window);
  c10::ArrayRef<mgd_action> chosen = window;
  if (code != MGD_OK) {
    code = mgd_evict_begin(machine(), device, bytes, room, own_uses, plan.data(), &n);
    chosen = {plan.data(), code == MGD_OK ? n : 0};
  }
  if (code == MGD_OK) *outcome = carry_out(chosen, Purpose::Room);
  if (std::any_of(chosen.begin(), chosen.end(), [](const mgd_action& a) { return a.to == MGD_HOST; })) {
    begin_steps(device);
    watch_calls();
  }
  return code;
}

// Reads the free bytes of each device that could hold guests of this one, as its allocator reports them; takes the
// locks of the allocators. Devices of different types are no peers.
void read_room(int device, int64_t room[MGD_MAX_DEVICES]) {
  const int n = device_count();
  for (int id = 0; id < n; id++) room[id] = device_of(id).type() == device_of(device).type() ? free_bytes(id) : 0;
}

// One attempt to make room. Returns true as soon as anything came free, so that the caller asks its allocator again:
// replicas were dropped, a holder gave enough, a storage left, or another thread freed bytes. A caller that has locked
// its allocator gets one search and no wait. `waits`: only a caller that holds nothing waits here, until the deadline,
// and only while another thread may still free something. A plan that failed (no memory on the host, a device that
// failed) is tried again, kTries times in all.
bool find_room(int device, int64_t bytes, int64_t own_uses, Caller caller, int64_t gil_deadline, const Hole& hole,
               mgd_holder_round* round, std::exception_ptr* failure) {
  const bool locked = caller == Caller::LockedAllocator;
  const uint64_t freed_before = change_count();
  int64_t missing = std::max<int64_t>(1, bytes - free_bytes(device));
  if (drop_replicas(device, missing, locked, locked)) return true;
  const bool asks = caller == Caller::Free || caller == Caller::BringsHome;
  const int64_t given = asks ? ask_holders(device, missing, gil_deadline, round) : 0;
  missing -= given;
  if (missing <= 0) return true;
  int64_t room[MGD_MAX_DEVICES] = {};
  if (!locked) read_room(device, room);
  // A caller that restores operands waits in hold.cpp instead, after it has ended its uses.
  const bool waits = (caller == Caller::Free || caller == Caller::GivesBack) && requested_by_this_thread() == 0;
  const int64_t deadline = now() + kPatience;
  begin_turns(device);
  int failures = 0;
  for (;;) {
    const uint64_t before = change_count();
    Outcome outcome;
    const int code = evict_some(device, missing, own_uses, room, hole, &outcome);
    if (outcome.failure) *failure = outcome.failure;
    if (outcome.left || (!locked && drop_replicas(device, missing, true)))
      return true; // the most recently used go last
    if (code == MGD_OK) { // the host has no memory, or a device failed; freed host copies are progress
      failures += outcome.forgotten == 0;
      if (failures < kTries) continue;
      if (outcome.host_refused) host_shortage = {device, true, now()};
      return given > 0;
    }
    if (code == MGD_E_NO_ROOM) host_shortage = {device, false, now()};
    if (locked) return false;
    const bool more_to_come = code == MGD_E_BUSY || unfinished_deaths.load() > 0;
    if (change_count() != freed_before) return true; // another thread has freed bytes: the caller asks again
    if (!waits || !more_to_come || !wait_for_change(before, deadline)) return given > 0;
  }
}

bool try_everything(int device, int64_t bytes, int64_t own_uses, Caller caller, const Hole& hole,
                    std::exception_ptr* failure) {
  const int64_t gil_deadline = now() + MGD_WAIT_FOR_GIL;
  mgd_holder_round round;
  round.device = 0;
  if (find_room(device, bytes, own_uses, caller, gil_deadline, hole, &round, failure)) return true;
  if (round.device && ask_resting_holders(device, bytes - free_bytes(device), gil_deadline, &round) > 0) return true;
  return caller == Caller::Free && collect_garbage(gil_deadline);
}

} // namespace

bool make_room(int device, int64_t bytes, int64_t own_uses, Caller caller, const Hole& hole) {
  if (makes_no_room()) return false;
  host_shortage = {};
  std::exception_ptr failure;
  const bool made = try_everything(device, bytes, own_uses, caller, hole, &failure);
  if (made || failure) host_shortage = {};
  if (made) return true;
  if (failure && caller != Caller::LockedAllocator) std::rethrow_exception(failure);
  return false;
}

HostShortage take_host_shortage() {
  const HostShortage s = std::exchange(host_shortage, {});
  return s.device >= 0 && now() - s.time < kExplains ? s : HostShortage{};
}

} // namespace managed
