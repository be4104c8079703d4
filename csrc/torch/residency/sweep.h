// sweep.h: storages leave a device without need: to be placed anew, or for tests.
#pragma once
#include <cstdint>

namespace managed {

// Each storage of the device (0: of all devices) that may leave and is in no use leaves with probability 1 / odds, and
// what cannot leave stays. Returns how many left.
int64_t sweep(int device, uint32_t odds, uint64_t* seed);

} // namespace managed
