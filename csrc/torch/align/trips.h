// trips.h: sends gradients of a copy home to the tensor that was copied.
//
// A trip home is the autograd node that leads from a copy on another device to its source. A leaf's state counts its
// trips home and the gradients that they expect. The leaf's traffic (core/traffic.c) is learned from these counts, and
// a leaf does not move by itself while a gradient is expected. crossing.cpp shares copies and their nodes.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <string>

#include "torch/facts/compat.h"
#include "torch/tensor/state.h"
#include "torch/align/values.h"

namespace managed {

// The sequence number of nodes from which a gradient crosses. The engine runs what is ready by these numbers, the
// largest first: so a gradient leaves before the device works on what it needs alone.
constexpr uint64_t kRunsFirst = std::numeric_limits<uint64_t>::max();

// Copies the gradient to the device of the copy's source. `leaf`: the state of the source if it is a leaf, or null. Its
// `trips` counts all such nodes that are alive, its `waiting` those that expect a gradient.
struct TripHome : torch::autograd::Node {
  TripHome(const at::Tensor& t, c10::intrusive_ptr<TensorState> leaf);
  ~TripHome() override;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "ManagedCrossingBackward"; }

  // Notes that the copy was used: from now on a gradient is expected.
  void expect_gradient();

  // Ends the next backward pass here: the node puts the gradient into *end instead of sending it home. The uses of a
  // kept copy share the node, so passes of several graphs may end here, each in a place of its own. mend() takes a cut
  // back that no pass has come to. One thread at a time may call these, between passes.
  void cut(at::Tensor* end);
  void mend(at::Tensor* end);
  // Sends the gradient home, if it is defined, and counts it as returned.
  at::Tensor arrive(const at::Tensor& g);
  // The device of the copy's source. The node must have an edge.
  c10::Device home() const;

 protected:
  // Returns the gradient on the device of its source. If autograd records, it crosses like any tensor.
  at::Tensor send_home(const at::Tensor& g) const;

 private:
  // Stops expecting a gradient; returns whether one was expected.
  bool stop_expecting();

  uint64_t object_;
  uint32_t site_;
  c10::intrusive_ptr<TensorState> leaf_; // null if the source is no leaf
  std::atomic<bool> expects_gradient_{false}; // the copy was used, and no gradient has come since
  std::atomic<at::Tensor*> cut_{nullptr}; // where the next pass puts the gradient; null: it goes home
};

// Makes a TripHome from the copy to its source. It has no edge if the source is a view of a leaf that was made without
// gradients.
NodePtr way_home(const at::Tensor& source, const at::Tensor& copy);

// Makes a TripHome the grad_fn of a copy, which counts as used from now on.
void connect(const at::Tensor& copy, NodePtr node);

// Returns t's values on `to`, managed, as a copy that is not shared, for an operator that writes or returns it. With
// grad mode on, a gradient of the copy arrives at t on t's own device. `takes_handle` is cross_values()'s.
at::Tensor cross_alone(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle = true);

// Returns another tensor object over the same bytes, connected to t by autograd and not yet managed.
at::Tensor alias_of(const at::Tensor& t);

// Redirects `end`, a node before the accumulator of `leaf`, after a move: its gradients, made for the device of
// `before`, are sent to the leaf's new device.
void lead_home(const NodePtr& end, const at::Tensor& leaf, const at::Tensor& before);

std::mutex& traffic_mutex(); // guards TensorState::traffic and what move.cpp remembers of moves; a leaf

// Whether only trips home and crossed views lead to the accumulator of a leaf. `views`: the references from crossed
// views, as held_by_views() counts them. `known`: how many other references there are, the caller's own included.
bool only_trips(const NodePtr& accumulator, const TensorState& leaf, long views, long known);

// Counts in t's traffic that the values of a copy that was written came back to t.
void count_returned_values(const at::Tensor& t);

} // namespace managed
