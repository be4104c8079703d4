// admission.cpp: see admission.h.
#include "torch/residency/admission.h"

#include <algorithm>

#include "torch/devices/devices.h"
#include "torch/devices/waiting.h"

namespace managed {

std::atomic<uint64_t> short_until{0};

namespace {

constexpr uint64_t kShortFor =
    1 << 18; // ticks; an operator takes at least MGD_TICKS, so this is several steps of training
constexpr int64_t kPolite = 10'000'000; // ns that a thread waits before it takes precedence

// The turn of one device. Each has a cache line of its own, so that devices do not contend.
struct alignas(64) State {
  std::atomic<int64_t> taken{0}; // when the turn was taken, in ns; 0: it is free
  std::atomic<int> overdue{0};   // how many threads have waited for it longer than kPolite
  std::atomic<uint64_t> short_until{0}; // tick
};
State states[MGD_MAX_DEVICES];

bool try_to_take(State& s) {
  int64_t expected = 0;
  return s.taken.compare_exchange_strong(expected, now());
}

// Counts a thread as overdue once it has waited for kPolite, so that a thread of many small operators does not take
// every turn.
class Waiter {
 public:
  explicit Waiter(State& s) : state_(s) {}
  ~Waiter() {
    if (is_overdue_) state_.overdue--;
  }
  bool is_overdue() {
    if (!is_overdue_ && now() >= since_ + kPolite) {
      is_overdue_ = true;
      state_.overdue++;
    }
    return is_overdue_;
  }

 private:
  State& state_;
  int64_t since_ = now();
  bool is_overdue_ = false;
};

// Takes the turn at once if it is free and no thread has waited long for it. Otherwise waits: threads that have waited
// longer than kPolite come first. False: the turn has been taken for kPatience.
bool take_turn(State& s) {
  if (s.overdue.load() == 0 && try_to_take(s)) return true;
  Waiter waiter(s);
  for (;;) {
    const uint64_t seen = change_count();
    const bool first = waiter.is_overdue() || s.overdue.load() == 0;
    if (first && try_to_take(s)) return true;
    const int64_t since = s.taken;
    if (since && now() >= since + kPatience) return false;
    wait_for_change(seen, std::min(now() + kPolite, since ? since + kPatience : INT64_MAX));
  }
}

} // namespace

void begin_turns(int device) {
  const uint64_t until = __atomic_load_n(&ticks, __ATOMIC_RELAXED) + kShortFor;
  states[device].short_until.store(until, std::memory_order_relaxed);
  short_until.store(until, std::memory_order_relaxed);
}

void Turn::take(int device) {
  const uint64_t tick = __atomic_load_n(&ticks, __ATOMIC_RELAXED);
  for (const int d : {std::min(device, target_), std::max(device, target_)}) {
    if (d <= MGD_HOST || has_ >> d & 1 || tick >= states[d].short_until.load(std::memory_order_relaxed)) continue;
    if (take_turn(states[d])) has_ |= mgd_mask{1} << d;
  }
}

void Turn::give() {
  for (int d = 0; d < MGD_MAX_DEVICES; d++)
    if (has_ >> d & 1) states[d].taken = 0;
  has_ = 0;
  count_change();
}

void forget_turns(mgd_mask kept) {
  for (int d = 0; d < MGD_MAX_DEVICES; d++) {
    if (!(kept >> d & 1)) states[d].taken = 0;
    states[d].overdue = 0;
  }
}

} // namespace managed
