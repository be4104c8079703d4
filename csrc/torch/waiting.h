// waiting.h: waiting for bytes that others have. Each free, and each end of a transfer, adds one to a count. Who needs
// room reads the count, looks for room, and if there is none waits for the count to change: so nothing that came
// between is missed.
//
// Who may wait, and for how long, is decided by the callers (room.cpp, hold.cpp, turns.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

namespace managed {

uint64_t change_count();
uint64_t changes_by_others(); // how much of that count other threads have added
bool wait_for_change(uint64_t seen,
                     int64_t deadline); // with or without the GIL, which it gives away; false when time is over
bool somebody_waits();
void count_change();
void bytes_came_back(int device, std::size_t bytes); // the same, as allocators say it

void prepare_waiting(); // before any other lock is named that a fork survives
void forget_waiting();  // in a forked child, which has none of the threads that waited

} // namespace managed
