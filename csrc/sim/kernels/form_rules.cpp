// form_rules.cpp: what results of CPU kernels look like if torch's meta kernels tell something else, or nothing.
//
// A rule gets a call's arguments as meta tensors. Those of the first table put results in the place of the arguments;
// those of the second change what the meta kernel has put there.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <unordered_map>

#include "sim/kernels/forms.h"

namespace managed::sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Arguments = c10::ArrayRef<IValue>;
using Rule = void (*)(Arguments, Stack *);

// A row as oneDNN pads it: whole cache lines, and no multiple of 256 elements, which would fall on few sets of a cache.
int64_t padded(int64_t elements, int64_t size) {
  const int64_t line = 64 / size, whole = (elements + line - 1) / line * line;
  return whole % 256 ? whole : whole + line;
}

int64_t in_pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// What oneDNN keeps of an LSTM layer in one direction for its backward pass: gates, hidden states of inputs, steps and
// gradients, cell states and their gradients, and the states before projection, each in whole pages.
// Source: set_workspace_offsets() and get_good_ld() of oneDNN's src/cpu/rnn/rnn_utils.
void keep_lstm_workspace(Arguments a, Stack *stack) {
  const Tensor x = a[0].toTensor(), h = a[5].toTensor();
  const int64_t size = x.element_size(), steps = x.size(0), n = x.size(1), hidden = h.size(-1);
  const int64_t states = 2 * (steps + 1) * n, widest = padded(std::max(x.size(2), hidden), size);
  const int64_t bytes = in_pages(steps * n * padded(4 * hidden, size) * size) + in_pages(steps * n * padded(hidden, size) * size) +
      3 * in_pages(states * widest * size) + 2 * in_pages(states * hidden * static_cast<int64_t>(sizeof(float)));
  stack->back() = at::empty({bytes}, x.options().dtype(at::kByte));
}

// A gradient for each of the two biases: inputs, two weights, two biases, two states.
void separate_biases(Arguments, Stack *stack) {
  IValue &second = stack->end()[4 - 7];
  second = at::empty_like(second.toTensor());
}

void lay_out(IValue &result, at::MemoryFormat layout) {
  const Tensor r = result.toTensor();
  if (r.defined() && r.dim() == (layout == at::MemoryFormat::ChannelsLast3d ? 5 : 4)) result = at::empty(r.sizes(), r.options(), layout);
}

void keep_layout(Arguments a, Stack *stack) { lay_out(stack->back(), a[0].toTensor().suggest_memory_format()); }

// The CPU's convolutions take the layout of either operand (thnn_conv_use_channels_last() and
// mkldnn_conv_use_channels_last() of torch's ATen/native/ConvUtils.h).
template <std::size_t input, int results>
void keep_channels_last(Arguments a, Stack *stack) {
  const Tensor x = a[input].toTensor(), weight = a[input + 1].toTensor();
  for (const auto layout : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (x.suggest_memory_format() != layout && weight.suggest_memory_format() != layout) continue;
    for (int r = 0; r < results; r++) lay_out(stack->end()[r - results], layout);
  }
}

// Losses are computed for each element in the storage that then keeps their mean.
template <bool reduces(Arguments)>
void keep_elements(Arguments a, Stack *stack) {
  if (!reduces(a)) return;
  const auto shape = at::infer_size(a[0].toTensor().sizes(), a[1].toTensor().sizes());
  const int64_t elements = std::max<int64_t>(c10::multiply_integers(shape), 1);
  stack->back() = at::empty({elements}, stack->back().toTensor().options()).as_strided({}, {});
}

template <std::size_t argument>
bool is_reduced(Arguments a) { return a[argument].toInt() != at::Reduction::None; }

// Outside of training nothing is kept of a batch.
template <std::size_t training>
void keep_no_statistics(Arguments a, Stack *stack) {
  if (a[training].toBool()) return;
  for (int kept : {1, 2}) {
    IValue &v = stack->end()[kept - 3];
    v = at::empty({0}, v.toTensor().options());
  }
}

// [batch, steps, 2 * the longest target + 1], of which the meta kernel tells less.
void keep_alphas(Arguments a, Stack *stack) {
  const Tensor x = a[0].toTensor();
  const auto lengths = a[3].toIntVector();
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  stack->back() = at::empty({static_cast<int64_t>(lengths.size()), x.size(0), 2 * longest + 1}, x.options());
}

// ---- operators for which torch has no meta kernel

template <std::size_t argument>
void as_operand(Arguments a, Stack *stack) {
  const Tensor t = a[argument].toTensor();
  stack->emplace_back(at::empty(t.sizes(), t.options()));
}

void geqrf(Arguments a, Stack *stack) {
  const Tensor t = a[0].toTensor();
  auto columns = t.sizes().vec(), tau = columns;
  std::swap(columns.end()[-1], columns.end()[-2]);
  tau.pop_back();
  tau.back() = std::min(t.size(-1), t.size(-2));
  stack->emplace_back(at::empty(columns, t.options()).mT());
  stack->emplace_back(at::empty(tau, t.options()));
}

void histogram(Arguments a, Stack *stack) {
  const auto options = a[0].toTensor().options();
  stack->emplace_back(at::empty({a[1].toInt()}, options));
  stack->emplace_back(at::empty({a[1].toInt() + 1}, options));
}

const std::unordered_map<std::string, Rule> &instead() {
  static const std::unordered_map<std::string, Rule> rules = {{"aten::_logcumsumexp", &as_operand<0>},
                                                              {"aten::multi_margin_loss_backward", &as_operand<1>},
                                                              {"aten::multilabel_margin_loss_backward", &as_operand<1>},
                                                              {"aten::fractional_max_pool3d_backward", &as_operand<1>},
                                                              {"aten::_ctc_loss_backward", &as_operand<1>},
                                                              {"aten::histogram.bin_ct", &histogram},
                                                              {"aten::geqrf", &geqrf}};
  return rules;
}

const std::unordered_map<std::string, Rule> &mended() {
  static const std::unordered_map<std::string, Rule> rules = {{"aten::mkldnn_rnn_layer", &keep_lstm_workspace},
                                                              {"aten::mkldnn_rnn_layer_backward", &separate_biases},
                                                              {"aten::max_unpool2d", &keep_layout},
                                                              {"aten::convolution", &keep_channels_last<0, 1>},
                                                              {"aten::convolution_overrideable", &keep_channels_last<0, 1>},
                                                              {"aten::convolution_backward", &keep_channels_last<1, 3>},
                                                              {"aten::convolution_backward_overrideable", &keep_channels_last<1, 3>},
                                                              {"aten::_ctc_loss", &keep_alphas},
                                                              {"aten::mse_loss", &keep_elements<&is_reduced<2>>},
                                                              {"aten::smooth_l1_loss", &keep_elements<&is_reduced<2>>},
                                                              {"aten::binary_cross_entropy", &keep_elements<&is_reduced<3>>},
                                                              {"aten::native_batch_norm", &keep_no_statistics<5>},
                                                              {"aten::_native_batch_norm_legit", &keep_no_statistics<5>},
                                                              {"aten::_native_batch_norm_legit.no_stats", &keep_no_statistics<3>}};
  return rules;
}

}  // namespace

bool tell_instead(const std::string &name, Arguments arguments, Stack *stack) {
  const auto rule = instead().find(name);
  if (rule == instead().end()) return false;
  torch::jit::drop(*stack, arguments.size());
  rule->second(arguments, stack);
  return true;
}

void mend(const std::string &name, Arguments arguments, Stack *stack) {
  const auto rule = mended().find(name);
  if (rule != mended().end()) rule->second(arguments, stack);
}

}  // namespace managed::sim
