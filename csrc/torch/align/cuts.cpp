// cuts.cpp: see cuts.h.
#include "torch/align/cuts.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <utility>

namespace managed {
namespace {

class Walk {
 public:
  std::vector<Piece> pieces;

  // Enters a node of the graph in the piece of a device. False: it is in another piece already.
  bool enter(const NodePtr& node, c10::Device device) {
    const std::size_t piece = piece_on(device);
    const auto [known, fresh] = piece_of_.emplace(node.get(), piece);
    if (fresh) {
      if (dynamic_cast<torch::autograd::AccumulateGrad*>(node.get())) pieces[piece].leaves.push_back(node);
      else open_.emplace_back(node, piece);
    }
    return known->second == piece;
  }

  // Follows the edges of all nodes that were entered. Returns the first node that belongs to two pieces, or null.
  const torch::autograd::Node* follow() {
    while (!open_.empty()) {
      const auto [node, piece] = std::move(open_.back());
      open_.pop_back();
      auto* trip = dynamic_cast<TripHome*>(node.get());
      if (trip && trip->num_outputs() != 1) return trip; // to a view and to the copy of its base (crossing.cpp)
      if (trip && !trip->next_edge(0).is_valid()) continue;
      if (trip) pieces[piece].crossings.push_back(node);
      const c10::Device device = trip ? trip->home() : pieces[piece].device;
      for (const torch::autograd::Edge& next : node->next_edges())
        if (next.is_valid() && !enter(next.function, device)) return next.function.get();
    }
    return nullptr;
  }

 private:
  std::size_t piece_on(c10::Device device) {
    for (std::size_t i = 0; i < pieces.size(); i++)
      if (pieces[i].device == device) return i;
    pieces.push_back({device, {}, {}});
    return pieces.size() - 1;
  }

  std::unordered_map<const torch::autograd::Node*, std::size_t> piece_of_;
  std::vector<std::pair<NodePtr, std::size_t>> open_;
};

} // namespace

std::vector<Piece> cut_at_crossings(const at::Tensor& root, std::string* why) {
  Walk walk;
  (void)walk.enter(torch::autograd::impl::gradient_edge(root).function, root.device());
  const torch::autograd::Node* torn = walk.follow();
  if (!torn) return std::move(walk.pieces);
  *why = torn->name() + " gets gradients on two devices";
  return {};
}

} // namespace managed
