// holders.h: asks other allocators of a device for what they keep, before a storage leaves.
//
// The core decides which of them is asked (core/residency/holders.c), and the binding calls them
// (csrc/python/holders.c).
#pragma once
#include <cstdint>

#include "core/core.h"

namespace managed {

// Asks holders until `missing` bytes have come free on the device, each at most once, and returns how many have; asks
// none for bytes of which torch's allocator would get none, because of a budget or because no library has any. Waits
// until the deadline for those that need the GIL; releases it meanwhile if the caller has it. The caller must hold no
// lock that a holder's functions may take. Asks none while a graph is recorded, nor for a holder.
int64_t ask_holders(int device, int64_t missing, int64_t deadline, mgd_holder_round* round);

// Goes on with the holders that rested in that round, when nothing else is left to try.
int64_t ask_resting_holders(int device, int64_t missing, int64_t deadline, mgd_holder_round* round);

} // namespace managed
