// memory.h: what the hook asks of CUDA's memory: the backend's half of bridge.h.
//
// Never makes a context on a device that has none, and never allocates on one.
#pragma once
#include "torch/devices/cuda_bridge.h"

namespace managed {

// Fills the backend's half. Initialises no CUDA.
void fill_backend(CudaBridge* bridge);

} // namespace managed
