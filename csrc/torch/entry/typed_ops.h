// typed_ops.h: the operators that have a typed kernel, hottest first.
//
// They were chosen by counting calls in training and inference of an MLP, a CNN, an LSTM and transformers. Add one if a
// profile shows that it is frequent (docs/developer_notes/chokepoint.md).
#pragma once
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_safe_softmax_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/group_norm_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/nll_loss_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>

namespace managed {

template <class... Op>
struct OpList {};

using TypedOps = OpList<
    at::_ops::add_Tensor,
    at::_ops::add__Tensor,
    at::_ops::mul_Tensor,
    at::_ops::relu,
    at::_ops::view,
    at::_ops::t,
    at::_ops::mm,
    at::_ops::addmm,
    at::_ops::cat,
    at::_ops::native_layer_norm,
    at::_ops::sub_Tensor,
    at::_ops::div_Tensor,
    at::_ops::mul__Tensor,
    at::_ops::mul_Scalar,
    at::_ops::div_Scalar,
    at::_ops::add_Scalar,
    at::_ops::transpose_int,
    at::_ops::permute,
    at::_ops::expand,
    at::_ops::slice_Tensor,
    at::_ops::select_int,
    at::_ops::unsqueeze,
    at::_ops::squeeze_dim,
    at::_ops::bmm,
    at::_ops::_softmax,
    at::_ops::_log_softmax,
    at::_ops::_softmax_backward_data,
    at::_ops::_log_softmax_backward_data,
    at::_ops::gelu,
    at::_ops::gelu_backward,
    at::_ops::threshold_backward,
    at::_ops::native_layer_norm_backward,
    at::_ops::native_dropout,
    at::_ops::native_dropout_backward,
    at::_ops::sum_dim_IntList,
    at::_ops::sum,
    at::_ops::mean,
    at::_ops::mean_dim,
    at::_ops::detach,
    at::_ops::clone,
    at::_ops::_unsafe_view,
    at::_ops::as_strided,
    at::_ops::embedding,
    at::_ops::_to_copy,
    at::_ops::copy_,
    at::_ops::zero_,
    at::_ops::fill__Scalar,
    at::_ops::pow_Tensor_Scalar,
    at::_ops::sqrt,
    at::_ops::tanh,
    at::_ops::tanh_backward,
    at::_ops::sigmoid,
    at::_ops::exp,
    at::_ops::neg,
    at::_ops::where_self,
    at::_ops::baddbmm,
    at::_ops::nll_loss_forward,
    at::_ops::nll_loss_backward,
    at::_ops::ones_like,
    at::_ops::zeros_like,
    at::_ops::split_Tensor,
    at::_ops::stack,
    at::_ops::_scaled_dot_product_flash_attention_for_cpu,
    at::_ops::bernoulli__float,
    at::_ops::div__Scalar,
    at::_ops::convolution,
    at::_ops::_reshape_alias,
    at::_ops::empty_like,
    at::_ops::select_backward,
    at::_ops::_safe_softmax,
    at::_ops::embedding_dense_backward,
    at::_ops::convolution_backward,
    at::_ops::native_batch_norm,
    at::_ops::native_batch_norm_backward,
    at::_ops::_foreach_add__Scalar,
    at::_ops::_foreach_add__List,
    at::_ops::_foreach_mul__Scalar,
    at::_ops::_foreach_lerp__Scalar,
    at::_ops::_foreach_addcmul__Scalar,
    at::_ops::_foreach_sqrt,
    at::_ops::_foreach_div__ScalarList,
    at::_ops::_foreach_addcdiv__ScalarList,
    at::_ops::_fused_adamw_,
    at::_ops::linear,
    at::_ops::matmul,
    at::_ops::layer_norm,
    at::_ops::cross_entropy_loss,
    at::_ops::softmax_int,
    at::_ops::log_softmax_int,
    at::_ops::nll_loss,
    at::_ops::group_norm,
    at::_ops::conv2d,
    at::_ops::scaled_dot_product_attention>;

} // namespace managed
