// moves.h: asynchronous copies, as the bridge requires them: see bridge.h.
//
// The bytes are copied at once, since they are the host's. On the clock the copy runs on a stream of its own, and work
// that must come after it waits for its moment.
#pragma once
#include "clock/clock.h"
#include "sim/device.h"

namespace managed::sim {

CopyPtr begin_copy(int to, void *target, int from, const void *source, std::size_t bytes, Urgency urgency, c10::ArrayRef<CopyPtr> after,
                   const PointPtr &point);
PointPtr point(int device);
CopyPtr copy_operand(const c10::DataPtr &target, const c10::DataPtr &source, std::size_t offset, std::size_t bytes, Urgency urgency, const CopyPtr &after);
c10::DataPtr allocate_for_copy(int device, std::size_t bytes, int from, Urgency urgency, bool if_room);
void free_after(c10::DataPtr &block, const CopyPtr &copy, bool last, std::size_t bytes);

}  // namespace managed::sim
