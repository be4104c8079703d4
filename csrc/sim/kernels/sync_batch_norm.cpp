// sync_batch_norm.cpp: the operators of nn.SyncBatchNorm, which torch has for CUDA alone.
//
// Each process computes the mean and the deviation of its part of the batch; these are combined with the numbers of
// elements (T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
// 1979). Sums have the precision that CUDA's kernels use.
#include <ATen/core/Tensor.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/var_mean.h>

#include <tuple>
#include <vector>

#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;

Tensor precise(const Tensor &x) { return x.to(at::toOpMathType(x.scalar_type())); }

// All dimensions but that of the channels.
std::vector<int64_t> rows(const Tensor &x) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < x.dim(); d++)
    if (d != 1) dims.push_back(d);
  return dims;
}

// One number for each channel, in the shape that applies to x.
Tensor along(const Tensor &numbers, const Tensor &x) {
  std::vector<int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = numbers.numel();
  return numbers.view(shape);
}

std::tuple<Tensor, Tensor> stats(const Tensor &x, double eps) {
  const auto [variance, mean] = at::var_mean(precise(x), rows(x), c10::Scalar(0));
  return {mean, variance.add(eps).rsqrt()};
}

// A row of `mean` and `inverse` is that of one process.
std::tuple<Tensor, Tensor> combined_stats(const Tensor &, const Tensor &mean, const Tensor &inverse,
                                          const std::optional<Tensor> &running_mean,
                                          const std::optional<Tensor> &running_variance, double momentum, double eps,
                                          const Tensor &counts) {
  const Tensor n = counts.to(mean.scalar_type()).view({-1, 1}), total = n.sum();
  const Tensor whole = mean.mul(n).sum(0).div(total);
  const Tensor squares = inverse.pow(-2).sub(eps).add(mean.sub(whole).square()).mul(n).sum(0);
  if (running_mean && running_mean->defined()) running_mean->mul_(1 - momentum).add_(whole, momentum);
  if (running_variance && running_variance->defined())
    running_variance->mul_(1 - momentum).add_(squares.div(total.sub(1)), momentum);
  return {whole, squares.div(total).add(eps).rsqrt()};
}

Tensor normalise(const Tensor &x, const std::optional<Tensor> &weight, const std::optional<Tensor> &bias,
                 const Tensor &mean, const Tensor &inverse, double) {
  Tensor y = precise(x).sub(along(mean, x)).mul(along(inverse, x));
  if (weight && weight->defined()) y = y.mul(along(*weight, x));
  if (bias && bias->defined()) y = y.add(along(*bias, x));
  return y.to(x.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_sums(const Tensor &gradient, const Tensor &x, const Tensor &mean,
                                                         const Tensor &inverse, const std::optional<Tensor> &weight,
                                                         bool of_input, bool of_weight, bool of_bias) {
  const Tensor g = precise(gradient), sum = g.sum(rows(x)),
               products = g.mul(precise(x).sub(along(mean, x))).sum(rows(x));
  const auto type = weight && weight->defined() ? weight->scalar_type() : sum.scalar_type();
  return {of_input ? sum : Tensor(), of_input ? products : Tensor(),
          of_weight ? products.mul(inverse).to(type) : Tensor(), of_bias ? sum.to(type) : Tensor()};
}

Tensor backward(const Tensor &gradient, const Tensor &x, const Tensor &mean, const Tensor &inverse,
                const std::optional<Tensor> &weight, const Tensor &sum, const Tensor &products, const Tensor &counts) {
  const Tensor n = counts.sum().to(mean.scalar_type());
  const Tensor slope = inverse.square().mul(products).div(n);
  Tensor g = precise(gradient)
                 .sub(along(sum.div(n), x))
                 .sub(precise(x).sub(along(mean, x)).mul(along(slope, x)))
                 .mul(along(inverse, x));
  if (weight && weight->defined()) g = g.mul(along(*weight, x));
  return g.to(x.scalar_type());
}

} // namespace

void register_sync_batch_norm(torch::Library &m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_gather_stats_with_counts", &combined_stats);
  m.impl("batch_norm_elemt", &normalise);
  m.impl("batch_norm_backward_reduce", &backward_sums);
  m.impl("batch_norm_backward_elemt", &backward);
}

} // namespace managed::sim
