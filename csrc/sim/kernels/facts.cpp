// facts.cpp: see facts.h.
#include "sim/facts.h"

#include <unordered_map>
#include <unordered_set>

namespace managed::sim {
namespace {

// torch's kernels on real accelerators take CPU index tensors here, and copy_
// is what crosses devices.
const std::unordered_set<std::string> &mixing() {
  static const std::unordered_set<std::string> names = {
      "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::index_put", "aten::index_put.out",
      "aten::_index_put_impl_", "aten::_unsafe_index.Tensor", "aten::_unsafe_index_put", "aten::copy_", "aten::_copy_from",
      "aten::_copy_from_and_resize", "aten::_pack_padded_sequence", "aten::is_set_to"};
  return names;
}

bool is_kind(const c10::Argument &a, c10::TypeKind kind) {
  auto type = a.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == kind;
}

bool computed_otherwise(const std::string &name) {
  static const std::unordered_set<std::string> names = {"aten::convolution", "aten::convolution_backward", "aten::convolution_overrideable",
                                                        "aten::convolution_backward_overrideable",
                                                        // Their bodies name devices, or call a kernel by the device.
                                                        "aten::mode.values", "aten::ldexp.Tensor", "aten::ldexp.out"};
  return names.count(name) > 0;
}

// Whether the program on the host must wait for the device's answer.
bool host_waits(const std::string &name) {
  static const std::unordered_set<std::string> names = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero",
                                                        "aten::masked_select", "aten::_unique2", "aten::unique_dim",
                                                        "aten::unique_consecutive", "aten::_unique", "aten::nonzero_numpy"};
  return names.count(name) > 0;
}

bool is_tensor_like(const c10::Argument &a) { return is_kind(a, c10::TypeKind::TensorType) || is_kind(a, c10::TypeKind::ListType); }

Flops flops_of(const std::string &base) {
  static const std::unordered_map<std::string, Flops> table = {{"aten::mm", Flops::mm},
                                                               {"aten::bmm", Flops::mm},
                                                               {"aten::_int_mm", Flops::mm},
                                                               {"aten::addmm", Flops::addmm},
                                                               {"aten::addmm_", Flops::addmm},
                                                               {"aten::_addmm_activation", Flops::addmm},
                                                               {"aten::baddbmm", Flops::addmm},
                                                               {"aten::baddbmm_", Flops::addmm},
                                                               {"aten::addbmm", Flops::addmm},
                                                               {"aten::addbmm_", Flops::addmm},
                                                               {"aten::mv", Flops::mv},
                                                               {"aten::addmv", Flops::addmv},
                                                               {"aten::addmv_", Flops::addmv},
                                                               {"aten::dot", Flops::dot},
                                                               {"aten::vdot", Flops::dot},
                                                               {"aten::convolution", Flops::convolution},
                                                               {"aten::convolution_overrideable", Flops::convolution},
                                                               {"aten::convolution_backward", Flops::convolution_backward},
                                                               {"aten::convolution_backward_overrideable", Flops::convolution_backward},
                                                               {"aten::_scaled_dot_product_flash_attention_for_cpu", Flops::attention},
                                                               {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", Flops::attention_backward},
                                                               {"aten::mkldnn_rnn_layer", Flops::rnn_layer},
                                                               {"aten::_linalg_solve_ex", Flops::solve},
                                                               {"aten::linalg_lu_factor_ex", Flops::factor},
                                                               {"aten::linalg_cholesky_ex", Flops::factor},
                                                               {"aten::linalg_inv_ex", Flops::factor}};
  auto it = table.find(base);
  return it == table.end() ? Flops::none : it->second;
}

bool writes(const c10::Argument &a) { return a.alias_info() && a.alias_info()->isWrite(); }

// Which written argument a result is, by the letter they share in the schema.
int written_argument(const c10::FunctionSchema &s, const OperatorFacts &f, const c10::Argument &result) {
  if (!writes(result)) return -1;
  for (int i : f.written)
    if (*s.arguments()[i].alias_info() == *result.alias_info()) return i;
  return -1;
}

// Whether it works in place, and neither only writes its operand nor touches only a part of it.
bool updates(const std::string &name) {
  static const std::unordered_set<std::string> writers{
      "aten::fill_", "aten::zero_", "aten::copy_", "aten::_foreach_zero_", "aten::_foreach_copy_", "aten::index_put_", "aten::_index_put_impl_",
      "aten::index_add_", "aten::index_copy_", "aten::index_fill_", "aten::scatter_", "aten::scatter_add_", "aten::scatter_reduce_", "aten::put_",
      "aten::set_", "aten::resize_"};
  return name.back() == '_' && !writers.count(name);
}

bool overwrites(const c10::OperatorName &name) {
  const std::string &o = name.overload_name;
  return name.name == "aten::fill_" || name.name == "aten::zero_" || (o.size() >= 3 && o.compare(o.size() - 3, 3, "out") == 0);
}

// From dtypesIfCUDA of torch's operator database (common_methods_invocations.py). No overload here writes an operand.
Widened widened_of(const std::string &name) {
  static const std::unordered_map<std::string, Widened> table = {
      {"aten::histc", Widened::integers},
      {"aten::avg_pool3d", Widened::halves},
      {"aten::avg_pool3d_backward", Widened::halves},
      {"aten::_upsample_bilinear2d_aa", Widened::halves},
      {"aten::_upsample_bilinear2d_aa_backward", Widened::halves},
      {"aten::_upsample_bicubic2d_aa", Widened::halves},
      {"aten::_upsample_bicubic2d_aa_backward", Widened::halves},
      {"aten::multi_margin_loss", Widened::halves},
      {"aten::multi_margin_loss_backward", Widened::halves},
      {"aten::multilabel_margin_loss_forward", Widened::halves},
      {"aten::multilabel_margin_loss_backward", Widened::halves}};
  const auto it = table.find(name);
  return it == table.end() ? Widened::none : it->second;
}

Unknown unknown_of(const std::string &base, bool waits) {
  static const std::unordered_map<std::string, Unknown> table = {
      {"aten::_local_scalar_dense", Unknown::scalar}, {"aten::equal", Unknown::equal},       {"aten::_fused_sdp_choice", Unknown::host_form},
      {"aten::all", Unknown::truth},                  {"aten::any", Unknown::truth},         {"aten::logical_and", Unknown::truth},
      {"aten::bitwise_and", Unknown::truth},          {"aten::index_put_", Unknown::same},   {"aten::_index_put_impl_", Unknown::same},
      {"aten::bincount", Unknown::nothing},           {"aten::repeat_interleave", Unknown::nothing},
      {"aten::_cummax_helper", Unknown::same},        {"aten::_cummin_helper", Unknown::same},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", Unknown::finite}};
  const auto it = table.find(base);
  return it != table.end() ? it->second : waits ? Unknown::nothing : Unknown::form;
}

}  // namespace

std::string full_name(const c10::OperatorName &name) { return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name; }

OperatorFacts facts_of(const c10::OperatorHandle &op) {
  OperatorFacts f;
  const auto &s = op.schema();
  f.name = full_name(op.operator_name());
  for (size_t i = 0; i < s.arguments().size(); i++) {
    const auto &a = s.arguments()[i];
    if (is_kind(a, c10::TypeKind::GeneratorType)) f.generator = static_cast<int>(i);
    if (writes(a)) f.written.push_back(static_cast<int>(i));
  }
  bool answer = false;
  for (const auto &r : s.returns()) {
    f.returned.push_back(written_argument(s, f, r));
    f.view |= r.alias_info() && !r.alias_info()->isWrite();
    answer |= is_tensor_like(r);
  }
  f.waits = host_waits(op.operator_name().name);
  f.free = f.view || (!answer && !f.waits && f.written.empty());
  f.may_mix = mixing().count(f.name) > 0;
  f.has_cpu_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  f.whole = computed_otherwise(f.name);
  f.updates = f.generator < 0 && updates(op.operator_name().name);
  f.overwrites = overwrites(op.operator_name());
  f.widened = widened_of(f.name);
  f.unknown = unknown_of(op.operator_name().name, f.waits);
  f.flops = flops_of(op.operator_name().name);
  return f;
}

}  // namespace managed::sim
