// pressure.h: reports to the hook what happens in CUDA's caching allocator.
//
// Owns the two places where the allocator calls other code: the callback it runs
// when no cached block fits, and the tracker of what is freed. Never decides what
// to free and never takes the GIL. docs/developer_notes/cuda_room.md says what
// holds in the allocator meanwhile.
#pragma once
#include "torch/devices/cuda_bridge.h"

namespace managed {

// Sets the hook's half. `freed` and `make_some_room` are called with the lock of the
// device's allocator held, often with the GIL held too: `freed` may take a leaf mutex and
// nothing else; `make_some_room` may free memory of that device on this very thread (the
// lock is recursive).
void set_hook(const CudaBridge* hook);

// Starts reporting freed bytes to `freed` and puts the front in its place, once for good. Does nothing while CUDA's
// allocator has no devices yet (CUDA is not initialised), or if another allocator than the native one is in use.
// Must not be called by two threads at once.
void start();

} // namespace managed
