// values.h: whether simulated devices hold values, and memory that is addresses only.
//
// managed.simulate(values=False): a storage is a range of addresses, and kernels tell what their results look like. What
// is small and made of the host's numbers alone (positions, masks, counters) is computed all the same, so that programs
// which look at it take their usual way: such a storage is "known". Bytes on the host that left a device are addresses as
// well, and known bytes stay known there. Must never touch a tensor.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

#include "sim/backend.h"

namespace managed::sim {

#ifdef MANAGED_VIRTUAL_GPU
constexpr bool holds_values() { return true; }
#else
extern bool values_held; // written before the first device exists
inline bool holds_values() { return values_held; }
#endif
// Called once, before devices exist. A child of fork() finds the lock free.
void hold_no_values();

// What is known of a storage's bytes. `truth`: they are unknown, and whoever asks whether they are true hears that they are.
constexpr std::size_t kMostKnown = std::size_t{1} << 20;  // bytes of the largest storage that may be known

enum class Known : uint8_t { nothing, values, truth };

// Addresses for so many bytes, nothing known of them; those of small storages can be written.
c10::DataPtr take_addresses(std::size_t bytes);
// Anywhere in a block.
Known known_at(const void *address);
// Of a whole block; does nothing for what take_addresses() did not give.
void set_known_at(const void *begin, std::size_t bytes, Known known);
// Whether take_addresses() gave it.
bool is_address_only(const void *address);

// Whether a storage of that size may keep values. Parameters and inputs are of floating point and must not: they would
// take memory, and time to compute with.
bool may_know(std::size_t bytes, bool floating);
// For tests: no storage may.
void know_nothing(bool yes);

// While it lives, kernels compute on this thread: what they let grow gets real memory.
class Computing {
 public:
  explicit Computing(bool on);
  ~Computing();
  Computing(const Computing &) = delete;
  Computing &operator=(const Computing &) = delete;
  static bool now();

 private:
  const bool before_;
};

}  // namespace managed::sim
