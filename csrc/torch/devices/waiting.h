// waiting.h: how a thread waits for bytes that other threads have, and for the end of a copy.
//
// Each free, and each end of a transfer, adds one to a count. A thread that needs room reads the count, looks for room,
// and if there is none waits for the count to change: so nothing that came between is missed. Whether a thread may
// wait, and for how long, is decided by the callers (room.cpp, hold.cpp, admission.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "torch/devices/bridge.h"

namespace managed {

uint64_t change_count();
uint64_t changes_by_others(); // how much of that count other threads have added
bool wait_for_change(uint64_t seen,
                     int64_t deadline); // with or without the GIL, which it gives away; false when time is over
bool somebody_waits();
void count_change();
void bytes_came_back(int device, std::size_t bytes); // the same, as allocators say it

// This thread waits for a copy to end; null has ended. Counts as one wait of the host. Throws c10::Error if the copy
// failed.
void wait_for(const CopyPtr& copy);
// Counts a wait of the host that is no call of wait_for(); backends call it, too.
void count_host_wait();
// How often threads have waited for devices since the count was last reset.
uint64_t host_waits(bool reset);

void prepare_waiting(); // before any other lock is named that a fork survives
void forget_waiting(); // in a forked child, which has none of the threads that waited

} // namespace managed
