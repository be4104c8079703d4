// moves.h: asynchronous copies.
//
// Each device has streams of its own for copies, one for each direction and urgency. Events order what must come before
// a copy and after it; no thread waits. leaving.h has the blocks that are given up while copies still read them.
#pragma once
#include <cstddef>

#include "torch/devices/cuda_bridge.h"

namespace managed {

CopyPtr begin_copy(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after, const PointPtr& point);
CopyPtr copy_operand(const c10::DataPtr& target, const c10::DataPtr& source, std::size_t offset, std::size_t bytes,
                     Urgency urgency, const CopyPtr& after);
c10::DataPtr allocate_for_copy(int device, std::size_t bytes, int from, Urgency urgency, bool if_room);

} // namespace managed
