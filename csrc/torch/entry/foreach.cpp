// foreach.cpp: list operators (_foreach_*, _fused_*, _amp_foreach_*) whose rows
// live on several devices. Row j is the j-th tensor of every list of full
// length; rows are independent, so each device gets one call with its rows. A device
// whose rows need more than an eighth of its budget gets several calls: what the first
// one used may leave before the next.
#include <ATen/core/jit_type.h>
#include <ATen/ops/tensor.h>

#include "torch/align/align.h"
#include "torch/entry/aligned_call.h"
#include "torch/align/crossing.h"
#include "torch/devices/devices.h"
#include "torch/residency/hold.h"

namespace managed {
namespace {

// The operands of one call may take 1 / kPieces of the device's budget. Smaller pieces let a step run in less room,
// larger ones leave the operator more to do at once; on large devices, where it does not matter, one piece holds all
// operands.
constexpr int64_t kPieces = 8;

int64_t largest_call(c10::Device d) {
  mgd_usage usage{};
  if (d.is_cpu() || mgd_ledger_usage(machine(), id_of(d), &usage) != MGD_OK) return INT64_MAX;
  return usage.capacity / kPieces;
}

class Rows {
 public:
  Rows(const c10::OperatorHandle& op, const OpFacts& f, std::vector<c10::IValue> arguments)
      : op_(op), f_(f), arguments_(std::move(arguments)), results_(f.returns) {
    for (const TensorArg& a : f.tensors)
      if (a.shape != ArgShape::One && arguments_[a.index].isList())
        count_ = std::max(count_, arguments_[a.index].toListRef().size());
    for (auto& r : results_) r.resize(count_);
    for (std::size_t row = 0; row < count_; row++) choices_.push_back(choose_row(row));
  }

  // Lists of other lengths are the caller's mistake, which torch reports best.
  bool lengths_agree() const {
    for (const TensorArg& a : f_.tensors)
      if (a.shape != ArgShape::One && arguments_[a.index].isList()) {
        const std::size_t n = arguments_[a.index].toListRef().size();
        if (n != 0 && n != count_) return false;
      }
    return true;
  }

  void run(torch::jit::Stack& stack) {
    if (!lengths_agree()) {
      for (c10::IValue& v : arguments_) stack.push_back(std::move(v));
      return call_aligned(op_, f_, stack);
    }
    for (const auto& rows : pieces()) call(rows, choices_[rows.front()]);
    push_results(stack);
  }

 private:
  bool per_row(const c10::IValue& v) const { return v.isList() && v.toListRef().size() == count_; }

  // Calls f with each tensor of the row and what the schema says of it.
  template <class F>
  void each_operand(std::size_t row, const F& f) const {
    for (const TensorArg& a : f_.tensors) {
      const c10::IValue& v = arguments_[a.index];
      if (a.shape == ArgShape::One || !per_row(v)) continue;
      const c10::IValue& e = v.toListRef()[row];
      if (e.isTensor() && e.toTensor().defined()) f(e.toTensor(), a);
    }
  }

  int64_t row_bytes(std::size_t row) const {
    int64_t bytes = 0;
    each_operand(row, [&](const at::Tensor& t, const TensorArg&) { bytes += bytes_of(t); });
    return bytes;
  }

  // The rows of each call. They are known before the first call, so that a row that its device can never hold fails
  // before any row is written.
  std::vector<std::vector<std::size_t>> pieces() const {
    std::vector<std::vector<std::size_t>> all;
    std::vector<bool> done(count_, false);
    for (std::size_t first = 0; first < count_; first++) {
      if (done[first]) continue;
      std::vector<std::size_t> same;
      int64_t left = largest_call(choices_[first].device);
      // One row needs more than the device may hold. Restoring it throws, before any row is written.
      if (row_bytes(first) / kPieces > left) restore_row(first);
      for (std::size_t row = first; row < count_; row++) {
        if (done[row] || choices_[row].device != choices_[first].device) continue;
        const int64_t bytes = row_bytes(row);
        if (!same.empty() && bytes > left) break;
        left -= bytes;
        same.push_back(row);
        done[row] = true;
      }
      all.push_back(std::move(same));
    }
    return all;
  }

  // Throws managed's OutOfMemoryError if the row's operands do not fit together.
  void restore_row(std::size_t row) const {
    Turn turn;
    Hold hold(&turn);
    each_operand(row, [&](const at::Tensor& t, const TensorArg&) {
      if (t.device() == choices_[row].device) hold.add(t, false);
    });
    hold.bring_home(f_.c_name);
  }

  Choice choose_row(std::size_t row) const {
    Operands operands;
    each_operand(row,
                 [&](const at::Tensor& t, const TensorArg& a) { operands.push_back({t, &a, static_cast<int>(row)}); });
    if (operands.empty()) return {c10::Device(c10::kCPU), MGD_WHY_NONE};
    const auto choice = choose(f_, operands, c10::IValue());
    return choice ? *choice : Choice{operands[0].tensor.device(), MGD_WHY_NONE};
  }

  at::Tensor align_row(const at::Tensor& t, const TensorArg& a, const Choice& c, WriteBacks& write_backs) const {
    if (!t.defined() || t.device() == c.device) return t;
    const Operand o{t, &a, 0};
    if (o.is_number() && !o.is(kWritten)) return t;
    const Cause cause{f_.name.c_str(), MGD_EV_COPY, c.reason};
    if (!o.is(kWritten)) return cross(t, c.device, cause);
    at::Tensor copy = cross_written(t, c.device, false, cause);
    write_backs.push_back({t, copy, false});
    return copy;
  }

  c10::IValue pick_tensors(const c10::IValue& v, const TensorArg& a, const std::vector<std::size_t>& rows,
                           const Choice& c, WriteBacks& write_backs) const {
    c10::List<at::Tensor> out;
    const auto list = v.toListRef();
    if (per_row(v))
      for (std::size_t row : rows) out.push_back(align_row(list[row].toTensor(), a, c, write_backs));
    else
      for (const c10::IValue& e : list) out.push_back(align_row(e.toTensor(), a, c, write_backs));
    return out;
  }

  // Whether v is a tensor of numbers, one for each row, which torch wants on the CPU.
  bool is_scalars(std::size_t argument, const c10::IValue& v) const {
    return v.isTensor() && op_.schema().arguments()[argument].name() == "scalars";
  }

  c10::IValue pick_scalars(const at::Tensor& t, const std::vector<std::size_t>& rows) const {
    if (rows.size() == count_ || t.dim() != 1 || !t.is_cpu() || static_cast<std::size_t>(t.numel()) != count_) return t;
    const std::vector<int64_t> chosen(rows.begin(), rows.end());
    return t.index_select(0, at::tensor(chosen));
  }

  // Picks from a list of numbers, one for each row.
  static c10::IValue pick_values(const c10::IValue& v, const std::vector<std::size_t>& rows) {
    const auto list = v.toList();
    c10::impl::GenericList out(list.elementType());
    for (std::size_t row : rows) out.push_back(list.get(row));
    return out;
  }

  void call(const std::vector<std::size_t>& rows, const Choice& c) {
    WriteBacks write_backs;
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < arguments_.size(); i++) {
      const c10::IValue& v = arguments_[i];
      const TensorArg* a = nullptr;
      for (const TensorArg& t : f_.tensors)
        if (t.index == i) a = &t;
      if (is_scalars(i, v)) stack.push_back(pick_scalars(v.toTensor(), rows));
      else if (a && v.isTensor()) stack.emplace_back(align_row(v.toTensor(), *a, c, write_backs));
      else if (a && v.isList()) stack.push_back(pick_tensors(v, *a, rows, c, write_backs));
      else if (per_row(v)) stack.push_back(pick_values(v, rows));
      else stack.push_back(v);
    }
    call_aligned(op_, f_, stack);
    finish(write_backs);
    for (std::size_t r = 0; r < f_.returns; r++)
      if (f_.returned[r] < 0 && stack[r].isTensorList())
        for (std::size_t k = 0; k < rows.size(); k++) results_[r][rows[k]] = stack[r].toListRef()[k].toTensor();
  }

  void push_results(torch::jit::Stack& stack) {
    for (std::size_t r = 0; r < f_.returns; r++)
      if (f_.returned[r] >= 0) stack.push_back(arguments_[f_.returned[r]]);
      else stack.emplace_back(c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(results_[r])));
  }

  const c10::OperatorHandle& op_;
  const OpFacts& f_;
  std::vector<c10::IValue> arguments_;
  std::size_t count_ = 0;
  std::vector<Choice> choices_;
  std::vector<std::vector<at::Tensor>> results_;
};

} // namespace

bool Load::wants_pieces() const { return rows > 1 && bytes > largest_call(device); }

void call_rows(const c10::OperatorHandle& op, const OpFacts& f, torch::jit::Stack& stack) {
  std::vector<c10::IValue> arguments(stack.end() - f.arguments, stack.end());
  torch::jit::drop(stack, f.arguments);
  Rows(op, f, std::move(arguments)).run(stack);
}

} // namespace managed
