// register.cpp: see register.h.
//
// Each operator of torch's that exists when managed is imported gets a kernel that carries its facts; other operators
// reach the boxed fallback, which looks the facts up.
#include "torch/entry/register.h"

#include <torch/library.h>

#include <memory>
#include <optional>
#include <vector>

#include "torch/facts/facts.h"
#include "torch/entry/hook.h"
#include "torch/facts/key.h"
#include "torch/align/random.h"

namespace managed {
namespace {

// A kernel that carries its operator's facts, so that no call looks anything up.
struct Hook final : c10::OperatorKernel {
  explicit Hook(const OpFacts& f) : facts(f) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
    chokepoint(op, ks, *stack, facts);
  }
  const OpFacts& facts;
};

// The kernel of an operator that draws random numbers.
struct DrawingHook final : c10::OperatorKernel {
  explicit DrawingHook(const OpFacts& f) : facts(f) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
    const OneStream stream(facts, *stack);
    chokepoint(op, ks, *stack, facts);
  }
  const OpFacts& facts;
};

// The kernel that locks a tensor's pages, as a DataLoader does with pin_memory=True.
struct PinningHook final : c10::OperatorKernel {
  explicit PinningHook(const OpFacts& f) : facts(f) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
    const at::Tensor& t = (*stack)[stack->size() - facts.arguments].toTensor();
    TORCH_CHECK(t.is_cpu(), "cannot pin '", t.toString(),
                "' only dense CPU tensors can be pinned. managed: the tensor is on ", t.device(),
                " already. Leave pin_memory() away, or give its DataLoader pin_memory=False.");
    chokepoint(op, ks, *stack, facts);
  }
  const OpFacts& facts;
};

c10::KernelFunction kernel_of(const OpFacts& f) {
  if (f.route == Route::Fallthrough) return c10::KernelFunction::makeFallthrough();
  if (f.name == "aten::_pin_memory") return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PinningHook>(f));
  if (f.draws_random) return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<DrawingHook>(f));
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Hook>(f));
}

void register_operator(c10::Dispatcher& dispatcher, const c10::OperatorName& name,
                       std::vector<c10::RegistrationHandleRAII>& kept) {
  const auto op = dispatcher.findSchema(name);
  if (!op) return;
  kept.push_back(dispatcher.registerImpl(name, kKey, kernel_of(facts_of(*op)), std::nullopt, nullptr, "managed"));
}

// Strided bytes on some device. Torch counts CPU and CUDA tensors as one kind here, and simulated ones as another.
bool is_dense(c10::DispatchKeySet ks) {
  constexpr c10::DispatchKeySet backends(
      {c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit, c10::BackendComponent::PrivateUse1Bit});
  return ks.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) && ks.has_any(backends) && !ks.has_any(kWrappers);
}

// `x.data = y` asks whether the two key sets allow it. Managed's key says nothing about layout, so it must not make
// them differ; nor must the kind of accelerator.
bool same_kind(const at::Tensor& self, const at::Tensor& from) {
  const c10::DispatchKeySet ks = from.key_set();
  if (is_dense(self.key_set()) && is_dense(ks)) return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(
      has_key(self.unsafeGetTensorImpl()) ? ks.add(kKey) : ks.remove(kKey));
}
constexpr auto kSameKind = "aten::_has_compatible_shallow_copy_type";

void register_same_kind() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  library->impl(kSameKind, TORCH_FN(same_kind));
}

void register_fallback() {
  TORCH_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey),
              "managed: another library already uses the dispatch key ", toString(kKey),
              ", which managed needs for itself (torchdistx does, for example). Only one of them can be imported in a "
              "process.");
  static auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__,
                                            __LINE__); // registrations last as long as the process
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&boxed>());
}

} // namespace

void register_hook() {
  static bool done = false;
  if (done) return;
  register_fallback();
  register_typed();
  register_same_kind();
  register_record_stream();
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (name.name.compare(0, 6, "aten::") == 0 && !is_typed(full) && full != kSameKind && full != kRecordStream)
      register_operator(dispatcher, name, *kept);
  }
  done = true;
}

} // namespace managed
