// room.h: how much of a device a request could have, and how much it needs.
//
// The one truth about room: the front decides by it, and the hook plans by it.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// What one request could have now; 0 where there is no context.
std::size_t room(int device);

// The same or less, known without a lock of any other device: for who holds the lock of this one's allocator.
std::size_t certain_room(int device);

// The part of it that torch need not give back first.
std::size_t room_in_driver(int device);

// The most that torch may have there.
std::size_t allowed(int device);

// The same and bytes that are no room as yet: pieces of segments that are in use otherwise, and blocks that were freed
// but wait for streams or copies. Who asks gives none of them back.
std::size_t room_soon(int device);

// Whether there are blocks that were freed but wait for streams.
bool has_pending(int device);

// What the allocator takes from the driver for a request that its cache cannot serve.
std::size_t needed_for(int device, std::size_t bytes);

// Asks the hook for a request that did not come through the front. The caller holds the lock of the device's allocator,
// so what is asked above meanwhile is answered without the lock of any other.
bool make_some_room(const CudaBridge& hook, int device);

// The device has pools of the program's own, or may have some; and the same of all that have some now.
void note_pool(int device);
void note_pools();

} // namespace managed
