// crossing.cpp: see crossing.h. Finds or makes the copy that a use shares, and connects the use with it.
//
// The autograd nodes, from the copy towards the source:
//   SharedUse   one use of a kept copy; leads to the TripHome that all uses of the copy share
//   TripHome    copies the gradient to the device of the source (trips.h)
//   ViewHome    for a view that the copy of its leaf serves: leads to the view and to the copy
#include "torch/align/crossing.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/align/view_chains.h"
#include "torch/tensor/exposure_table.h"
#include "torch/align/move.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/state.h"
#include "torch/align/trips.h"

namespace managed {
namespace {

// Stands before a shared TripHome, for one use of the copy.
struct SharedUse : torch::autograd::Node {
  SharedUse(NodeHold home, const at::Tensor& copy) : Node(kRunsFirst), home_(std::move(home)) {
    add_next_edge(torch::autograd::Edge(*home_, 0));
    add_input_metadata(copy);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override { return std::move(grads); }
  std::string name() const override { return "ManagedUseBackward"; }

 private:
  NodeHold home_;
};

// All uses of one copy share one way home, so that their gradients are summed where they arise and come home once.
void connect_shared(const at::Tensor& source, Replica& replica) {
  if (replica.slot < 0) return connect(replica.values, way_home(source, replica.values));
  if (!replica.trip_home || !((*replica.trip_home)->next_edge(0) == torch::autograd::impl::gradient_edge(source))) {
    replica.trip_home = std::make_shared<NodePtr>(way_home(source, replica.values));
    keep_trip_home(replica, replica.trip_home);
  }
  static_cast<TripHome&>(**replica.trip_home).expect_gradient();
  torch::autograd::impl::set_gradient_edge(
      replica.values, torch::autograd::Edge(make_node<SharedUse>(replica.trip_home, replica.values), 0));
}

// The gradient of a view that is served by the copy of its leaf. Edge 0 leads to the view itself; edge 1 leads to the
// copy and so to the TripHome that all its uses share. Edge 1 is cheaper. Edge 0 is taken when the view's own
// gradient is wanted (a hook, torch.autograd.grad), when edge 1 is no part of this pass, and when the backward pass is
// itself differentiated. Hooks may be added after the crossing, so this is decided when the gradient comes.
struct ViewHome : TripHome {
  ViewHome(const at::Tensor& base, const at::Tensor& view, const at::Tensor& copy, ChainHold chain)
      : TripHome(base, {}), chain_(std::move(chain)) {
    add_next_edge(torch::autograd::impl::gradient_edge(view));
    add_next_edge(torch::autograd::impl::gradient_edge(copy));
    add_input_metadata(copy);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (chain_) note_holders(chain_);
    torch::autograd::variable_list out(2);
    if (!grads[0].defined()) return out;
    if (c10::GradMode::is_enabled() || !task_should_compute_output(1) || is_watched(next_edge(0).function.get()))
      out[0] = send_home(grads[0]);
    else out[1] = std::move(grads[0]);
    return out;
  }
  std::string name() const override { return "ManagedViewBackward"; }

 private:
  ChainHold chain_; // null if the leaf has moved since the view was made
};

// `copy`: what serves as the view, a view of `there`, which is the copy of `base` or `base` itself after it has moved.
at::Tensor connect_view(const at::Tensor& base, const at::Tensor& view, const at::Tensor& there,
                        const at::Tensor& copy) {
  ChainHold chain;
  if (!there.is_same(base)) chain = hold_chain(make_state(base), view.grad_fn());
  at::Tensor r = copy.detach();
  torch::autograd::impl::set_gradient_edge(
      r, torch::autograd::Edge(make_node<ViewHome>(base, view, copy, std::move(chain)), 0));
  return r;
}

bool is_inside(const at::Tensor& view, const at::Tensor& base) {
  int64_t last = view.storage_offset() - base.storage_offset();
  bool inside = last >= 0;
  for (int64_t i = 0; i < view.dim(); i++) last += (view.size(i) - 1) * view.stride(i);
  return inside && last < base.numel();
}

// Returns the leaf whose copy can serve its view t, or undefined: w.t() and w.view() need no copies of their own. A
// view of a small part is cheaper to copy by itself.
at::Tensor shared_base(const at::Tensor& t) {
  if (!t.is_view()) return {};
  const at::Tensor base(t._base());
  const bool same_bytes = base.layout() == at::kStrided &&
      base.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl() && base.dtype() == t.dtype() &&
      !base.is_conj() && !base.is_neg();
  const int64_t most = is_written_plainly(t) ? t.numel() : 2 * t.numel(); // a copy for this call alone is no larger
  if (!same_bytes || !base.is_leaf() || !base.is_non_overlapping_and_dense() || base.numel() > most ||
      !is_inside(t, base))
    return {};
  if (records(t) &&
      !(base.requires_grad() && leads_to(t.grad_fn(), torch::autograd::impl::gradient_edge(base).function.get())))
    return {};
  return base;
}

// Looks for a kept copy first, then lets t move (settle), else copies it. `through`: the view of t by which it is
// needed, if it is one. Undefined: t itself has moved there. The copy of a plain operand serves this call alone.
Replica replica_of(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through) {
  const bool once = is_written_plainly(through.defined() ? through : t);
  Replica replica = once ? Replica{} : find_replica(t, to);
  if (replica.values.defined() || settle(t, to, cause, through)) return replica;
  if (once) {
    make_state(t); // so that its copies are counted and reported
    return {cross_values(t, to, cause), {}, -1};
  }
  SourceSnapshot source(t, through);
  return source.keep(to, cross_values(t, to, cause));
}

// Returns the copy of t on `to`, shared with all other uses if it is kept, and connected to t if autograd records; or t
// itself if it has moved there.
at::Tensor cross_shared(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through) {
  Replica replica = replica_of(t, to, cause, through);
  if (!replica.values.defined()) return t;
  if (records(t)) connect_shared(t, replica);
  mark(replica.values);
  return replica.values;
}

} // namespace

at::Tensor cross(const at::Tensor& t, c10::Device to, const Cause& cause) {
  if (needs_torch(t)) return cross_by_torch(t, to, cause);
  if (t.layout() != at::kStrided || !may_keep(t) || is_recorded()) return cross_alone(t, to, cause);
  const at::Tensor base = shared_base(t);
  if (!base.defined()) return cross_shared(t, to, cause, {});
  c10::AutoGradMode mode(records(t));
  const int64_t offset = t.storage_offset() - base.storage_offset();
  const at::Tensor there = cross_shared(base, to, cause, t);
  const at::Tensor r = there.as_strided(t.sizes(), t.strides(), offset + there.storage_offset());
  return records(t) ? connect_view(base, t, there, r) : r;
}

bool has_crossed(const at::Tensor& t, c10::Device to) {
  if (sources_alive.load(std::memory_order_relaxed) == 0 || needs_torch(t) || t.layout() != at::kStrided ||
      !may_keep(t) || is_recorded() || is_written_plainly(t))
    return false;
  const at::Tensor base = shared_base(t);
  return has_replica(base.defined() ? base : t, to);
}

} // namespace managed
