// graphs.cpp: see graphs.h. Python tells when one begins and ends (managed/_torch_patches/graphs.py).
#include "torch/devices/graphs.h"

#include "torch/api.h"

namespace managed {

std::atomic<int> recording_graphs{0};
std::atomic<int> private_pools{0};
std::atomic<bool> graphs_recorded{false};

} // namespace managed

using namespace managed;

void mgd_torch_private_pool(int change, int graph) {
  graphs_recorded = true;
  private_pools += change;
  if (graph) recording_graphs += change;
}
