// chains.h: the nodes between a view that has crossed and its leaf.
//
// The copy of a leaf serves its views, and their gradients come home with the leaf's own. But the program may ask for
// the gradient of such a view later, so a node of ours (ManagedViewBackward) holds the view's node, and through it the
// leaf's accumulator. That is no use of the leaf at home, and must not be taken for one where it is asked whether it
// may move.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "compat.h"

namespace managed {

struct TensorState;

// One for all crossings of a view that are alive; each of them has the chain and an edge to its head.
struct Chain {
  explicit Chain(NodePtr node) : head(std::move(node)) {}
  const NodePtr head;
  std::atomic<bool> ours{true}; // nobody else held the view when its gradient came last
};
using ChainHold = std::shared_ptr<Chain>;

inline long holders(const NodePtr& node) { return static_cast<long>(node.use_count()); }

// Whether gradients go from `head` to the accumulator by torch's own views alone: what a custom function does is
// unknown.
bool leads_to(const NodePtr& head, const torch::autograd::Node* accumulator);

// Whether somebody listens, or asks the backward pass that runs, for a gradient on the way.
bool is_watched(const torch::autograd::Node* head);

ChainHold hold_chain(TensorState& leaf, const NodePtr& head);

// Asked before a gradient reaches the chain: from then on the engine holds its nodes, too.
void note_holders(const ChainHold& chain);

// How many hold the accumulator for crossed views and nothing else; less than zero: the program has one of the views.
// The first is for a backward pass that runs and the second for when none does. `through`: a view that is being used.
long held_by_views(TensorState& leaf);
long held_by_views(TensorState& leaf, const at::Tensor& through);

// The last node of each chain, and of that of `through`.
std::vector<NodePtr> ends_of_views(TensorState& leaf, const at::Tensor& through);

} // namespace managed
