// graphs.cpp: see graphs.h. Python tells when one begins and ends (managed/_torch_patches/graphs.py).
#include "torch/devices/graphs.h"

namespace managed {

std::atomic<int> recording_graphs{0};
std::atomic<int> private_pools{0};
std::atomic<bool> graphs_recorded{false};

} // namespace managed
