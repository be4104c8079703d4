// cuda_bridge.h: the interface between CUDA's part and the hook beyond bridge.h.
//
// managed puts an allocator of its own, the front (csrc/cuda/front.cpp), before CUDA's caching allocator. The front
// knows the size of a request and calls make_room with no lock held. A request that does not pass the front, or that
// comes while a pool of the program's own is in use, reaches the hook through a callback of the caching allocator, with
// the allocator's lock held and without a size: make_some_room.
#pragma once
#include "torch/devices/bridge.h"

namespace managed {

struct CudaBridge : Bridge {
  // ---- filled by the hook
  // Called when the allocator's cache has nothing for a request of unknown size; the allocator holds its lock.
  bool (*make_some_room)(int device) = nullptr;

  // ---- filled by the backend
  // Allocate and free page-locked host memory directly with the driver. `lock_pages` throws std::bad_alloc,
  // `unlock_pages` nothing.
  void* (*lock_pages)(std::size_t bytes) = nullptr;
  void (*unlock_pages)(void* memory) = nullptr;
};

} // namespace managed
