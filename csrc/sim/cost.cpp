// cost.cpp: see cost.h. A multiplication and an addition are two operations.
#include "cost.h"

#include <algorithm>

namespace managed::sim {
namespace {

using at::Tensor;

double size(const Tensor &t, int64_t dim) {
  const int64_t d = dim < 0 ? dim + t.dim() : dim;
  return d >= 0 && d < t.dim() ? static_cast<double>(t.size(d)) : 1.0;
}

// (..., m, k) x (..., k, n): 2 m k n for each matrix.
double product(const Tensor &a, const Tensor &b) { return 2.0 * static_cast<double>(a.numel()) * size(b, -1); }

// One output element takes 2 * (input channels of its group) * (kernel elements).
double per_weight(const Tensor &weight) { return 2.0 * static_cast<double>(weight.numel()) / std::max(size(weight, 0), 1.0); }

// convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
Arithmetic convolution(c10::ArrayRef<c10::IValue> a) {
  const Tensor &input = a[0].toTensor();
  const Tensor &weight = a[1].toTensor();
  if (a[6].toBool()) return {per_weight(weight) * static_cast<double>(input.numel()), 0};
  return {0, per_weight(weight)};
}

// (grad_output, input, weight, ..., output_mask): one forward's worth for each gradient
// with products; output_mask is the last argument.
Arithmetic convolution_backward(c10::ArrayRef<c10::IValue> a) {
  const auto mask = a.back().toBoolList();
  const double products = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
  return {products * per_weight(a[2].toTensor()) * static_cast<double>(a[0].toTensor().numel()), 0};
}

// Scores and the weighted sum: 2 products of (L, E) x (E, S) for each head.
double attention(const Tensor &q, const Tensor &k) { return 2 * 2.0 * static_cast<double>(q.numel()) * size(k, -2); }

// (input, weight_ih, weight_hh, ...): each step multiplies with both weights.
double rnn_layer(c10::ArrayRef<c10::IValue> a) {
  const Tensor &x = a[0].toTensor();
  const double steps = static_cast<double>(x.numel()) / std::max(size(x, -1), 1.0);
  return 2.0 * steps * static_cast<double>(a[1].toTensor().numel() + a[2].toTensor().numel());
}

// LU of an n x n matrix: 2/3 n^3 (Golub and Van Loan, Matrix Computations, 3.2);
// Cholesky is half of it and an inverse three times: within the model's error.
double factor(const Tensor &a) { return 2.0 / 3.0 * static_cast<double>(a.numel()) * size(a, -1); }

}  // namespace

double touched_bytes(const Tensor &t) {
  if (!t.defined() || !t.has_storage()) return 0;
  double elements = static_cast<double>(t.numel());
  for (int64_t d = 0; d < t.dim() && elements > 0; d++)
    if (t.stride(d) == 0 && t.size(d) > 1) elements /= static_cast<double>(t.size(d));
  return elements * static_cast<double>(t.itemsize());
}

Arithmetic count_flops(Flops kind, c10::ArrayRef<c10::IValue> a) {
  switch (kind) {
    case Flops::none:
      return {};
    case Flops::mm:
      return {product(a[0].toTensor(), a[1].toTensor()), 0};
    case Flops::addmm:
      return {product(a[1].toTensor(), a[2].toTensor()), 0};
    case Flops::mv:
      return {2.0 * static_cast<double>(a[0].toTensor().numel()), 0};
    case Flops::addmv:
      return {2.0 * static_cast<double>(a[1].toTensor().numel()), 0};
    case Flops::dot:
      return {2.0 * static_cast<double>(a[0].toTensor().numel()), 0};
    case Flops::convolution:
      return convolution(a);
    case Flops::convolution_backward:
      return convolution_backward(a);
    case Flops::attention:
      return {attention(a[0].toTensor(), a[1].toTensor()), 0};
    // (grad_out, query, key, ...): five products where forward has two (Dao, FlashAttention-2, 2023, section 4.1).
    case Flops::attention_backward:
      return {2.5 * attention(a[1].toTensor(), a[2].toTensor()), 0};
    case Flops::rnn_layer:
      return {rnn_layer(a), 0};
    case Flops::solve:
      return {factor(a[0].toTensor()) + product(a[0].toTensor(), a[1].toTensor()), 0};
    case Flops::factor:
      return {factor(a[0].toTensor()), 0};
  }
  return {};
}

}  // namespace managed::sim
