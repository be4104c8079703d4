// functorch.cpp: alignment for torch.func.grad, vjp, jacrev and hessian.
//
// Inside these transforms an operator first passes functorch, which shuts out
// every key below its own, records the operator on a graph of wrappers, and only
// then calls what is beneath. There the chokepoint would align operands that the
// graph has already recorded on different devices, and its gradients would arrive
// on the wrong one. So, while a thread is inside such a transform, this hook
// stands above functorch: the copies it makes are recorded at every level.
#include "torch/entry/functorch.h"

#include <torch/library.h>

#include "torch/api.h"
#include "torch/entry/hook.h"
#include "torch/tensor/wrapped.h"

namespace managed {
namespace {

const c10::DispatchKeySet kBelowThis(c10::DispatchKeySet::FULL_AFTER, kAboveFunctorch);

bool any_managed(const c10::IValue& v) {
  if (v.isTensor()) return holds_managed(v.toTensor());
  if (!v.isList()) return false;
  for (const c10::IValue& e : v.toListRef())
    if (e.isTensor() && holds_managed(e.toTensor())) return true;
  return false;
}

bool any_managed(const OpFacts& f, const torch::jit::Stack& stack, std::size_t base) {
  for (const TensorArg& a : f.tensors)
    if (any_managed(stack[base + a.index])) return true;
  return false;
}

// When a gradient goes from a node on one accelerator to a node on another, the engine looks at its storage, and a
// wrapper has none. A node on the CPU has no stream to wait for: over the host the gradient passes unseen.
void copy_over_host(const OpFacts& f, torch::jit::Stack& stack, std::size_t base) {
  if (f.name != "aten::_to_copy" || !stack[base].isTensor() || !stack[base + kDeviceOfToCopy].isDevice()) return;
  const at::Tensor t = stack[base].toTensor();
  const c10::Device to = stack[base + kDeviceOfToCopy].toDevice();
  if (!t.defined() || t.device() == to || t.is_cpu() || to.is_cpu() || !is_wrapped(t) || !holds_managed(t)) return;
  stack[base] = t.cpu();
}

void above_functorch(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  const OpFacts& f = facts_of(op);
  const std::size_t base = stack->size() - f.arguments;
  if (f.alignment == Alignment::Never) copy_over_host(f, *stack, base);
  else if (f.route != Route::Fallthrough && any_managed(f, *stack, base) && align_call(op, *stack, f)) return;
  op.redispatchBoxed(ks & kBelowThis, stack);
}

bool registered = false; // written once, while the package is imported
thread_local int levels = 0;

} // namespace

void register_above_functorch() {
  if (registered || c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kAboveFunctorch))
    return; // a test has the key: gradients over devices fail as in torch
  static auto* library = new torch::Library(torch::Library::IMPL, "_", kAboveFunctorch, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&above_functorch>());
  registered = true;
}

} // namespace managed

void mgd_torch_above_functorch(int change) {
  if (!managed::registered) return;
  managed::levels += change;
  c10::impl::tls_set_dispatch_key_included(managed::kAboveFunctorch, managed::levels > 0);
}
