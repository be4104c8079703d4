// stream_marks.h: points in the work of a device that is short of room.
//
// The host issues operators long before the device runs them. A point stands for all work that had been issued when it
// was made. When bytes leave, their copy waits for the first point after their last use. Without a point it would wait
// for all work that has been issued.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"
#include "torch/devices/bridge.h"

namespace managed {

// How many points each device has got, counted before each is made. Work that was issued before this is read lies
// before the next point.
extern std::array<std::atomic<uint64_t>, MGD_MAX_DEVICES> points_begun;

// Called when an operator is about to run on the device; now and then makes a point before it.
void pass_by(int device) noexcept;
// Returns the earliest known point after the first `begun` ones. Null: a copy must come after all that has been issued.
PointPtr point_after(int device, uint64_t begun);

// Called in a child of fork(): forgets the points, since the parent's device work does not exist there.
void forget_points();

} // namespace managed
