// nested.cpp: strided nested tensors, which simulated devices can hold and not compute with.
//
// Torch makes one of any list of tensors, without asking the device, and autograd asks for its sizes where an exception
// ends the process. So the sizes are told, and everything else is refused with a reason.
#include <ATen/NestedTensorImpl.h>

#include "sim/operators.h"

namespace managed::sim {
namespace {

void refuse(const c10::OperatorHandle &op, torch::jit::Stack *) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), " of a nested tensor: simulated devices compute with strided and sparse tensors, and with nested ones of ",
                              "layout=torch.jagged. Make it with that layout, or on the CPU.");
}

at::Tensor sizes(const at::Tensor &t) { return at::native::get_nested_tensor_impl(t)->get_nested_sizes(); }

}  // namespace

void register_nested(torch::Library &every, torch::Library &m) {
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  m.impl("_nested_tensor_size", &sizes);
}

}  // namespace managed::sim
