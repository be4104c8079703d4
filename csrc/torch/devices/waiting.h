// waiting.h: lets a thread wait for bytes that other threads hold, and for the end of a copy.
//
// Each free, and each end of a transfer, adds one to a count. A thread that needs room reads the count, looks for room,
// and if there is none waits for the count to change, so it misses no change in between. The callers decide whether a
// thread may wait, and for how long (room.cpp, hold.cpp, admission.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "torch/devices/bridge.h"

namespace managed {

uint64_t change_count();
uint64_t changes_by_others(); // how much of that count other threads have added
bool wait_for_change(uint64_t seen,
                     int64_t deadline); // releases the GIL if the caller has it; false: timed out
bool has_waiters();
void count_change();
void bytes_came_back(int device, std::size_t bytes); // does the same; allocators call it (Bridge::freed)

// Waits in this thread until the copy has ended; null has ended already. Counts as one wait of the host. Throws
// c10::Error if the copy failed.
void wait_for(const CopyPtr& copy);
// Counts a wait of the host that is no call of wait_for(); backends call it too.
void count_host_wait();
// How often threads have waited for devices since the count was last reset.
uint64_t host_waits(bool reset);

void prepare_waiting(); // call it before any other lock is named that survives a fork (forks.h)
void forget_waiting(); // call it in a forked child, which has none of the threads that waited

} // namespace managed
