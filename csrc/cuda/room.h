// room.h: how much of a device a request could get, and how much it needs.
//
// The front and the hook use the same figures: the front decides by them, and the hook plans by them.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <vector>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// Returns the bytes that requests could get now, after giving the blocks of leaving.h back to torch; 0 if there is no
// context. The free bytes of an arena count, though they may be in pieces.
std::size_t room(int device);
// Returns the bytes of them that torch could give to one request.
std::size_t room_of_torch(int device);

constexpr std::size_t kPage = std::size_t{2} << 20; // bytes; the least that the driver gives, and torch's small segment
constexpr std::size_t kSmall = MGD_PLACE_APART; // torch serves requests up to here from segments of their own

// Returns that or less. Takes no lock of any other device, so the caller may hold the lock of this one's allocator.
std::size_t certain_room(int device);

// Returns the part of it that torch need not give back to the driver first.
std::size_t room_in_driver(int device);

// Returns the free bytes of the segments from which torch serves requests up to kSmall on the current stream.
std::size_t room_for_small(int device);

// Gets the bytes that the program has of torch's allocator, blocks of leaving.h aside, and those that torch has of the
// driver.
void allocator_usage(int device, int64_t* allocated, int64_t* reserved);

// Returns the most bytes that torch may have there.
std::size_t allowed(int device);

// Returns the room and the bytes that become room later: pieces of segments that are in use otherwise, and pending
// frees, which wait for streams or copies. Gives none of them back. In make_some_room() it is room().
std::size_t room_soon(int device);

// Returns the large blocks that torch has for a stream, in the order of their addresses: what a request for it could
// get if they were free. None: its segments expand. Takes the locks of all devices' allocators.
std::vector<mgd_window_block> blocks_for(int device, cudaStream_t stream);

// Whether the figures of the default pool are all, and its segments do not expand.
bool cuts_into_pieces(int device);

// Whether there are pending frees: blocks that were freed but wait for streams.
bool has_pending(int device);

// Returns the bytes that the allocator takes from the driver for a request that its cache cannot serve.
std::size_t needed_for(int device, std::size_t bytes);

// Has the hook make room for a request that did not come through the front. The caller holds the lock of the device's
// allocator, so the functions above take no lock of another device meanwhile.
bool make_some_room(const CudaBridge& hook, int device);

// note_pool(): the device has, or may have, pools of the program's own. note_pools(): finds all devices that have some.
void note_pool(int device);
void note_pools();

} // namespace managed
