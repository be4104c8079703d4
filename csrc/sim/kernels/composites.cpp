// composites.cpp: composites whose body asks which device it is on.
//
// On an accelerator dropout takes a fused kernel with other random numbers, and
// attention asks a per-device function for its kernel. Here both answer as the
// CPU does, so that equal seeds give equal numbers.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/SDPBackend.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "sim/backend.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;

// Kept elements are 1 / (1 - p), the rest are 0. They are drawn in the memory order of x, as on the CPU.
Tensor dropout_noise(const Tensor &x, double p) { return at::empty_like(x).bernoulli_(1 - p).div_(1 - p); }

void check_probability(double p) { TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p); }

Tensor dropout(const Tensor &x, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || x.sym_numel() == 0) return x;
  return x.mul(p == 1 ? at::zeros({}, x.options()) : dropout_noise(x, p));
}

Tensor &dropout_(Tensor &x, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || x.sym_numel() == 0) return x;
  return x.mul_(p == 1 ? at::zeros({}, x.options()) : dropout_noise(x, p));
}

// The CPU's kernel draws from the CPU's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor &x, double p, std::optional<bool> train) {
  if (x.sym_numel() == 0) return {x, at::empty_like(x)};
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, at::kBool)};
  Tensor mask = at::empty_like(x, at::kBool).bernoulli_(1 - p);
  return {x.mul(mask).mul_(p == 1 ? 0. : 1. / (1. - p)), mask};
}

// The CPU's flash kernel has no gradient for a mask.
int64_t choose_attention(const Tensor &q, const Tensor &k, const Tensor &v, const std::optional<Tensor> &mask, double p, bool causal,
                         std::optional<double> scale, bool gqa) {
  if (mask && mask->requires_grad() && c10::GradMode::is_enabled()) return static_cast<int64_t>(at::SDPBackend::math);
  return at::_fused_sdp_choice(q, k, v, mask, p, causal, scale, gqa);
}

}  // namespace

void register_dropout(torch::Library &m) {
  m.impl("dropout", &dropout);
  m.impl("dropout_", &dropout_);
}

void register_native_dropout(torch::Library &m) { m.impl("native_dropout", &native_dropout); }

#ifdef MANAGED_VIRTUAL_GPU
namespace {

int64_t always_math(const Tensor &, const Tensor &, const Tensor &, const std::optional<Tensor> &, double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

std::optional<Tensor> as_added(const std::optional<Tensor> &mask, const Tensor &q) {
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
  return at::where(*mask, 0.0, at::scalar_tensor(-std::numeric_limits<double>::infinity(), q.options()));
}

// Torch's composite tests for CUDA by name and pads for a kernel of CUDA's; the CPU has a kernel of its own.
Tensor attention(const Tensor &q, const Tensor &k, const Tensor &v, const std::optional<Tensor> &mask, double p, bool causal, std::optional<double> scale,
                 bool gqa) {
  if (q.is_nested() || choose_attention(q, k, v, mask, p, causal, scale, gqa) != static_cast<int64_t>(at::SDPBackend::flash_attention))
    return at::native::scaled_dot_product_attention(q, k, v, mask, p, causal, scale, gqa);
  if (q.dim() == 3) {
    const auto rows = mask && mask->defined() && mask->dim() == 3 ? std::optional<Tensor>(mask->unsqueeze(0)) : mask;
    const Tensor a = q.unsqueeze(0), b = k.unsqueeze(0), c = v.unsqueeze(0); // in this order: so gradients of one tensor are summed
    return attention(a, b, c, rows, p, causal, scale, gqa).squeeze(0);
  }
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, as_added(mask, q), scale));
}

}  // namespace

void register_attention(torch::Library &m) {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&always_math);
  m.impl("scaled_dot_product_attention", &attention);
}
#else
void register_attention(torch::Library &) { at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention); }
#endif

}  // namespace managed::sim
