// moves.h: copies that nobody waits for.
//
// Each device has streams of its own for copies, one a direction and urgency. What must come before a copy and after it
// is told to streams by events; no thread waits. A block that a copy still reads goes back to the allocator at once:
// all streams that could get it wait for the copy first.
#pragma once
#include <cstddef>

#include "../torch/cuda_bridge.h"

namespace managed {

CopyPtr begin_copy(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after, const PointPtr& point);
PointPtr point(int device);
c10::DataPtr allocate_for_copy(int device, std::size_t bytes, Urgency urgency);
void free_after(c10::DataPtr& block, const CopyPtr& copy, bool last);

} // namespace managed
