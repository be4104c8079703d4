// rules.cpp: the table of what schemas do not say.
//
// Owns nothing but constant data. Each row was found by running PyTorch's
// operator database with operands scattered over devices; to add one, add the
// row and a test in tests/align/test_align_rules.py (docs/developer_notes/rules.md).
#include <algorithm>
#include <array>

#include "torch/facts/facts.h"

namespace managed {
namespace {

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Operators that carry data between devices, or only look at tensors
// (shallow_copy_data_ is new in torch 2.15).
constexpr std::array<std::string_view, 24> kNeverAligned{
    "copy_", "_copy_from", "_copy_from_and_resize", "to", "_to_copy", "type_as",
    "set_", "set_data", "shallow_copy_data_", "is_set_to", "record_stream", "pin_memory", "_pin_memory",
    "is_pinned", "_has_same_storage_numel", "_has_compatible_shallow_copy_type", "is_same_size",
    "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "_backward", "result_type",
    "can_cast"};

// Composites whose body compares the devices of its arguments, or uses them so
// often that one copy each for the whole is cheaper and keeps the order of sums,
// or makes a result from nothing (linalg_matrix_rank of an empty matrix).
constexpr std::array<std::string_view, 31> kAlignedWhole{
    "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "tensor_split",
    "take_along_dim", "linalg_multi_dot", "cartesian_prod", "chain_matmul", "inner", "meshgrid",
    "stft", "istft", "gradient", "_weight_norm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "cosine_embedding_loss", "kl_div", "poisson_nll_loss", "cov", "linalg_matrix_rank"};

// The results share their operands' bytes, although the schema does not say so.
constexpr std::array<std::string_view, 8> kAliasesUnsaid{"_unsafe_view", "_lazy_clone",  "ctc_loss",
                                                         "tensor_split", "unsafe_split", "unsafe_split_with_sizes",
                                                         "unsafe_chunk", "lift"};
// They make tensors like another one.
constexpr std::array<std::string_view, 13> kReadsShapes{
    "empty_like", "zeros_like",        "ones_like", "full_like", "rand_like", "randn_like",  "randint_like",
    "new_empty",  "new_empty_strided", "new_zeros", "new_ones",  "new_full",  "is_same_size"};

// Tagged pointwise, but their kernels do not take a CPU number beside an accelerator tensor.
constexpr std::array<std::string_view, 3> kScalarsMoveByPrefix{"masked_fill", "logical_", "float_power"};

constexpr std::array<std::string_view, 4> kListPrefixes{"_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad"};

struct ArgRow {
  std::string_view op, argument;
  uint8_t flags;
};
constexpr ArgRow kArguments[] = {
    {"view_as", "other", kMetadata},
    {"expand_as", "other", kMetadata},
    {"reshape_as", "other", kMetadata},
    {"resize_as_", "the_template", kMetadata},
    {"resize_as", "the_template", kMetadata},
    {"resize_as_sparse_", "the_template", kMetadata},

    {"index", "indices", kHostAllowed},
    {"index_put", "indices", kHostAllowed},
    {"index_put_", "indices", kHostAllowed},
    {"_index_put_impl_", "indices", kHostAllowed},
    {"_unsafe_index", "indices", kHostAllowed},
    {"_unsafe_index_put", "indices", kHostAllowed},
    {"_unsafe_masked_index", "indices", kHostAllowed},

    {"_pack_padded_sequence", "lengths", kHostOnly},
    {"_pack_padded_sequence_backward", "batch_sizes", kHostOnly},
    {"_pad_packed_sequence", "batch_sizes", kHostOnly},
    {"lstm", "batch_sizes", kHostOnly},
    {"gru", "batch_sizes", kHostOnly},
    {"rnn_tanh", "batch_sizes", kHostOnly},
    {"rnn_relu", "batch_sizes", kHostOnly},
    {"tensor_split", "tensor_indices_or_sections", kHostOnly},
    {"ctc_loss", "input_lengths", kHostOnly},
    {"ctc_loss", "target_lengths", kHostOnly},
    {"_ctc_loss", "input_lengths", kHostOnly},
    {"_ctc_loss", "target_lengths", kHostOnly},

    {"batch_norm", "running_mean", kHiddenWrite},
    {"batch_norm", "running_var", kHiddenWrite},
    {"native_batch_norm", "running_mean", kHiddenWrite},
    {"native_batch_norm", "running_var", kHiddenWrite},
    {"_batch_norm_impl_index", "running_mean", kHiddenWrite},
    {"_batch_norm_impl_index", "running_var", kHiddenWrite},
    {"instance_norm", "running_mean", kHiddenWrite},
    {"instance_norm", "running_var", kHiddenWrite},
    {"_native_batch_norm_legit", "running_mean", kHiddenWrite},
    {"_native_batch_norm_legit", "running_var", kHiddenWrite},
    {"cudnn_batch_norm", "running_mean", kHiddenWrite},
    {"cudnn_batch_norm", "running_var", kHiddenWrite},
    {"miopen_batch_norm", "running_mean", kHiddenWrite},
    {"miopen_batch_norm", "running_var", kHiddenWrite},
    {"_batch_norm_with_update", "running_mean", kHiddenWrite},
    {"_batch_norm_with_update", "running_var", kHiddenWrite},
    {"batch_norm_gather_stats", "running_mean", kHiddenWrite},
    {"batch_norm_gather_stats", "running_var", kHiddenWrite},
    {"batch_norm_gather_stats_with_counts", "running_mean", kHiddenWrite},
    {"batch_norm_gather_stats_with_counts", "running_var", kHiddenWrite},
    {"batch_norm_update_stats", "running_mean", kHiddenWrite},
    {"batch_norm_update_stats", "running_var", kHiddenWrite},
    {"rrelu_with_noise", "noise", kHiddenWrite},
    {"fused_moving_avg_obs_fake_quant", "observer_on", kHiddenWrite},
    {"fused_moving_avg_obs_fake_quant", "running_min", kHiddenWrite},
    {"fused_moving_avg_obs_fake_quant", "running_max", kHiddenWrite},
    {"fused_moving_avg_obs_fake_quant", "scale", kHiddenWrite},
    {"fused_moving_avg_obs_fake_quant", "zero_point", kHiddenWrite},
};

} // namespace

OpRule rule_of(std::string_view base) {
  OpRule rule;
  if (contains(kNeverAligned, base)) rule.alignment = Alignment::Never;
  auto starts = [&](std::string_view prefix) { return base.substr(0, prefix.size()) == prefix; };
  if (std::any_of(kListPrefixes.begin(), kListPrefixes.end(), starts) || starts("_amp_foreach"))
    rule.alignment = Alignment::Rows;
  rule.scalars_stay_always = base == "where" || base == "clamp_";
  return rule;
}

uint8_t arg_rule_of(std::string_view base, std::string_view argument) {
  uint8_t flags = 0;
  for (const ArgRow& row : kArguments)
    if (row.op == base && row.argument == argument) flags |= row.flags;
  return flags;
}

bool reads_shapes(std::string_view base) { return contains(kReadsShapes, base); }

bool carries_bytes(std::string_view base) {
  return base == "copy_" || base == "_to_copy" || base == "_local_scalar_dense";
}

bool reads_view(std::string_view base) { return base == "_sparse_broadcast_to" || base == "_make_dual"; }

// Sparse tensors keep the very tensors that they are made of.
bool aliases_unsaid(std::string_view base) {
  const bool makes_sparse = base.find("sparse_") < 2 && base.find("_tensor") != base.npos;
  return makes_sparse || contains(kAliasesUnsaid, base);
}

bool scalars_move(std::string_view base) {
  for (auto prefix : kScalarsMoveByPrefix)
    if (base.substr(0, prefix.size()) == prefix) return true;
  return base.find("pow") != std::string_view::npos;
}

bool aligned_whole(std::string_view base) { return contains(kAlignedWhole, base); }

// Bodies that keep raw pointers, or read memory, between the operators they call.
bool reads_raw_memory(std::string_view full) {
  return full == "aten::ctc_loss.Tensor" || full == "aten::ctc_loss.IntList" ||
      full == "aten::tensor_split.tensor_indices_or_sections";
}

// On simulated devices these fused kernels are composites (csrc/sim), so their insides must reach the hook.
bool calls_composites(std::string_view full) {
  return full == "aten::_thnn_fused_lstm_cell" || full == "aten::_thnn_fused_gru_cell";
}

} // namespace managed
