// uses.cpp: see uses.h.
#include "torch/tensor/uses.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/threads/forks.h"

namespace managed {

std::atomic<bool> noting_uses{false};
std::atomic<bool> watching_uses{false};

namespace {

using Moment = std::shared_ptr<c10::Event>; // several uses may share one; empty: there is no accelerator

struct Use {
  uint64_t storage; // numbered in the order in which they are met
  int64_t bytes;
  uint64_t tick;
  UseKind kind;
  Moment when;
};

std::mutex& notes_mutex();

struct Notes {
  std::mutex mutex; // a leaf
  std::vector<Use> uses;
  std::unordered_map<const void*, uint64_t> numbers; // of living blocks; an address may be used again
  uint64_t met = 0;
  Moment begin;
};
Notes& notes() {
  static auto* n = [] {
    survive_fork<notes_mutex>();
    return new Notes;
  }();
  return *n;
}
std::mutex& notes_mutex() { return notes().mutex; }
const MadeAtStart notes_at_start([] { notes(); });

// The moment at which the current stream of the current device has done the work that it holds now.
Moment moment_now() {
  const auto type = at::accelerator::getAccelerator();
  if (!type) return {};
  const c10::impl::VirtualGuardImpl device(*type);
  auto moment = std::make_shared<c10::Event>(*type, c10::EventFlag::BACKEND_DEFAULT);
  moment->record(device.getStream(device.getDevice()));
  return moment;
}

// All uses of one operator share one moment. A drop has the moment of the use before it, since nothing runs for it.
Moment moment_of(const Notes& n, uint64_t tick, UseKind kind) {
  const Use* last = n.uses.empty() ? nullptr : &n.uses.back();
  if (kind == UseKind::Dropped || (last && last->tick == tick)) return last ? last->when : n.begin;
  return moment_now();
}

double ns_between(const Moment& from, const Moment& to) {
  if (!from || !to || from == to) return 0;
  to->synchronize();
  return from->elapsedTime(*to) * 1e6;
}

} // namespace

void note_use_slow(const void* block, int64_t bytes, uint64_t tick, UseKind kind) {
  Notes& n = notes();
  std::lock_guard<std::mutex> lock(n.mutex);
  const auto [entry, is_new] = n.numbers.try_emplace(block, n.met);
  n.met += is_new;
  n.uses.push_back({entry->second, bytes, tick, kind, moment_of(n, tick, kind)});
  if (kind == UseKind::Dropped) n.numbers.erase(entry);
}

void begin_noting_uses() {
  Notes& n = notes();
  std::lock_guard<std::mutex> lock(n.mutex);
  n.begin = moment_now();
  n.uses.clear();
  n.numbers.clear();
  n.met = 0;
  noting_uses = true;
  watching_uses = true;
}

std::vector<NotedUse> end_noting_uses() {
  noting_uses = false;
  std::vector<Use> uses;
  Moment begin;
  {
    std::lock_guard<std::mutex> lock(notes().mutex);
    uses.swap(notes().uses);
    begin.swap(notes().begin);
  }
  std::vector<NotedUse> found;
  for (const Use& u : uses) found.push_back({u.storage, u.bytes, u.tick, u.kind, ns_between(begin, u.when)});
  return found;
}

} // namespace managed
