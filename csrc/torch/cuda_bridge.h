// cuda_bridge.h: what CUDA's part and the hook know of each other beyond bridge.h.
//
// CUDA's allocator is asked through one of our own in front of it, which says how many bytes a request needs and holds
// no lock: that is the bridge's make_room. Who asks the allocator past the front is left with make_some_room.
#pragma once
#include "bridge.h"

namespace managed {

struct CudaBridge : Bridge {
  // ---- filled by the hook
  // The allocator's cache has nothing for a request of a size that nobody knows, and the allocator holds its lock.
  bool (*make_some_room)(int device) = nullptr;

  // ---- filled by the backend
  // Page-locked memory of the host, straight from the driver and straight back. `lock_pages` throws std::bad_alloc,
  // `unlock_pages` nothing.
  void* (*lock_pages)(std::size_t bytes) = nullptr;
  void (*unlock_pages)(void* memory) = nullptr;
};

} // namespace managed
