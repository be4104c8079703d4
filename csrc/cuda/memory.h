// memory.h: the backend's half of bridge.h, for CUDA's memory.
//
// Never makes a context on a device that has none, and never allocates there.
#pragma once
#include "torch/devices/cuda_bridge.h"

namespace managed {

// Fills the backend's half. Does not initialise CUDA.
void fill_backend(CudaBridge* bridge);

} // namespace managed
