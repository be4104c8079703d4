// garbage.h: runs Python's collector before a device counts as full.
//
// The binding (csrc/python/garbage.c) runs the collector; collect_garbage() requests a run and waits for it.
#pragma once
#include <cstdint>

namespace managed {

// Runs Python's collector in a separate thread and waits for it until the deadline. Calls soon after a run do nothing.
// Needs no GIL, and releases it while waiting if the caller has it. The caller must not hold a lock that the death of a
// tensor takes. True: the collector has run, and any thread freed bytes meanwhile.
bool collect_garbage(int64_t deadline);

} // namespace managed
