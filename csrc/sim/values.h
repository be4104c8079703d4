// values.h: whether simulated devices hold values, and memory that is addresses only.
//
// With managed.simulate(values=False) a storage is a range of addresses, and only the forms of results are computed.
// Small results of the host's numbers alone (positions, masks, counters) are computed all the same, so that programs
// which branch on them run as usual: such a storage is "known". Bytes that were spilled to the host are addresses as
// well, and known bytes stay known there. Never touches a tensor.
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
// Must be called once, before devices exist. A child of fork() finds the lock free.
void hold_no_values();

constexpr std::size_t kMostKnown = std::size_t{1} << 20;  // bytes of the largest storage that may be known

// What is known of a storage's bytes. `truth`: they are unknown, but they count as true if the program asks.
enum class Known : uint8_t { nothing, values, truth };

// Returns addresses for so many bytes, of which nothing is known; those of up to kMostKnown bytes can be written.
c10::DataPtr take_addresses(std::size_t bytes);
// Returns what is known of the block that has the address; `nothing` for foreign memory.
Known known_at(const void *address);
// Sets what is known of a whole block; does nothing if it is not from take_addresses().
void set_known_at(const void *begin, std::size_t bytes, Known known);
// Whether the address is from take_addresses().
bool is_address_only(const void *address);

// Whether a storage of that size may have values. Floating-point ones may up to 512 bytes only: parameters and inputs
// would cost memory, and time to compute with.
bool may_know(std::size_t bytes, bool floating);
// For tests: with `yes`, no storage may have values.
void know_nothing(bool yes);

// While it lives, kernels compute on this thread, and storages that they grow beyond kMostKnown get real memory.
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
