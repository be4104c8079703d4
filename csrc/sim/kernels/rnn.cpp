// rnn.cpp: recurrent layers, computed as torch computes them on the CPU.
//
// torch's composite takes fused cells on PrivateUse1, which round differently:
// the bias is added after the product instead of inside it. To be bitwise equal
// to the CPU, these functions apply the CPU's formulas in the CPU's order
// (ATen/native/RNN.cpp and ATen/native/mkldnn/RNN.cpp of torch), built from
// differentiable operators. Must never read data.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>

#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;
using at::TensorList;

struct Weights {
  Tensor ih, hh, b_ih, b_hh, hr;  // biases and the projection may be undefined
  Tensor of_input(const Tensor &x) const { return at::linear(x, ih, b_ih); }
  Tensor of_hidden(const Tensor &h) const { return at::linear(h, hh, b_hh); }
  Tensor project(const Tensor &h) const { return hr.defined() ? at::matmul(h, hr.t()) : h; }
};

// What a step hands to the next; c is undefined except for LSTM.
struct State {
  Tensor h, c;
};

// Takes the input already multiplied with its weights.
using Cell = State (*)(const Tensor &from_input, const State &, const Weights &);

State lstm_step(const Tensor &from_input, const State &s, const Weights &w) {
  const auto gates = w.of_hidden(s.h).add_(from_input).unsafe_chunk(4, 1);
  const Tensor in = Tensor(gates[0]).sigmoid_(), forget = Tensor(gates[1]).sigmoid_();
  const Tensor cell = Tensor(gates[2]).tanh_(), out = Tensor(gates[3]).sigmoid_();
  const Tensor c = forget.mul(s.c).add_(in.mul(cell));
  return {w.project(out.mul(c.tanh())), c};
}

State gru_step(const Tensor &from_input, const State &s, const Weights &w) {
  const auto i = from_input.unsafe_chunk(3, 1);
  const auto h = w.of_hidden(s.h).unsafe_chunk(3, 1);
  const Tensor reset = Tensor(h[0]).add_(i[0]).sigmoid_();
  const Tensor update = Tensor(h[1]).add_(i[1]).sigmoid_();
  const Tensor fresh = i[2].add(Tensor(h[2]).mul_(reset)).tanh_();
  return {s.h.sub(fresh).mul_(update).add_(fresh), {}};
}

State tanh_step(const Tensor &from_input, const State &s, const Weights &w) { return {w.of_hidden(s.h).add_(from_input).tanh(), {}}; }
State relu_step(const Tensor &from_input, const State &s, const Weights &w) { return {w.of_hidden(s.h).add_(from_input).relu(), {}}; }

struct Result {
  Tensor output;
  State last;
};
// One layer in one direction over a whole input.
using Layer = std::function<Result(const Tensor &x, const State &first, const Weights &w, bool reversed)>;

Result run_full(Cell cell, const Tensor &x, State s, const Weights &w, bool reversed) {
  std::vector<Tensor> steps = w.of_input(x).unbind(0), outputs;
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reversed) std::reverse(steps.begin(), steps.end());
  for (const Tensor &step : steps) {
    s = cell(step, s, w);
    outputs.push_back(s.h);
  }
  if (reversed) std::reverse(outputs.begin(), outputs.end());
  return {at::stack(outputs, 0), s};
}

State rows(const State &s, int64_t from, int64_t to) { return {s.h.narrow(0, from, to - from), s.c.defined() ? s.c.narrow(0, from, to - from) : Tensor()}; }

State join(const std::vector<State> &parts) {
  std::vector<Tensor> h, c;
  for (const State &p : parts) {
    h.push_back(p.h);
    if (p.c.defined()) c.push_back(p.c);
  }
  return {at::cat(h, 0), c.empty() ? Tensor() : at::cat(c, 0)};
}

// Sequences of decreasing length stand packed: sizes[i] of them are alive at step i.
// Forward, a finished sequence's state is put aside and joined at the end.
Result run_packed_forward(Cell cell, const Tensor &x, State s, const Weights &w, c10::IntArrayRef sizes) {
  const Tensor input = w.of_input(x);
  std::vector<Tensor> outputs;
  std::vector<State> finished;
  int64_t offset = 0, alive = sizes[0];
  for (const int64_t size : sizes) {
    const Tensor step = input.narrow(0, offset, size);
    offset += size;
    if (size < alive) {
      finished.push_back(rows(s, size, alive));
      s = rows(s, 0, size);
    }
    alive = size;
    s = cell(step, s, w);
    outputs.push_back(s.h);
  }
  finished.push_back(s);
  std::reverse(finished.begin(), finished.end());
  return {at::cat(outputs, 0), join(finished)};
}

// Backward, sequences join in as their ends are reached.
Result run_packed_reversed(Cell cell, const Tensor &x, const State &first, const Weights &w, c10::IntArrayRef sizes) {
  const Tensor input = w.of_input(x);
  std::vector<Tensor> outputs;
  int64_t offset = x.size(0), alive = sizes.back();
  State s = rows(first, 0, alive);
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] > alive) s = join({s, rows(first, alive, sizes[i])});
    alive = sizes[i];
    offset -= alive;
    s = cell(input.narrow(0, offset, alive), s, w);
    outputs.push_back(s.h);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), s};
}

struct Options {
  int64_t layers;
  double dropout;
  bool train, bidirectional;
};

struct Outcome {
  Tensor output, h, c;
};

Outcome stack_layers(const Layer &layer, Tensor x, const std::vector<State> &first, const std::vector<Weights> &weights, const Options &o) {
  const size_t directions = o.bidirectional ? 2 : 1, runs = static_cast<size_t>(o.layers) * directions;
  TORCH_CHECK(first.size() == runs, "Expected ", runs, " hidden states in stacked_rnn, got ", first.size());
  TORCH_CHECK(weights.size() == runs, "Expected weights of ", runs, " layers and directions in stacked_rnn, got ", weights.size());
  std::vector<Tensor> h, c;
  for (size_t l = 0; l < static_cast<size_t>(o.layers); l++) {
    std::vector<Tensor> outputs;
    for (size_t d = 0; d < directions; d++) {
      Result r = layer(x, first[l * directions + d], weights[l * directions + d], d == 1);
      outputs.push_back(r.output);
      h.push_back(r.last.h);
      if (r.last.c.defined()) c.push_back(r.last.c);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (o.dropout != 0 && o.train && l + 1 < static_cast<size_t>(o.layers)) x = at::dropout(x, o.dropout, true);
  }
  return {x, at::stack(h, 0), c.empty() ? Tensor() : at::stack(c, 0)};
}

std::vector<Weights> gather(TensorList flat, bool biases, bool projections) {
  const size_t per = 2 + (biases ? 2 : 0) + (projections ? 1 : 0);
  TORCH_CHECK(flat.size() % per == 0, "got an incorrect number of RNN parameters: ", flat.size(), " is no multiple of ", per);
  std::vector<Weights> all;
  for (size_t i = 0; i < flat.size(); i += per) {
    Weights w{flat[i], flat[i + 1], {}, {}, {}};
    if (biases) w.b_ih = flat[i + 2], w.b_hh = flat[i + 3];
    if (projections) w.hr = flat[i + per - 1];
    all.push_back(std::move(w));
  }
  return all;
}

std::vector<State> states(const Tensor &h, const Tensor &c = {}) {
  std::vector<State> all;
  const auto hs = h.unbind(0);
  const auto cs = c.defined() ? c.unbind(0) : std::vector<Tensor>();
  for (size_t i = 0; i < hs.size(); i++) all.push_back({hs[i], cs.empty() ? Tensor() : cs.at(i)});
  return all;
}

template <Cell cell>
Result full_layer(const Tensor &x, const State &first, const Weights &w, bool reversed) {
  return run_full(cell, x, first, w, reversed);
}

template <Cell cell>
Layer packed_layer(const Tensor &batch_sizes) {
  TORCH_CHECK(batch_sizes.device().is_cpu() && batch_sizes.dim() == 1 && batch_sizes.numel() > 0 && batch_sizes.scalar_type() == at::kLong,
              "batch_sizes is a non-empty 1-D int64 tensor on the CPU");
  const Tensor kept = batch_sizes.contiguous();
  return [kept](const Tensor &x, const State &first, const Weights &w, bool reversed) {
    const c10::IntArrayRef sizes(kept.const_data_ptr<int64_t>(), static_cast<size_t>(kept.numel()));
    return reversed ? run_packed_reversed(cell, x, first, w, sizes) : run_packed_forward(cell, x, first, w, sizes);
  };
}

template <Cell cell>
std::tuple<Tensor, Tensor> one_hidden(const Tensor &x, const Tensor &h, TensorList params, bool biases, int64_t layers, double dropout, bool train,
                                      bool bidirectional, bool batch_first) {
  auto r =
      stack_layers(&full_layer<cell>, batch_first ? x.transpose(0, 1) : x, states(h), gather(params, biases, false), {layers, dropout, train, bidirectional});
  if (batch_first) r.output.transpose_(0, 1);
  return {r.output, r.h};
}

template <Cell cell>
std::tuple<Tensor, Tensor> one_hidden_packed(const Tensor &data, const Tensor &batch_sizes, const Tensor &h, TensorList params, bool biases, int64_t layers,
                                             double dropout, bool train, bool bidirectional) {
  auto r = stack_layers(packed_layer<cell>(batch_sizes), data, states(h), gather(params, biases, false), {layers, dropout, train, bidirectional});
  return {r.output, r.h};
}

void check_lstm_state(TensorList hx, int64_t layers, bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  const int64_t expected = layers * (bidirectional ? 2 : 1);
  for (const Tensor &t : hx)
    TORCH_CHECK(t.dim() == 3 && t.size(0) == expected, "lstm expects hidden states of shape (", expected,
                ", batch, size), that is (num_layers * num_directions, batch, size), but got ", t.sizes());
}

bool onednn_has(const char *question) {
  auto op = c10::Dispatcher::singleton().findSchema({question, ""});
  return op && op->typed<bool()>().call();
}

// When torch hands an LSTM on the CPU to oneDNN.
bool onednn_takes(const Tensor &x) {
  if (!at::globalContext().userEnabledMkldnn() || x.numel() == 0) return false;
  switch (x.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return onednn_has("mkldnn::_is_mkldnn_bf16_supported");
    case at::kHalf:
      return !c10::GradMode::is_enabled() && onednn_has("mkldnn::_is_mkldnn_fp16_supported");
    default:
      return false;
  }
}

constexpr int64_t kOneDnnLstm = 2;  // the mode of mkldnn_rnn_layer

Layer onednn_layer(const Options &o, bool biases) {
  return [o, biases](const Tensor &x, const State &first, const Weights &w, bool reversed) -> Result {
    const int64_t hidden = first.h.size(-1);
    const Tensor b_ih = biases ? w.b_ih : at::zeros({w.ih.size(0)}, w.ih.options());
    const Tensor b_hh = biases ? w.b_hh : at::zeros({w.ih.size(0)}, w.ih.options());
    auto r =
        at::mkldnn_rnn_layer(x, w.ih, w.hh, b_ih, b_hh, first.h, first.c, reversed, {}, kOneDnnLstm, hidden, o.layers, biases, o.bidirectional, false, o.train);
    return {std::get<0>(r), {std::get<1>(r), std::get<2>(r)}};
  };
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three lstm(const Tensor &x, TensorList hx, TensorList params, bool biases, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  check_lstm_state(hx, layers, bidirectional);
  const bool projections = hx[0].size(2) != hx[1].size(2);
  const Options o{layers, dropout, train, bidirectional};
  const bool onednn = !projections && onednn_takes(x);
  const Layer layer = onednn ? onednn_layer(o, biases) : Layer(&full_layer<&lstm_step>);
  Tensor input = batch_first ? x.transpose(0, 1) : x;
  if (onednn) input = input.contiguous();
  auto first = onednn ? states(hx[0].contiguous(), hx[1].contiguous()) : states(hx[0], hx[1]);
  auto r = stack_layers(layer, input, first, gather(params, biases, projections), o);
  return {batch_first ? r.output.transpose(0, 1) : r.output, r.h, r.c};
}

Three lstm_packed(const Tensor &data, const Tensor &batch_sizes, TensorList hx, TensorList params, bool biases, int64_t layers, double dropout, bool train,
                  bool bidirectional) {
  check_lstm_state(hx, layers, bidirectional);
  const bool projections = hx[0].size(2) != hx[1].size(2);
  auto r = stack_layers(packed_layer<&lstm_step>(batch_sizes), data, states(hx[0], hx[1]), gather(params, biases, projections),
                        {layers, dropout, train, bidirectional});
  return {r.output, r.h, r.c};
}

using Bias = std::optional<Tensor>;

Weights cell_weights(const Tensor &x, const Tensor &h, const Tensor &ih, const Tensor &hh, const Bias &b_ih, const Bias &b_hh) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == ih.size(1), "input has inconsistent input_size: got ", x.sizes(), ", expected (batch, ", ih.size(1), ")");
  TORCH_CHECK(h.size(0) == x.size(0) && h.size(1) == hh.size(1), "hidden has an inconsistent shape: got ", h.sizes(), ", expected (", x.size(0), ", ",
              hh.size(1), ")");
  return {ih, hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor &x, TensorList hx, const Tensor &ih, const Tensor &hh, const Bias &b_ih, const Bias &b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  const Weights w = cell_weights(x, hx[0], ih, hh, b_ih, b_hh);
  // The CPU multiplies the hidden state first; the order matters only to the clock.
  const State s = lstm_step(w.of_input(x), {hx[0], hx[1]}, w);
  return {s.h, s.c};
}

Tensor gru_cell(const Tensor &x, const Tensor &h, const Tensor &ih, const Tensor &hh, const Bias &b_ih, const Bias &b_hh) {
  const Weights w = cell_weights(x, h, ih, hh, b_ih, b_hh);
  return gru_step(w.of_input(x), {h, {}}, w).h;
}

}  // namespace

void register_rnn(torch::Library &m) {
  m.impl("lstm.input", &lstm);
  m.impl("lstm.data", &lstm_packed);
  m.impl("lstm_cell", &lstm_cell);
  m.impl("gru.input", &one_hidden<&gru_step>);
  m.impl("gru.data", &one_hidden_packed<&gru_step>);
  m.impl("gru_cell", &gru_cell);
  m.impl("rnn_tanh.input", &one_hidden<&tanh_step>);
  m.impl("rnn_tanh.data", &one_hidden_packed<&tanh_step>);
  m.impl("rnn_relu.input", &one_hidden<&relu_step>);
  m.impl("rnn_relu.data", &one_hidden_packed<&relu_step>);
}

}  // namespace managed::sim
