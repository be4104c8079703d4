// turns.cpp: see turns.h.
#include "turns.h"

#include "devices.h"
#include "waiting.h"

namespace managed {

std::atomic<uint64_t> short_until{0};

namespace {

constexpr uint64_t kShortFor =
    1 << 18; // ticks, of which an operator takes MGD_TICKS at least: several steps of training
constexpr int64_t kPolite = 10'000'000; // ns that a thread waits before others let it go first

std::atomic<int64_t> taken{0}; // when the turn was taken, in ns; 0: it is free
std::atomic<int> overdue{0};   // how many threads have waited for the turn longer than kPolite

bool try_to_take() {
  int64_t nobody = 0;
  return taken.compare_exchange_strong(nobody, now());
}

// Counts who waits for long, so that a thread of many small operators does not take every turn.
class Waiter {
 public:
  ~Waiter() {
    if (is_overdue_) overdue--;
  }
  bool is_overdue() {
    if (!is_overdue_ && now() >= since_ + kPolite) {
      is_overdue_ = true;
      overdue++;
    }
    return is_overdue_;
  }

 private:
  int64_t since_ = now();
  bool is_overdue_ = false;
};

} // namespace

void begin_turns() {
  short_until.store(__atomic_load_n(&ticks, __ATOMIC_RELAXED) + kShortFor, std::memory_order_relaxed);
}

// Takes the turn at once if it is free and no thread has waited long for it. Otherwise waits: threads that have waited
// longer than kPolite come first. If the turn has been taken for kPatience, it goes on without it.
void Turn::take() {
  if (overdue.load() == 0 && (has_ = try_to_take())) return;
  Waiter waiter;
  for (;;) {
    const uint64_t seen = change_count();
    const bool first = waiter.is_overdue() || overdue.load() == 0;
    if (first && (has_ = try_to_take())) return;
    const int64_t since = taken;
    if (since && now() >= since + kPatience) return;
    wait_for_change(seen, std::min(now() + kPolite, since ? since + kPatience : INT64_MAX));
  }
}

void Turn::give() {
  taken = 0;
  count_change();
}

void forget_turns(bool has_turn) {
  if (!has_turn) taken = 0;
  overdue = 0;
}

} // namespace managed
