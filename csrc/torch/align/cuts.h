// cuts.h: cuts the graph of a backward pass into pieces, one for each device.
//
// A pipeline runs the backward pass of a part of the batch a device at a time, so that devices work on several parts at
// once. A piece is what the engine can run on one device from the gradients that have come to it. It ends at the leaves
// of the device, and at the crossings to other devices (TripHome), which keep the gradients until they are asked for.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "torch/align/trips.h"

namespace managed {

struct Piece {
  c10::Device device;
  std::vector<NodePtr> leaves; // accumulators
  std::vector<NodePtr> crossings; // TripHomes that have an edge
};

// Returns the pieces of the graph behind `root`, that of the root first. Empty, with the reason in *why: a node would
// belong to two pieces, so its gradients are not complete when the first of them runs.
std::vector<Piece> cut_at_crossings(const at::Tensor& root, std::string* why);

} // namespace managed
