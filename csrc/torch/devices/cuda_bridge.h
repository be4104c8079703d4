// cuda_bridge.h: the interface between CUDA's part and the hook beyond bridge.h.
//
// managed puts an allocator of its own, the front (csrc/cuda/front.cpp), before CUDA's caching allocator. The front
// knows the size of a request and calls make_hole with no lock held. A request that does not pass the front, or that
// comes while a pool of the program's own is in use, reaches the hook through a callback of the caching allocator, with
// the allocator's lock held and without a size: make_some_room.
#pragma once
#include "core/window.h"
#include "torch/devices/bridge.h"

namespace managed {

struct CudaBridge : Bridge {
  // ---- filled by the hook
  // Called when the allocator's cache has nothing for a request of unknown size; the allocator holds its lock.
  bool (*make_some_room)(int device) = nullptr;
  // Gets where in the device's arena the followed plan wants a request of this thread, or, if `bytes` is 0, what comes
  // next, the soonest first. Returns how many places there are, at most n.
  int (*places)(int device, std::size_t bytes, mgd_step_place* places, int n) = nullptr;
  // Called when a thread has got memory for its current stream that is large enough for a place.
  void (*requested)(int device, const void* at, std::size_t bytes) = nullptr;
  // Does what make_room does for the simulator, but if storages leave, they are neighbours, if possible: they and the
  // free blocks between them have `hole` bytes. `blocks`: of the allocator, in the order of their addresses. If there
  // are none, any bytes will do.
  bool (*make_hole)(int device, std::size_t bytes, std::size_t hole, c10::ArrayRef<mgd_window_block> blocks) = nullptr;

  // ---- filled by the backend
  // An arena is a block of the caching allocator in which requests have places (csrc/cuda/arena.h). may_have_arena: the
  // allocator cuts its memory into pieces. arena_room: gives what the allocator keeps back to the driver, and returns
  // how large an arena could be. room_for_small: returns what it has left for requests up to MGD_PLACE_APART.
  // open_arena: takes such a block for the current stream, unless there is one; false: there is no memory. close_arena:
  // gives the block back if no bytes are in it.
  bool (*may_have_arena)(int device) = nullptr;
  std::size_t (*arena_room)(int device) = nullptr;
  std::size_t (*room_for_small)(int device) = nullptr;
  bool (*has_arena)(int device) = nullptr;
  bool (*open_arena)(int device, std::size_t bytes) = nullptr;
  void (*close_arena)(int device) = nullptr;
  // Allocate and free page-locked host memory directly with the driver. `lock_pages` throws std::bad_alloc when the
  // driver refuses, and the driver's error when a device has failed before; `unlock_pages` throws nothing.
  void* (*lock_pages)(std::size_t bytes) = nullptr;
  void (*unlock_pages)(void* memory) = nullptr;
};

} // namespace managed
