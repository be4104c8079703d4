// crossing.cpp: makes the copies that alignment needs and brings gradients home.
//
// Owns the autograd node of a crossing. Never decides where anything goes.
#include "crossing.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "compat.h"
#include "devices.h"
#include "record.h"
#include "state.h"

namespace managed {
namespace {

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
  // A trip home is about the tensor whose gradient it brings and the line whose copy it answers; that copy has been counted.
  void answers(uint64_t object, uint32_t site) {
    event_.object = object;
    event_.site = site;
    copied_ = nullptr;
  }
  void done(int64_t bytes) {
    event_.bytes = bytes;
    event_.duration = now() - event_.time;
    record(event_, copied_);
  }

 private:
  const at::Tensor* copied_;
  mgd_event event_{};
};

bool is_expanded(const at::Tensor& t) {
  if (t.layout() != at::kStrided || t.numel() < 2) return false;
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

at::Tensor copy_values(const at::Tensor& t, c10::Device to, int64_t* bytes) {
  c10::InferenceMode no_inference(false); // the copy may meet autograd later; this guard turns grad mode on, so it comes first
  c10::AutoGradMode no_grad(false);
  at::Tensor d = t.detach();
  if (is_expanded(d)) return copy_expanded(d, to, bytes);
  *bytes = bytes_of(d);
  return d.to(to);
}

// The way back of a crossing: the gradient goes to the device that the tensor left.
struct TripHome : torch::autograd::Node {
  explicit TripHome(const at::Tensor& t) : home_(t.device()), object_(object_of(t)), site_(call_site()) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list out(1);
    if (grads[0].defined()) out[0] = bring(grads[0]);
    return out;
  }
  std::string name() const override { return "ManagedCrossingBackward"; }

 private:
  at::Tensor bring(const at::Tensor& g) const {
    Traced trace(g, home_, {"gradient", MGD_EV_COPY, MGD_WHY_GRADIENT});
    trace.answers(object_, site_);
    const bool managed = has_key(g.unsafeGetTensorImpl());
    at::Tensor r = g.to(home_);
    if (managed) mark(r);
    trace.done(bytes_of(g));
    return r;
  }

  c10::Device home_;
  uint64_t object_;
  uint32_t site_;
};

void connect(const at::Tensor& source, at::Tensor& copy) {
  NodePtr node = make_node<TripHome>(source);
  node->add_next_edge(torch::autograd::impl::gradient_edge(source));
  node->add_input_metadata(copy);
  torch::autograd::impl::set_gradient_edge(copy, torch::autograd::Edge(std::move(node), 0));
}

// Tensors whose copy torch itself must record: no storage of their own, or a tangent that has to cross too.
bool needs_torch(const at::Tensor& t) {
  return t.layout() != at::kStrided || !t.has_storage() || t.unsafeGetTensorImpl()->is_python_dispatch() ||
      t.key_set().has(c10::DispatchKey::ZeroTensor) || t._fw_grad(/*level=*/0).defined();
}

} // namespace

at::Tensor alias_of(const at::Tensor& t) {
  if (t.layout() == at::kStrided) return t.alias();
  at::Tensor r = t.detach(); // aten::alias knows strided tensors only
  if (c10::GradMode::is_enabled() && t.requires_grad()) connect(t, r);
  return r;
}

at::Tensor cross_values(const at::Tensor& t, c10::Device to, const Cause& cause) {
  Traced trace(t, to, cause);
  int64_t bytes = 0;
  at::Tensor r = copy_values(t, to, &bytes);
  mark(r);
  trace.done(bytes);
  return r;
}

at::Tensor cross(const at::Tensor& t, c10::Device to, const Cause& cause) {
  if (needs_torch(t)) {
    Traced trace(t, to, cause);
    at::Tensor r = t.to(to);
    mark(r);
    trace.done(bytes_of(t));
    return r;
  }
  at::Tensor r = cross_values(t, to, cause);
  if (c10::GradMode::is_enabled() && t.requires_grad()) connect(t, r);
  return r;
}

} // namespace managed
