// front.h: an allocator in front of torch's native one, to which it forwards everything.
//
// It stands there to know the size of each request and to hold no lock of torch's while room is made for it. Torch
// itself decides whether a request is served: the front asks it, is told of a shortage, has room made, and asks again.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// Takes the place of torch's native allocator, once for good, and does nothing where another one serves.
void install_front(const CudaBridge* hook);

// A block of the current device for which nothing leaves, or nothing where there is no room. Torch is not asked for
// what it would refuse. Other errors are thrown.
c10::DataPtr allocate_if_room(std::size_t bytes);

// For the callback that torch runs under its lock when its cache has nothing for a request. True: the request came
// through the front, which sees to it. It throws what only the front catches when there is not enough room.
bool is_seen_to_by_front(int device);

// The virtual functions of torch's class: how many there are, and which of them the front does not have itself.
std::pair<std::size_t, std::vector<std::size_t>> forgotten_functions(bool of_a_class_without_any);

} // namespace managed
