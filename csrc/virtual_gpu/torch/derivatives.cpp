// derivatives.cpp: derivatives whose formula asks whether a tensor is CUDA's, so that they round as the CPU's do.
//
// renorm's takes norms in double, except on CUDA. Here the CPU's own is asked, differentiable as it is.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/renorm.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "virtual_gpu/torch/register.h"

namespace managed::sim {
namespace {

using at::Tensor;

struct Renorm : torch::autograd::Function<Renorm> {
  static Tensor forward(torch::autograd::AutogradContext *ctx, const Tensor &self, const at::Scalar &p, int64_t dim, const at::Scalar &most) {
    ctx->save_for_backward({self});
    ctx->saved_data["p"] = p;
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["most"] = most;
    at::AutoDispatchBelowADInplaceOrView below;
    return at::renorm(self, p, dim, most);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext *ctx, const torch::autograd::tensor_list &grads) {
    const Tensor self = ctx->get_saved_variables()[0];
    const bool again = c10::GradMode::is_enabled();
    at::AutoGradMode recorded(true);
    Tensor here = self.cpu();
    if (!here.requires_grad()) here.requires_grad_();
    const Tensor out = at::renorm(here, ctx->saved_data["p"].toScalar(), ctx->saved_data["dim"].toInt(), ctx->saved_data["most"].toScalar());
    const auto found = torch::autograd::grad({out}, {here}, {grads[0].cpu()}, again, again);
    return {found[0].to(self.device()), {}, {}, {}};
  }
};

Tensor renorm(const Tensor &self, const at::Scalar &p, int64_t dim, const at::Scalar &most) { return Renorm::apply(self, p, dim, most); }

}  // namespace

void register_derivatives(torch::Library &m) { m.impl("renorm", &renorm); }

}  // namespace managed::sim
