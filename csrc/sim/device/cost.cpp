// cost.cpp: see cost.h. A multiplication and an addition are two operations.
#include "sim/cost.h"

#include <ATen/Context.h>

#include <algorithm>

namespace managed::sim {
namespace {

using at::Tensor;

double extent(const Tensor &t, int64_t dim) {
  const int64_t d = dim < 0 ? dim + t.dim() : dim;
  return d >= 0 && d < t.dim() ? static_cast<double>(t.size(d)) : 1.0;
}

// Which of a device's units work on these numbers. Integers other than those of 8 bits take the way of float32.
mgd_precision precision_of(const Tensor &t) {
  switch (t.scalar_type()) {
    case at::kDouble:
    case at::kComplexDouble:
      return MGD_FLOAT64;
    case at::kBFloat16:
      return MGD_BFLOAT16;
    case at::kHalf:
    case at::kComplexHalf:
      return MGD_FLOAT16;
    case at::kChar:
    case at::kByte:
      return MGD_INT8;
    default:
      return MGD_FLOAT32;
  }
}

// As on CUDA the program may let float32 be rounded to TF32: in convolutions it does unless told otherwise.
bool rounds_to_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
}

// A complex product is four real ones.
Arithmetic on(const Tensor &numbers, mgd_work_kind kind, Arithmetic a) {
  const double parts = numbers.is_complex() ? 4 : 1;
  return {parts * a.fixed, parts * a.per_output, kind, precision_of(numbers)};
}

Arithmetic with_tf32(at::Float32Op op, Arithmetic a) {
  if (a.precision == MGD_FLOAT32 && rounds_to_tf32(op)) a.precision = MGD_TF32;
  return a;
}

Arithmetic matrix(const Tensor &numbers, double flops) {
  return with_tf32(at::Float32Op::MATMUL, on(numbers, MGD_WORK_MATRIX, {flops, 0}));
}

// (..., m, k) x (..., k, n): 2 m k n for each matrix.
double product(const Tensor &a, const Tensor &b) { return 2.0 * static_cast<double>(a.numel()) * extent(b, -1); }

// One output element takes 2 * (input channels of its group) * (kernel elements).
double per_weight(const Tensor &weight) {
  return 2.0 * static_cast<double>(weight.numel()) / std::max(extent(weight, 0), 1.0);
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
Arithmetic convolution(c10::ArrayRef<c10::IValue> a) {
  const Tensor &input = a[0].toTensor();
  const Tensor &weight = a[1].toTensor();
  const Arithmetic transposed{per_weight(weight) * static_cast<double>(input.numel()), 0}, usual{0, per_weight(weight)};
  return with_tf32(at::Float32Op::CONV, on(input, MGD_WORK_CONVOLUTION, a[6].toBool() ? transposed : usual));
}

// (grad_output, input, weight, ..., output_mask): one forward's worth for each gradient
// with products; output_mask is the last argument.
Arithmetic convolution_backward(c10::ArrayRef<c10::IValue> a) {
  const auto mask = a.back().toBoolList();
  const double products = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
  const Tensor &gradient = a[0].toTensor();
  const double flops = products * per_weight(a[2].toTensor()) * static_cast<double>(gradient.numel());
  return with_tf32(at::Float32Op::CONV, on(gradient, MGD_WORK_CONVOLUTION, {flops, 0}));
}

// Scores and the weighted sum: 2 products of (L, E) x (E, S) for each head.
double attention(const Tensor &q, const Tensor &k) { return 2 * 2.0 * static_cast<double>(q.numel()) * extent(k, -2); }

// (input, weight_ih, weight_hh, ...): each step multiplies with both weights.
double rnn_layer(c10::ArrayRef<c10::IValue> a) {
  const Tensor &x = a[0].toTensor();
  const double steps = static_cast<double>(x.numel()) / std::max(extent(x, -1), 1.0);
  return 2.0 * steps * static_cast<double>(a[1].toTensor().numel() + a[2].toTensor().numel());
}

// LU of an n x n matrix: 2/3 n^3 (Golub and Van Loan, Matrix Computations, 3.2);
// Cholesky is half of it and an inverse three times: within the model's error.
double factor(const Tensor &a) { return 2.0 / 3.0 * static_cast<double>(a.numel()) * extent(a, -1); }

}  // namespace

double touched_bytes(const Tensor &t) {
  if (!t.defined() || !t.has_storage()) return 0;
  double elements = static_cast<double>(t.numel());
  for (int64_t d = 0; d < t.dim() && elements > 0; d++)
    if (t.stride(d) == 0 && t.size(d) > 1) elements /= static_cast<double>(t.size(d));
  return elements * static_cast<double>(t.itemsize());
}

Arithmetic elementwise(const Tensor &result) { return on(result, MGD_WORK_ELEMENTWISE, {0, 1}); }

Arithmetic count_flops(Flops kind, c10::ArrayRef<c10::IValue> a) {
  const auto t = [&](std::size_t i) -> const Tensor & { return a[i].toTensor(); };
  switch (kind) {
    case Flops::none:
      return {};
    case Flops::mm:
      return matrix(t(0), product(t(0), t(1)));
    case Flops::addmm:
      return matrix(t(1), product(t(1), t(2)));
    case Flops::mv:
    case Flops::dot:
      return on(t(0), MGD_WORK_ELEMENTWISE, {2.0 * static_cast<double>(t(0).numel()), 0});
    case Flops::addmv:
      return on(t(1), MGD_WORK_ELEMENTWISE, {2.0 * static_cast<double>(t(1).numel()), 0});
    case Flops::convolution:
      return convolution(a);
    case Flops::convolution_backward:
      return convolution_backward(a);
    case Flops::attention:
      return matrix(t(0), attention(t(0), t(1)));
    // (grad_out, query, key, ...): five products where forward has two (Dao, FlashAttention-2, 2023, section 4.1).
    case Flops::attention_backward:
      return matrix(t(1), 2.5 * attention(t(1), t(2)));
    case Flops::rnn_layer:
      return with_tf32(at::Float32Op::RNN, on(t(0), MGD_WORK_MATRIX, {rnn_layer(a), 0}));
    // Solvers do not round to TF32.
    case Flops::solve:
      return on(t(0), MGD_WORK_MATRIX, {factor(t(0)) + product(t(0), t(1)), 0});
    case Flops::factor:
      return on(t(0), MGD_WORK_MATRIX, {factor(t(0)), 0});
  }
  return {};
}

}  // namespace managed::sim
