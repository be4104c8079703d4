// points.h: points in the work of a device that is short of room.
//
// The host issues operators ahead of the device. A copy that brings bytes away would come after all that has been
// issued; with a point that lies behind their last use it comes after that point alone, while later work still runs.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "../core/types.h"
#include "bridge.h"

namespace managed {

// How many points a device has been given, counted before each is made. What has been issued by the time that this is
// read lies before the next one.
extern std::array<std::atomic<uint64_t>, MGD_MAX_DEVICES> points_begun;

// An operator is about to run on the device: now and then a point is made before it. Must not throw.
void pass_by(int device) noexcept;
// The earliest point after so many that is known, or null: then a copy comes after all that has been issued.
PointPtr point_after(int device, uint64_t begun);

// In a child of fork(), where the device's work is not what it was.
void forget_points();

} // namespace managed
