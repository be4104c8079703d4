// trips.h: how gradients of a copy come home to the tensor that was copied.
//
// A trip home is the autograd node that leads from a copy on another device to its source. A leaf's state counts its
// trips home and the gradients that they expect: from these the traffic of the leaf is learned (core/traffic.c), and a
// leaf does not move by itself while a gradient is expected. How copies and their nodes are shared is in crossing.cpp.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <mutex>
#include <string>

#include "torch/facts/compat.h"
#include "torch/tensor/state.h"
#include "torch/align/values.h"

namespace managed {

// Copies the gradient to the device that the tensor left. `leaf`: the state of the tensor if it is a leaf, or null. Its
// `trips` counts all such nodes that are alive, its `waiting` those that expect a gradient.
struct TripHome : torch::autograd::Node {
  TripHome(const at::Tensor& t, c10::intrusive_ptr<TensorState> leaf);
  ~TripHome() override;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "ManagedCrossingBackward"; }

  // The copy was used: from now on a gradient is expected.
  void expect_gradient();

 protected:
  // The gradient on the device of its source. A gradient that is itself differentiated crosses like any tensor.
  at::Tensor send_home(const at::Tensor& g) const;

 private:
  // Expects no gradient any more; true if one was expected.
  bool stop_expecting();

  uint64_t object_;
  uint32_t site_;
  c10::intrusive_ptr<TensorState> leaf_; // null for what is no leaf
  std::atomic<bool> expects_gradient_{false}; // the copy was used, and no gradient has come since
};

// A new TripHome from the copy to its source. It has no edge if the source is a view of a leaf that was made without
// gradients.
NodePtr way_home(const at::Tensor& source, const at::Tensor& copy);

// Makes a TripHome the grad_fn of a copy, which is used now.
void connect(const at::Tensor& copy, NodePtr node);

// t's values on `to`, managed, as a copy of its own, for an operator that writes it or gives it out. With grad mode on,
// a gradient of the copy arrives at t on t's own device.
at::Tensor cross_alone(const at::Tensor& t, c10::Device to, const Cause& cause);

// Another tensor object over the same bytes, connected to t by autograd and not yet managed.
at::Tensor alias_of(const at::Tensor& t);

// Gradients that `end` sends to the accumulator of `leaf`, where `before` was, go on to where the leaf has moved.
void lead_home(const NodePtr& end, const at::Tensor& leaf, const at::Tensor& before);

std::mutex& traffic_mutex(); // guards TensorState::traffic

// Whether all that leads to the accumulator of a leaf are trips home and views that went the same way (`views` of them,
// as held_by_views() counts). `known`: how many other references to it there are, the caller's own included.
bool only_trips(const NodePtr& accumulator, const TensorState& leaf, long views, long known);

// Counts in the traffic of a tensor what came back from a copy of it: the values of a copy that was written.
void count_returned_values(const at::Tensor& t);

} // namespace managed
