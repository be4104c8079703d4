// crossing.cpp: makes copies on other devices and brings their gradients home. Where a tensor is needed is decided
// elsewhere (align.cpp, move.h).
//
// The autograd nodes, from the copy towards the source:
//   SharedUse   one use of a kept copy; leads to the TripHome that all uses of the copy share
//   TripHome    copies the gradient to the device of the source
//   ViewHome    for a view that the copy of its leaf serves: leads to the view and to the copy
#include "crossing.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "adopt.h"
#include "api.h"
#include "beside.h"
#include "chains.h"
#include "compat.h"
#include "devices.h"
#include "executor.h"
#include "exposure_table.h"
#include "graphs.h"
#include "hold.h"
#include "move.h"
#include "record.h"
#include "replica.h"
#include "state.h"

namespace managed {
namespace {

// Whether the program is being recorded: by a CUDA graph, jit tracing, a TorchDispatchMode or functorch. Then each
// crossing is a real copy. A kept one would become a constant of the recording, and a graph would read it even after
// its source was written or its memory served others.
bool is_recorded() {
  return recording_graphs.load(std::memory_order_relaxed) || torch::jit::tracer::isTracing() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool records(const at::Tensor& t) { return c10::GradMode::is_enabled() && t.requires_grad(); }

// Tensors whose copy torch itself must record: wrappers, or a tangent that has to cross too.
bool needs_torch(const at::Tensor& t) {
  return (t.layout() == at::kStrided && !t.has_storage()) || t.layout() == at::kMkldnn ||
      t.unsafeGetTensorImpl()->is_python_dispatch() ||
      t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::ZeroTensor, c10::DispatchKey::Functionalize})) ||
      t._fw_grad(/*level=*/0).defined();
}

uint64_t object_of(const at::Tensor& t) {
  TensorState* s = state_of(t);
  return s ? s->object : 0;
}

// Measures one copy and writes it into the trace.
class Traced {
 public:
  Traced(const at::Tensor& t, c10::Device to, const Cause& cause) : copied_(cause.kind == MGD_EV_COPY ? &t : nullptr) {
    event_.object = object_of(t);
    event_.time = now();
    event_.operator_name = cause.operator_name;
    event_.kind = static_cast<int16_t>(cause.kind);
    event_.reason = static_cast<int16_t>(cause.reason);
    event_.from = static_cast<int16_t>(id_of(t.device()));
    event_.to = static_cast<int16_t>(id_of(to));
  }
  // For the copy that brings a gradient home: it belongs to the tensor of the crossing and to the line of the program
  // that caused it. It does not count as a repeated copy, because the crossing has been counted.
  void answers(uint64_t object, uint32_t site) {
    event_.object = object;
    event_.site = site;
    copied_ = nullptr;
  }
  void came_from(int device) { event_.from = static_cast<int16_t>(device); }
  void done(int64_t bytes) {
    event_.bytes = bytes;
    event_.duration = now() - event_.time;
    record(event_, copied_);
  }

 private:
  const at::Tensor* copied_;
  mgd_event event_{};
  const Recorded recorded_;
};

bool is_expanded(const at::Tensor& t) {
  if (t.layout() != at::kStrided || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || t.numel() < 2)
    return false;
  for (int64_t i = 0; i < t.dim(); i++)
    if (t.stride(i) == 0 && t.size(i) > 1) return true;
  return false;
}

// Copies one row of every expanded dimension and expands it again over there.
at::Tensor copy_expanded(const at::Tensor& t, c10::Device to, int64_t* bytes) {
  at::Tensor core = t;
  for (int64_t i = 0; i < t.dim(); i++)
    if (t.stride(i) == 0 && t.size(i) > 1) core = core.narrow(i, 0, 1);
  *bytes = bytes_of(core);
  return core.to(to).expand(t.sizes());
}

// Copies t from where its bytes are, if they have left their device: to bring them home first could force others to
// leave there. Undefined: the bytes are home or cannot be read where they are, t is not one dense piece, or torch or a
// recorder must see the copy.
at::Tensor copy_from_afar(const at::Tensor& t, c10::Device to, Traced& trace) {
  if (t.layout() != at::kStrided || !t.has_storage()) return {};
  StorageHandle* h = handle_of(t.storage().unsafeGetStorageImpl());
  if (C10_LIKELY(!h || !mgd_handle_is_away(h))) return {};
  if (needs_torch(t) || is_recorded() || t.is_conj() || t.is_neg() || t.numel() == 0 ||
      !t.is_non_overlapping_and_dense())
    return {};
  Turn turn(id_of(to)); // until the copy can leave, too
  Hold::take_turn(turn, h);
  at::Tensor r;
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey); // it gets its handle when it is complete
    r = at::empty_strided(t.sizes(), t.strides(), t.options().device(to));
  }
  int from = 0;
  const std::size_t offset = static_cast<std::size_t>(t.storage_offset()) * t.element_size();
  if (!copy_from_where_it_is(*h, offset, t.nbytes(), id_of(to), r.mutable_data_ptr(),
                             to.is_cpu() ? nullptr : &r.storage().data_ptr(), &from))
    return {};
  trace.came_from(from);
  mark(r);
  if (!mgd_torch_in_backward()) give_handle(r, true); // as mark_result() has it
  return r;
}

// Whether t is one dense piece of numbers and nothing more, and neither torch nor a recorder must see a copy of it.
bool is_plain_piece(const at::Tensor& t) {
  return t.layout() == at::kStrided && t.has_storage() && !needs_torch(t) && !is_recorded() && !t.is_conj() &&
      !t.is_neg() && !t.is_quantized() && !has_names(t) && t.numel() > 0 && t.is_non_overlapping_and_dense();
}

at::Tensor copy_values(const at::Tensor& t, c10::Device to, Traced& trace, int64_t* bytes, bool takes_handle) {
  c10::InferenceMode no_inference(
      false); // the copy may meet autograd later; this guard turns grad mode on, so it comes first
  c10::AutoGradMode no_grad(false);
  *bytes = bytes_of(t);
  if (at::Tensor r = copy_from_afar(t, to, trace); r.defined()) return r;
  if (takes_handle) {
    if (at::Tensor r = is_plain_piece(t) ? copy_beside(t, to, true) : at::Tensor(); r.defined()) return r;
  }
  // t may be the plain base of a managed view, which no hook would bring home.
  const HeldTensor held(t, false, id_of(to));
  at::Tensor d = t.detach();
  return is_expanded(d) ? copy_expanded(d, to, bytes) : d.to(to);
}

// The way back of a crossing: the gradient goes to the device that the tensor left. A leaf's state hears of it, because
// that tells whether the leaf should live elsewhere: its `trips` counts all such nodes that are alive, its `waiting`
// those that expect a gradient. The leaf does not move by itself while one is expected.
struct TripHome : torch::autograd::Node {
  TripHome(const at::Tensor& t, c10::intrusive_ptr<TensorState> leaf)
      : object_(object_of(t)), site_(call_site()), leaf_(std::move(leaf)) {
    if (leaf_) leaf_->trips++;
  }
  ~TripHome() override {
    stop_expecting();
    if (leaf_) leaf_->trips--;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list out(1);
    if (grads[0].defined() && next_edge(0).is_valid()) out[0] = send_home(grads[0]);
    if (leaf_ && stop_expecting()) count_returned_gradient(*leaf_, next_edge(0).function);
    return out;
  }

  // The copy was used: from now on a gradient is expected.
  void expect_gradient() {
    if (leaf_ && !expects_gradient_.exchange(true)) leaf_->waiting++;
  }
  std::string name() const override { return "ManagedCrossingBackward"; }

 protected:
  at::Tensor send_home(const at::Tensor& g) const;

 private:
  // Expects none any more; true if one was expected.
  bool stop_expecting() {
    const bool waited = expects_gradient_.exchange(false);
    if (waited) leaf_->waiting--;
    return waited;
  }

  uint64_t object_;
  uint32_t site_;
  c10::intrusive_ptr<TensorState> leaf_; // null for what is no leaf
  std::atomic<bool> expects_gradient_{false}; // the copy was used, and no gradient has come since
};

NodePtr way_home(const at::Tensor& source, const at::Tensor& copy) {
  c10::intrusive_ptr<TensorState> leaf;
  torch::autograd::Edge home =
      torch::autograd::impl::gradient_edge(source); // none where a view of a leaf was made without gradients
  if (source.is_leaf() && home.is_valid()) leaf = c10::intrusive_ptr<TensorState>::reclaim_copy(&make_state(source));
  NodePtr node = make_node<TripHome>(source, std::move(leaf));
  node->add_next_edge(std::move(home));
  node->add_input_metadata(copy);
  return node;
}

void connect(const at::Tensor& copy, NodePtr node) {
  static_cast<TripHome&>(*node).expect_gradient();
  torch::autograd::impl::set_gradient_edge(copy, torch::autograd::Edge(std::move(node), 0));
}

// A gradient that is itself differentiated crosses like any tensor.
at::Tensor TripHome::send_home(const at::Tensor& g) const {
  const torch::autograd::Edge& next = next_edge(0);
  const c10::Device home = next.function->input_metadata(next.input_nr).device(); // a leaf may have moved since
  if (g.device() == home) return g;
  Traced trace(g, home, {"gradient", MGD_EV_COPY, MGD_WHY_GRADIENT});
  trace.answers(object_, site_);
  const bool managed = has_key(g.unsafeGetTensorImpl());
  const bool ours = managed && !needs_torch(g) && (records(g) || !is_expanded(g)); // torch's is dense: hooks write it
  int64_t bytes = bytes_of(g);
  at::Tensor r = ours ? copy_values(g, home, trace, &bytes, true) : g.to(home);
  if (ours && records(g)) connect(r, way_home(g, r));
  if (managed) mark(r);
  trace.done(bytes);
  return r;
}

// Before a shared way home: one use's part in it.
struct SharedUse : torch::autograd::Node {
  SharedUse(NodeHold home, const at::Tensor& copy) : home_(std::move(home)) {
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
// copy and so to the TripHome that all its uses share. Edge 1 is cheaper. Edge 0 is taken when somebody wants the
// view's own gradient (a hook, torch.autograd.grad), when edge 1 is no part of this pass, and when the backward pass is
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
  ChainHold chain_; // null where the leaf has moved since the view was made
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

// The leaf whose copy can serve a view of it: w.t() and w.view() need no copies of
// their own. A view of a small part is cheaper to copy by itself.
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

} // namespace

at::Tensor alias_of(const at::Tensor& t) {
  if (t.layout() == at::kStrided) return t.alias();
  at::Tensor r = t.detach(); // aten::alias knows strided tensors only
  if (records(t)) connect(r, way_home(t, r));
  return r;
}

at::Tensor copy_from_host(const at::Tensor& t, c10::Device to) {
  if (!t.is_cpu() || records(t) || !is_plain_piece(t)) return {};
  c10::InferenceMode no_inference(false); // as copy_values() has it
  c10::AutoGradMode no_grad(false);
  return copy_beside(t, to, false);
}

at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle) {
  Traced trace(t, to, cause);
  int64_t bytes = 0;
  at::Tensor r = copy_values(t, to, trace, &bytes, takes_handle);
  mark(r);
  trace.done(bytes);
  return r;
}

namespace {

at::Tensor cross_by_torch(const at::Tensor& t, c10::Device to, const Cause& cause) {
  Traced trace(t, to, cause);
  at::Tensor r = t.to(to);
  mark(r);
  trace.done(bytes_of(t));
  return r;
}

// A kept copy is looked for first, then t may move (settle), else it is copied. `through`: the view of t by which it is
// needed, if it is one. Undefined: t itself has moved there. The copy of a plain operand serves this call alone.
Replica replica_of(const at::Tensor& t, c10::Device to, const Cause& cause, const at::Tensor& through) {
  const bool once = is_written_plainly(through.defined() ? through : t);
  Replica replica = once ? Replica{} : find_replica(t, to);
  if (replica.values.defined() || settle(t, to, cause, through)) return replica;
  if (once) {
    make_state(t); // its copies are counted, and told of
    return {cross_values(t, to, cause), {}, -1};
  }
  SourceSnapshot source(t, through);
  return source.keep(to, cross_values(t, to, cause));
}

} // namespace

at::Tensor cross_alone(const at::Tensor& t, c10::Device to, const Cause& cause) {
  if (needs_torch(t)) return cross_by_torch(t, to, cause);
  at::Tensor r = cross_values(t, to, cause);
  if (records(t)) connect(r, way_home(t, r));
  return r;
}

void lead_home(const NodePtr& end, const at::Tensor& leaf, const at::Tensor& before) {
  NodePtr node = way_home(leaf, before);
  end->next_edges()[0] = torch::autograd::Edge(std::move(node), 0); // set_next_edge refuses a node that has a parent
}

namespace {

// The copy of t on `to`, shared with all other uses if it is kept, and connected to t if autograd records. t itself if
// it has moved there.
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

} // namespace managed
