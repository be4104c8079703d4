// group_norm.cpp: the derivative of group_norm in the layout of its input, as the CPU computes it.
//
// The formula of torch's node makes its operands contiguous on every device but the CPU. A channels_last input is then
// summed in another order, and its gradient differs in the last bit. So another node takes the place of torch's: the
// same node, with the formula's branch for the CPU. Everything else (second derivatives, forward mode, functorch) is
// left to torch's.
#include <Python.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include "torch/facts/compat.h"
#include "sim/backend.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using torch::autograd::variable_list;
using TorchsNode = torch::autograd::generated::NativeGroupNormBackward0;

constexpr size_t kArguments = 8, kResults = 3;

// Not every version of torch keeps it.
template <class Node>
void copy_eps(Node &to, const Node &from) {
  if constexpr (requires { from.eps; }) to.eps = from.eps;
}

struct LayoutNode : TorchsNode {
  // In the place of `node`, which nothing has seen yet: its number, its edges and what it saved.
  explicit LayoutNode(TorchsNode &node) : TorchsNode(node.sequence_nr(), torch::autograd::edge_list(node.next_edges())) {
    C = std::move(node.C);
    HxW = std::move(node.HxW);
    N = std::move(node.N);
    group = node.group;
    copy_eps<TorchsNode>(*this, node);
    input_ = std::move(node.input_);
    weight_ = std::move(node.weight_);
    result1_ = std::move(node.result1_);
    result2_ = std::move(node.result2_);
  }

  variable_list apply(variable_list &&grads) override {
    // Under create_graph, and for derivatives of mean and deviation, torch's formula is one of differentiable operators.
    const bool first = !c10::GradMode::is_enabled() && grads[0].defined() && !grads[1].defined() && !grads[2].defined();
    // Batched tensors of vmap have no layout to ask for.
    if (!first || grads[0].key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched})))
      return TorchsNode::apply(std::move(grads));

    std::lock_guard<std::mutex> lock(mutex_);
    const auto self = getptr();
    const at::Tensor input = input_.unpack(), weight = weight_.unpack();
    const at::Tensor mean = result1_.unpack(self), deviation = result2_.unpack(self);
    const auto layout = input.suggest_memory_format();
    // The input's derivative is always made: in this layout the CPU's kernel writes through a null pointer without it.
    const std::array<bool, 3> wanted = {true, task_should_compute_output(1), task_should_compute_output(2)};
    auto [of_input, of_weight, of_bias] = at::native_group_norm_backward_symint(grads[0].contiguous(layout), input.contiguous(layout), mean, deviation,
                                                                                weight, N, C, HxW, group, wanted);
    return {task_should_compute_output(0) ? std::move(of_input) : at::Tensor(), std::move(of_weight), std::move(of_bias)};
  }
};

// What the dispatcher had for this key: torch's kernel, which makes its node.
const c10::SafeKernelFunction *torchs_kernel;

void group_norm(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
  const at::Tensor input = torch::jit::peek(*stack, 0, kArguments).toTensor();
  torchs_kernel->callBoxed(op, keys, stack);
  const auto &node = torch::jit::peek(*stack, 0, kResults).toTensor().grad_fn();
  if (!node || typeid(*node) != typeid(TorchsNode) || input.suggest_memory_format() == at::MemoryFormat::Contiguous) return;
  const NodePtr ours = make_node<LayoutNode>(static_cast<TorchsNode &>(*node));
  for (size_t i = 0; i < kResults; i++) torch::autograd::set_history(torch::jit::peek(*stack, i, kResults).toTensor(), ours);
}

// Gives the node torch's class in Python, with what torch's node tells of its saved tensors.
void give_python_type() {
  PyObject *torch = PyImport_ImportModule("torch._C");
  PyObject *functions = torch ? PyObject_GetAttrString(torch, "_functions") : nullptr;
  PyObject *type = functions ? PyObject_GetAttrString(functions, "NativeGroupNormBackward0") : nullptr;
  if (type) torch::autograd::registerCppFunction(typeid(LayoutNode), reinterpret_cast<PyTypeObject *>(type));
  PyErr_Clear();  // A torch without this class shows the node as one without attributes.
  Py_XDECREF(type);
  Py_XDECREF(functions);
  Py_XDECREF(torch);
}

}  // namespace

void register_group_norm(torch::Library &autograd) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_group_norm", "");
  torchs_kernel = new c10::SafeKernelFunction(op.getComputedKernelForDispatchKey(kAutograd));
  give_python_type();
  autograd.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&group_norm>());
}

}  // namespace managed::sim
