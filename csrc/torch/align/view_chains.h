// view_chains.h: counts the references to a leaf's accumulator that come from views of it on other devices.
//
// The leaf's copy serves a view of the leaf that is needed elsewhere, through a node ViewHome (crossing.cpp). That node
// holds the view's own grad_fn, because the program may ask for the view's gradient, and through it the leaf's
// accumulator. move.cpp asks whether anything at home still uses the accumulator; these references must not count as
// such a use. A chain is the nodes from the view's grad_fn, its head, to the last one before the accumulator.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "torch/facts/compat.h"

namespace managed {

struct TensorState;

// All living ViewHome nodes of one view share one chain; each of them holds it and has an edge to its head.
struct Chain {
  explicit Chain(NodePtr node) : head(std::move(node)) {}
  const NodePtr head;
  std::atomic<bool> ours{true}; // only ViewHome nodes held the view's nodes when a gradient last came to one
};
using ChainHold = std::shared_ptr<Chain>;

inline long holders(const NodePtr& node) { return static_cast<long>(node.use_count()); }

// Whether torch has generated the node's class. Then its formula uses only the gradient and what the operator saved.
bool is_torchs_own(const torch::autograd::Node& node);

// Whether gradients go from `head` to the accumulator through torch's own nodes alone. Custom functions are refused,
// because what they do is unknown.
bool leads_to(const NodePtr& head, const torch::autograd::Node* accumulator);

// Whether a node from `head` to the accumulator has hooks, or the running backward pass captures its gradient.
bool is_watched(const torch::autograd::Node* head);

ChainHold hold_chain(TensorState& leaf, const NodePtr& head);

// Computes `ours`. Called before a gradient goes on into the chain, because then the engine holds its nodes, too.
void note_holders(const ChainHold& chain);

// How many references to the accumulator come from crossed views; below 0: something else, such as the program, holds
// one of the views. The first overload reads `ours`, for use inside a backward pass; the second counts anew, for use
// outside of one. `through`: the view that is being used, which counts as crossed; or undefined.
long held_by_views(TensorState& leaf);
long held_by_views(TensorState& leaf, const at::Tensor& through);

// Returns the last node of each chain, and of the chain of `through` if that is defined and requires a gradient.
std::vector<NodePtr> ends_of_views(TensorState& leaf, const at::Tensor& through);

} // namespace managed
