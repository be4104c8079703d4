// front.h: an allocator in front of torch's native one, to which it forwards everything.
//
// The size of each request is known there, and no lock of torch's is held while room is made for it. Torch itself
// decides whether a request is served: the front calls it, catches a shortage, has room made, and calls again.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// Puts the front in the place of torch's native allocator, once for good. Does nothing if another allocator is in use;
// warns and does nothing if torch's class has functions that the front lacks.
void install_front(const CudaBridge* hook);

// Allocates a block of the current device without evicting anything; returns nothing if there is no room. Torch is not
// asked for what it would refuse. Other errors are thrown.
c10::DataPtr allocate_if_room(std::size_t bytes);

// Returns the range of the arena (arena.h) that the followed plan has for such a request of this thread, if it is free;
// else nothing. The device must be current.
c10::DataPtr take_place(int device, std::size_t bytes, bool for_copy);

// For the callback that torch runs under its lock when its cache has nothing for a request. True: the request came
// through the front, which handles it. If there is not enough room, it throws what only the front catches.
bool is_seen_to_by_front(int device);

// Returns the number of virtual functions of torch's class, and which of them the front does not override. For tests:
// `of_a_class_without_any` takes a class that overrides none.
std::pair<std::size_t, std::vector<std::size_t>> forgotten_functions(bool of_a_class_without_any);

} // namespace managed
