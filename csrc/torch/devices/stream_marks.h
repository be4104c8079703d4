// stream_marks.h: points in the work of a device that is short of room.
//
// The host issues operators long before the device runs them. A point stands for all that had been issued when it was
// made. When bytes leave, their copy waits for the first point after their last use. Without a point it would wait for
// all that has been issued.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"
#include "torch/devices/bridge.h"

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
