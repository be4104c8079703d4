// fallback.cpp: see fallback.h.
#include "sim/kernels/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "sim/kernels/alias.h"
#include "sim/kernels/forms.h"
#include "sim/generator.h"
#include "sim/launch.h"
#include "sim/kernels/unknown.h"

namespace managed::sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

class Call {
 public:
  Call(const c10::OperatorHandle &op, const OperatorFacts &facts, Stack *stack, SeenAs seen_as)
      : op_(op),
        facts_(facts),
        stack_(stack),
        count_(op.schema().arguments().size()),
        base_(stack->size() - count_),
        tells_form_(seen_as == SeenAs::form),
        aliases_(-1, seen_as),
        launch_(facts, arguments()) {}

  void operator()() {
    if (C10_UNLIKELY(tells_form_)) ask_about_values();
    take_operands();
    launch_.begin(aliases_.device());
    tells_form_ ? tell_form() : run();
    launch_.ran();
    for (size_t k = 0; k < sim_.size(); k++)
      if (C10_LIKELY(!stays_known(sim_[k]))) write_back(sim_[k], cpu_[k]);
    give_results();
    launch_.end();
  }

  // Whether storages that hold its results, or grow for them, may be known. It must tell forms; nothing but the stack changes.
  bool gives_little() {
    take_operands();
    tell_form();
    bool little = true;
    const auto look = [&](const Tensor &t) { little = little && (!t.has_storage() || may_know(t.storage().nbytes(), false)); };
    for (const IValue &v : cpu_) for_each_tensor(v, look);
    for (size_t r = stack_->size() - facts_.returned.size(); r < stack_->size(); r++) for_each_tensor((*stack_)[r], look);
    return little;
  }

 private:
  void take_operands() {
    keep_written(sim_);
    for (size_t i = 0; i < count_; i++) take((*stack_)[base_ + i], i);
    if (any_sim_ && host_argument_ >= 0 && !facts_.may_mix) mixed("cpu", static_cast<size_t>(host_argument_));
    if (aliases_.device() < 0) aliases_.set_device(current_device());
    check_device(aliases_.device());
    choose_generator();
    keep_written(cpu_);
  }

  c10::ArrayRef<IValue> arguments() const { return c10::ArrayRef<IValue>(*stack_).slice(base_, count_); }

  void keep_written(c10::SmallVector<IValue, 4> &into) {
    for (int i : facts_.written) into.push_back((*stack_)[base_ + i]);
  }

  [[noreturn]] void mixed(const std::string &other, size_t argument) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", kName, ":", aliases_.device(), " and ", other,
                "! (when checking argument for argument ", op_.schema().arguments()[argument].name(), " in method ", facts_.name, ")");
  }

  void see_sim(const Tensor &t, size_t argument) {
    any_sim_ = true;
    const int device = t.device().index();
    if (aliases_.device() < 0) aliases_.set_device(device);
    if (aliases_.device() != device) mixed(t.device().str(), argument);
    launch_.operand(t, writes(argument));
  }

  bool writes(size_t argument) const {
    return std::find(facts_.written.begin(), facts_.written.end(), static_cast<int>(argument)) != facts_.written.end();
  }

  // 0-dim CPU tensors are numbers and go with anything, unless they are written.
  void see_host(const Tensor &t, size_t argument) {
    TORCH_CHECK(!t.device().is_meta(), facts_.name, ": argument ", op_.schema().arguments()[argument].name(),
                " is a meta tensor, which has no values to compute with on ", kDevices);
    if (!t.device().is_cpu() || host_argument_ >= 0) return;
    if (t.dim() != 0 || writes(argument)) host_argument_ = static_cast<int>(argument);
  }

  Tensor take_tensor(const Tensor &t, size_t argument) {
    if (!t.defined()) return t;
    on_device(t) ? see_sim(t, argument) : see_host(t, argument);
    return aliases_.to_cpu(t);
  }

  // The number of elements that a mask chooses gives a form.
  Tensor take_index(const Tensor &t, size_t argument) {
    Tensor taken = take_tensor(t, argument);
    if (C10_LIKELY(!tells_form_) || !taken.defined() || !taken.is_meta() || !is_mask(taken) || facts_.unknown == Unknown::same) return taken;
    if (known_of(t.storage()) != Known::values) unknown_form(facts_.name);
    return Aliases(aliases_.device()).to_cpu(t);
  }

  void take_list(IValue &v, size_t argument) {
    const auto in = v.toListRef();
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      out.reserve(in.size());
      for (const IValue &x : in) out.push_back(x.isTensor() ? std::optional<Tensor>(take_index(x.toTensor(), argument)) : std::nullopt);
      v = std::move(out);
      return;
    }
    c10::List<Tensor> out;
    out.reserve(in.size());
    for (const IValue &x : in) out.push_back(take_tensor(x.toTensor(), argument));
    v = std::move(out);
  }

  void take(IValue &v, size_t argument) {
    if (v.isTensor()) {
      v = take_tensor(v.toTensor(), argument);
    } else if (v.isTensorList() || v.isOptionalTensorList()) {
      take_list(v, argument);
    } else if (v.isDevice()) {
      const c10::Device d = v.toDevice();
      if (d.type() == kDevice && aliases_.device() < 0) aliases_.set_device(d.has_index() ? d.index() : current_device());
      if (d.type() == kDevice) v = c10::Device(tells_form_ ? c10::kMeta : c10::kCPU);
    } else if (v.isGenerator()) {
      take_generator(v);
    } else if (v.isList() && !v.toListRef().empty() && v.toListRef()[0].isTensor()) {
      take_list(v, argument);
    }
  }

  void take_generator(IValue &v) {
    const at::Generator g = v.toGenerator();
    if (!g.defined() || g.device().type() != kDevice) return;
    if (aliases_.device() < 0) aliases_.set_device(g.device().index());
    v = tells_form_ ? IValue() : IValue(cpu_generator(g, lease_));
  }

  void choose_generator() {
    if (facts_.generator < 0 || tells_form_) return;
    IValue &v = (*stack_)[base_ + facts_.generator];
    if (v.isNone()) v = cpu_generator(default_generator(aliases_.device()), lease_);
  }

  void run() {
    const Computing computes(!holds_values());
    const auto narrow = widen();
    if (C10_LIKELY(any_sim_ && !aliases_.special() && facts_.has_cpu_kernel)) {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    } else {
      at::AutoDispatchBelowADInplaceOrView below;
      op_.callBoxed(stack_);
    }
    if (C10_UNLIKELY(narrow.has_value())) round_to(*narrow);
  }

  bool is_widened(at::ScalarType t) const {
    return facts_.widened == Widened::integers ? c10::isIntegralType(t, false) : t == at::kHalf || t == at::kBFloat16;
  }

  at::ScalarType wide() const { return facts_.widened == Widened::integers ? at::kDouble : at::kFloat; }

  // Returns the type that the operands of the host's kernel had, if there is a wider one for them. Targets and indices
  // stay.
  std::optional<at::ScalarType> widen() {
    if (C10_LIKELY(facts_.widened == Widened::none) || !arguments()[0].isTensor() ||
        !is_widened(arguments()[0].toTensor().scalar_type()))
      return std::nullopt;
    const at::ScalarType narrow = arguments()[0].toTensor().scalar_type();
    for (size_t i = 0; i < count_; i++)
      if (IValue &v = (*stack_)[base_ + i];
          v.isTensor() && v.toTensor().defined() && v.toTensor().scalar_type() == narrow)
        v = v.toTensor().to(wide());
    return narrow;
  }

  void round_to(at::ScalarType narrow) {
    for (size_t r = stack_->size() - facts_.returned.size(); r < stack_->size(); r++)
      if (IValue &v = (*stack_)[r]; v.isTensor() && v.toTensor().scalar_type() == wide()) v = v.toTensor().to(narrow);
  }

  // ---- without values (values.h)

  // Asks what needs the device's tensors, before their forms are taken.
  void ask_about_values() {
    const auto tensor = [&](size_t i) { return (*stack_)[base_ + i].toTensor(); };
    if (facts_.unknown == Unknown::nothing) unknown_form(facts_.name);
    if (facts_.unknown == Unknown::scalar) answer_ = unknown_number(tensor(0));
    if (facts_.unknown == Unknown::equal) answer_ = unknown_equality(tensor(0), tensor(1));
    if (facts_.unknown != Unknown::truth) return;
    is_true_ = true;
    for (const IValue &v : arguments())
      for_each_tensor(v, [&](const Tensor &t) { is_true_ = is_true_ && on_device(t) && t.has_storage() && known_of(t.storage()) == Known::truth; });
  }

  // The number that says whether a gradient was not finite; gradients are a list.
  bool stays_known(const IValue &written) const { return C10_UNLIKELY(tells_form_) && facts_.unknown == Unknown::finite && written.isTensor(); }

  // Like run(), but the results are meta tensors.
  void tell_form() {
    if (answer_ || facts_.unknown == Unknown::same || facts_.unknown == Unknown::finite) {
      torch::jit::drop(*stack_, count_);
      stack_->resize(stack_->size() + facts_.returned.size()); // what was written is put there
      if (answer_) stack_->back() = *answer_;
      return;
    }
    Question question(facts_, arguments());
    if (question.recall(stack_)) return;
    const std::vector<IValue> operands = arguments().vec();
    if (!tell_instead(facts_.name, operands, stack_)) run_meta();
    mend(facts_.name, operands, stack_);
    question.remember(*stack_, operands);
  }

  void run_meta() {
    try {
      if (any_sim_ && !aliases_.special()) {
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack_);
      } else {
        at::AutoDispatchBelowADInplaceOrView below;
        op_.callBoxed(stack_);
      }
    } catch (const c10::NotImplementedError &e) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "managed: torch does not tell what ", facts_.name, " gives without its values, and simulated devices hold none (values=False): ",
                                  e.what_without_backtrace());
    }
  }

  void write_back(const IValue &sim, const IValue &cpu) {
    if (sim.isTensor()) {
      aliases_.write_back(sim.toTensor(), cpu.toTensor());
    } else if (sim.isTensorList()) {
      const auto a = sim.toListRef(), b = cpu.toListRef();
      for (size_t i = 0; i < a.size(); i++) aliases_.write_back(a[i].toTensor(), b[i].toTensor());
    }
  }

  Tensor give_tensor(const Tensor &t, size_t result) {
    Tensor r = aliases_.to_device(t);
    if (C10_UNLIKELY(is_true_)) set_known(r.storage(), Known::truth);
    launch_.result(r, result == 0);
    return r;
  }

  void give_results() {
    const size_t n = facts_.returned.size(), first = stack_->size() - n;
    for (size_t r = 0; r < n; r++) {
      IValue &v = (*stack_)[first + r];
      if (facts_.returned[r] >= 0) {
        v = written(facts_.returned[r]);
      } else if (v.isTensor()) {
        v = give_tensor(v.toTensor(), r);
      } else if (v.isTensorList()) {
        c10::List<Tensor> out;
        for (const IValue &x : v.toListRef()) out.push_back(give_tensor(x.toTensor(), r));
        v = std::move(out);
      }
    }
  }

  const IValue &written(int argument) const {
    const auto at = std::find(facts_.written.begin(), facts_.written.end(), argument);
    return sim_[static_cast<size_t>(at - facts_.written.begin())];
  }

  const c10::OperatorHandle &op_;
  const OperatorFacts &facts_;
  Stack *stack_;
  const size_t count_, base_;
  const bool tells_form_;  // nothing is computed
  Aliases aliases_;
  c10::SmallVector<IValue, 4> sim_, cpu_;  // written arguments, as given and as CPU tensors
  Launch launch_;
  std::shared_ptr<void> lease_; // of the generator
  int host_argument_ = -1;  // the first CPU operand that is not a number
  bool any_sim_ = false;
  std::optional<IValue> answer_;
  bool is_true_ = false;    // its results count as true
};

// ---- without values: which calls are computed all the same

bool is_known(const Tensor &t, bool overwritten) {
  if (!on_device(t)) return true;
  if (is_sparse(t) || !t.has_storage()) return false;
  return known_of(t.storage()) == Known::values || (overwritten && is_covered(t));
}

bool knows_operands(const c10::OperatorHandle &op, const OperatorFacts &facts, const Stack &stack) {
  if (facts.view || facts.generator >= 0 || !facts.has_cpu_kernel) return false;
  const size_t count = op.schema().arguments().size(), base = stack.size() - count;
  bool known = true;
  for (size_t i = 0; i < count; i++) {
    const bool overwritten = facts.overwrites && std::find(facts.written.begin(), facts.written.end(), static_cast<int>(i)) != facts.written.end();
    for_each_tensor(stack[base + i], [&](const Tensor &t) { known = known && is_known(t, overwritten); });
  }
  return known;
}

bool gives_little(const c10::OperatorHandle &op, const OperatorFacts &facts, const Stack &stack) {
  if (facts.unknown == Unknown::scalar || facts.unknown == Unknown::equal || facts.unknown == Unknown::nothing) return true;
  Stack copy(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack.end());
  try {
    return Call(op, facts, &copy, SeenAs::form).gives_little();
  } catch (const c10::NotImplementedError &) {
    return true;  // what gives more than it takes has a meta kernel
  }
}

SeenAs seen_as(const c10::OperatorHandle &op, const OperatorFacts &facts, const Stack &stack) {
  if (C10_LIKELY(holds_values())) return facts.view ? SeenAs::no_bytes : SeenAs::bytes;
  if (facts.unknown == Unknown::host_form) return SeenAs::no_bytes;
  return knows_operands(op, facts, stack) && gives_little(op, facts, stack) ? SeenAs::bytes : SeenAs::form;
}

void run_call(const c10::OperatorHandle &op, const OperatorFacts &facts, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard unmanaged(kKey);
  Call(op, facts, stack, seen_as(op, facts, *stack))();
}

}  // namespace

void OperatorKernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) { run_call(op, facts, stack); }

// Torch registers its collectives for dense tensors. Their schemas do not say what they write, so what the host's
// kernel wrote would be lost.
void unknown_operator(const c10::OperatorHandle &op, Stack *stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.schema().name().rfind("c10d::", 0) != 0, "collectives of sparse tensors on ", kDevices,
                              " are not possible: send x.to_dense(), or the indices and the values");
  run_call(op, facts_of(op), stack);
}

}  // namespace managed::sim
