// moves.h: copies that nobody waits for, and the blocks that they still use.
//
// Each device has streams of its own for copies, one a direction and urgency. What must come before a copy and after it
// is told to streams by events; no thread waits. A block that a copy still reads stays here until somebody wants its
// room: then its streams wait for that copy, and no sooner, and torch's allocator gets it.
#pragma once
#include <cstddef>

#include "../torch/cuda_bridge.h"

namespace managed {

CopyPtr begin_copy(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after);
c10::DataPtr allocate_for_copy(int device, std::size_t bytes, Urgency urgency);
void free_after(c10::DataPtr& block, const CopyPtr& copy);

// Bytes of blocks that wait here. Those whose copies have ended go to the allocator first.
std::size_t leaving(int device);
// Gives blocks to the allocator, oldest first, until a request of `needed` bytes may have room; the streams of the
// device wait for their copies. False: there were none.
bool release_leaving(int device, std::size_t needed);

} // namespace managed
