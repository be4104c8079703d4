// faults.cpp: see faults.h.
#include "sim/device/faults.h"

namespace managed::sim {

std::atomic<bool> faults_asked[2];

namespace {

struct Counter {
  std::atomic<std::int64_t> first{0}, last{0}, seen{0};
};
Counter counters[2];

}  // namespace

Faults exchange_faults(Fault kind, const Faults &asked) {
  Counter &c = counters[static_cast<int>(kind)];
  const Faults before{c.first.exchange(asked.first), c.last.exchange(asked.last), c.seen.exchange(asked.seen)};
  faults_asked[static_cast<int>(kind)] = asked.first != 0;
  return before;
}

bool count_fault(Fault kind) {
  Counter &c = counters[static_cast<int>(kind)];
  const std::int64_t n = c.seen.fetch_add(1) + 1;
  return n >= c.first.load() && n <= c.last.load();
}

}  // namespace managed::sim
