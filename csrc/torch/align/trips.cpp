// trips.cpp: see trips.h.
#include "torch/align/trips.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/align/view_chains.h"
#include "torch/devices/devices.h"
#include "torch/threads/forks.h"

namespace managed {

std::mutex& traffic_mutex() {
  static auto* mutex = [] {
    survive_fork<traffic_mutex>();
    return new std::mutex; // never destroyed, like all that tensors may reach when the process ends
  }();
  return *mutex;
}
const MadeAtStart traffic_at_start([] { traffic_mutex(); });

bool only_trips(const NodePtr& accumulator, const TensorState& leaf, long views, long known) {
  return views >= 0 && holders(accumulator) <= leaf.trips + views + known;
}

namespace {

// Counts in the traffic of a leaf the gradient that came back from a copy of it, on its way to the accumulator.
void count_returned_gradient(TensorState& s, const NodePtr& accumulator) {
  const bool idle = only_trips(accumulator, s, held_by_views(s), 0);
  std::lock_guard<std::mutex> lock(traffic_mutex());
  mgd_traffic_returned(&s.traffic, idle);
}

} // namespace

void count_returned_values(const at::Tensor& t) {
  TensorState& s = make_state(t);
  std::lock_guard<std::mutex> lock(traffic_mutex());
  mgd_traffic_returned(&s.traffic, true);
}

TripHome::TripHome(const at::Tensor& t, c10::intrusive_ptr<TensorState> leaf)
    : Node(kRunsFirst), object_(object_of(t)), site_(call_site()), leaf_(std::move(leaf)) {
  if (leaf_) leaf_->trips++;
}

TripHome::~TripHome() {
  stop_expecting();
  if (leaf_) leaf_->trips--;
}

torch::autograd::variable_list TripHome::apply(torch::autograd::variable_list&& grads) {
  torch::autograd::variable_list out(1);
  if (at::Tensor* end = cut_.exchange(nullptr)) *end = std::move(grads[0]);
  else out[0] = arrive(grads[0]);
  return out;
}

at::Tensor TripHome::arrive(const at::Tensor& g) {
  at::Tensor r;
  if (g.defined() && next_edge(0).is_valid()) r = send_home(g);
  if (leaf_ && stop_expecting()) count_returned_gradient(*leaf_, next_edge(0).function);
  return r;
}

void TripHome::cut(at::Tensor* end) { cut_ = end; }

void TripHome::mend(at::Tensor* end) { cut_.compare_exchange_strong(end, nullptr); }

c10::Device TripHome::home() const {
  const torch::autograd::Edge& next = next_edge(0);
  return next.function->input_metadata(next.input_nr).device(); // a leaf may have moved since the copy was made
}

void TripHome::expect_gradient() {
  if (leaf_ && !expects_gradient_.exchange(true)) leaf_->waiting++;
}

bool TripHome::stop_expecting() {
  const bool waited = expects_gradient_.exchange(false);
  if (waited) leaf_->waiting--;
  return waited;
}

NodePtr way_home(const at::Tensor& source, const at::Tensor& copy) {
  c10::intrusive_ptr<TensorState> leaf;
  torch::autograd::Edge home = torch::autograd::impl::gradient_edge(source);
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

at::Tensor TripHome::send_home(const at::Tensor& g) const {
  const c10::Device home = this->home();
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

at::Tensor cross_alone(const at::Tensor& t, c10::Device to, const Cause& cause, bool takes_handle) {
  if (needs_torch(t)) return cross_by_torch(t, to, cause);
  at::Tensor r = cross_values(t, to, cause, takes_handle);
  if (records(t)) connect(r, way_home(t, r));
  return r;
}

at::Tensor alias_of(const at::Tensor& t) {
  if (t.layout() == at::kStrided) return t.alias();
  at::Tensor r = t.detach(); // aten::alias knows strided tensors only
  if (records(t)) connect(r, way_home(t, r));
  return r;
}

void lead_home(const NodePtr& end, const at::Tensor& leaf, const at::Tensor& before) {
  NodePtr node = way_home(leaf, before);
  end->next_edges()[0] = torch::autograd::Edge(std::move(node), 0); // set_next_edge refuses a node that has a parent
}

} // namespace managed
