// register.cpp: see register.h. Owns which operator of CUDA's is computed, refused, or left as it is.
//
// What has a kernel for the CPU goes there. What CUDA has a kernel for and the CPU goes a composite way goes that way,
// on the CPU. What has neither is refused. Views, and what only allocates or copies, launch nothing and stay torch's.
#include "virtual_gpu/torch/register.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "sim/backend.h"
#include "sim/kernels/fallback.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using c10::DispatchKey;
using torch::CppFunction;

torch::Library &library(DispatchKey key) {
  static auto *const kept = new std::vector<std::unique_ptr<torch::Library>>;  // leaked: kernels last as long as the process
  kept->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
  return *kept->back();
}

bool left_to_torch(const std::string &name) {
  static const std::unordered_set<std::string> names = {"aten::empty.memory_format", "aten::empty_strided", "aten::_efficientzerotensor", "aten::set_",
                                                        "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor",
                                                        "aten::resize_", "aten::record_stream", "aten::_pin_memory", "aten::is_pinned", "aten::_to_copy",
                                                        "aten::_local_scalar_dense",
                                                        // Written by hand: copy.cpp and ../sim/composites.cpp.
                                                        "aten::copy_", "aten::_lazy_clone", "aten::dropout", "aten::dropout_", "aten::native_dropout"};
  return names.count(name) > 0;
}

// Composites that would choose a library of CUDA's by the operands' device.
bool chooses_library(const std::string &name) { return name == "aten::_convolution"; }

bool has_composite(const c10::OperatorHandle &op) {
  for (DispatchKey key : {DispatchKey::CompositeImplicitAutograd, DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

// What the CPU computes by a composite of differentiable operators, CUDA's tensors compute so too, also above autograd.
template <DispatchKey key>
void compose(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

void refuse(const c10::OperatorHandle &op, torch::jit::Stack *) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, full_name(op.operator_name()), " cannot run on virtual GPUs: they compute with the CPU's kernels, and there is none for it. ",
                              "Call what it is a part of in another way, run it on the CPU, or on a real GPU.");
}

struct Pair {
  DispatchKey cuda, cpu;
};

// A list operator. On operands of several devices CUDA's kernel takes its slow way, one operator for each tensor; here that is the only way.
bool goes_one_by_one(const c10::OperatorHandle &op, const std::string &name) {
  return name.rfind("aten::_foreach_", 0) == 0 && op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

// CUDA's operators of one kind of tensor.
void register_operator(const c10::OperatorHandle &op, const OperatorFacts &facts, const Pair &keys, torch::Library &m, torch::Library &autograd) {
  const bool dense = keys.cuda == kDense;
  if (facts.view || left_to_torch(facts.name)) return;
  const bool has_cpu = op.hasKernelForDispatchKey(keys.cpu) || (dense && (facts.whole || chooses_library(facts.name)));
  const bool has_cuda = op.hasKernelForDispatchKey(keys.cuda);
  if (!has_cpu && (!has_cuda || facts.free)) return; // whether CUDA would use a library, torch answers
  const char *name = facts.name.c_str() + sizeof("aten::") - 1;
  if (!has_cpu && dense && op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
    m.impl(name, CppFunction::makeFromBoxedFunction<&compose<DispatchKey::CPU>>());
    autograd.impl(name, CppFunction::makeFromBoxedFunction<&compose<DispatchKey::AutogradCPU>>());
    return;
  }
  if (goes_one_by_one(op, facts.name)) m.impl(name, CppFunction::makeFromBoxedFunction<&compose<DispatchKey::CPU>>());
  else if (has_cpu || has_composite(op)) m.impl(name, CppFunction::makeFromBoxedFunctor(std::make_unique<OperatorKernel>(facts)));
  else m.impl(name, CppFunction::makeFromBoxedFunction<&refuse>());
}

void register_operators() {
  static constexpr Pair kinds[] = {{kDense, DispatchKey::CPU},
                                   {kCoo, DispatchKey::SparseCPU},
                                   {kCompressed, DispatchKey::SparseCsrCPU},
                                   {DispatchKey::NestedTensorCUDA, DispatchKey::NestedTensorCPU},
                                   {DispatchKey::QuantizedCUDA, DispatchKey::Undefined}};
  auto &dispatcher = c10::Dispatcher::singleton();
  const auto names = dispatcher.getAllOpNames();
  auto &autograd = library(kAutograd);
  for (const Pair &keys : kinds) {
    auto &m = library(keys.cuda);
    for (const auto &name : names) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      if (auto op = dispatcher.findSchema(name)) register_operator(*op, facts_of(*op), keys, m, autograd);
    }
  }
}

// Torch says that kernels are replaced, which is what is wanted here.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

}  // namespace

void register_kernels() {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  register_operators();
  for (DispatchKey key : {kDense, kAutograd}) {
    auto &m = library(key);
    register_rnn(m);
    register_dropout(m);
    register_attention(m);
  }
  register_native_dropout(library(kDense));
  register_sync_batch_norm(library(kDense));
  register_copies(library(kDense));
  register_derivatives(library(kAutograd));
  at::globalContext().setUserEnabledCuDNN(false);  // composites ask it before they choose cuDNN
  torch::jit::overrideCanFuseOnGPU(false);         // TorchScript would compile kernels
}

}  // namespace managed::sim
